/**
 * What this process holds of the system: memory, open files, mappings. Read from /proc, so Linux only. Nothing is
 * released by looking, except what the garbage collector finds.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

export interface Holdings {
  /** Memory of the process alone, which no segment accounts for. */
  readonly privateMb: number;
  /** Pages of segments, its own and those of peers, that it has touched. */
  readonly sharedMb: number;
  readonly heapMb: number;
  readonly descriptors: number;
  /** Segments of its own that it has mapped. */
  readonly ownSegments: number;
  /** Segments of peers that it has mapped. */
  readonly peerSegments: number;
  /** Those of them whose names are gone: their owners died, or closed them, and it has not let go. */
  readonly orphans: number;
  /** Mappings that are no segments. */
  readonly otherMappings: number;
}

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

export function holdings(): Holdings {
  collectGarbage();
  const status = readFileSync('/proc/self/status', 'utf8');
  const megabytes = (field: string) =>
    Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(status)![1]) / 1024;
  const mappings = readFileSync('/proc/self/maps', 'utf8').trimEnd().split('\n');
  // A segment is created under a temporary name, by which the kernel goes on calling it in its owner.
  const own = mappings.filter((line) => /\/\.tributary-new-[^/]*$/.test(line));
  // The folder of the segments begins like their names.
  const peers = mappings.filter((line) => /\/tributary-[^/]*$/.test(line));
  return {
    privateMb: megabytes('RssAnon'),
    sharedMb: megabytes('RssShmem'),
    heapMb: process.memoryUsage().heapUsed / 2 ** 20,
    descriptors: readdirSync('/proc/self/fd').length,
    ownSegments: own.length,
    peerSegments: peers.length,
    orphans: peers.filter((line) => line.endsWith('(deleted)')).length,
    otherMappings: mappings.length - own.length - peers.length,
  };
}
