/**
 * Which server, which of its cores and which of its interfaces (listening sockets) each chunk belongs to, for the whole
 * of a training run (PHub, section 3.2.4). Pure data: it opens no socket and starts no thread. Invariants: every level
 * keeps the bound of `largest-first.ts` over the chunks it divides; the placement depends on the lengths of the chunks
 * and their order only, so workers and servers compute the same one without talking.
 */
import { requireCount } from './argument-checks.ts';
import { ELEMENT_BYTES, type Chunk } from './chunks.ts';
import { assignLargestFirst } from './largest-first.ts';

/** What there is to place chunks on; all servers are alike. */
export interface ServerResources {
  /** Server processes. */
  readonly servers: number;
  /** Threads of a server that own chunks. Default 1. */
  readonly coresPerServer?: number;
  /** Listening sockets of a server. Default 1. */
  readonly interfacesPerServer?: number;
}

/** All three counted from 0; core and interface within the server. */
export interface PlacedChunk extends Chunk {
  readonly server: number;
  readonly core: number;
  readonly interface: number;
}

export interface ServerLoad {
  readonly chunks: number;
  readonly bytes: number;
  readonly bytesByCore: readonly number[];
  readonly bytesByInterface: readonly number[];
}

/** Frozen throughout, and plain data: it can be printed, sent and compared. */
export interface Placement {
  /** In the order in which the chunks were given. */
  readonly chunks: readonly PlacedChunk[];
  readonly servers: readonly ServerLoad[];
}

/**
 * Three partitions by bytes, each largest first: all chunks to servers; then the chunks of a server to its cores and,
 * independently, the same chunks to its interfaces. Interfaces chosen inside each core would be balanced for the core
 * but not for the server (four cores of one chunk each would all choose interface 0), and cores chosen inside each
 * interface the other way round. If chunks are equally long and one count divides the other, each core still has
 * interfaces, or each interface cores, of its own.
 */
export function placeChunks(chunks: readonly Chunk[], resources: ServerResources): Placement {
  const { servers, coresPerServer = 1, interfacesPerServer = 1 } = resources;
  requireCount('servers', servers);
  requireCount('coresPerServer', coresPerServer);
  requireCount('interfacesPerServer', interfacesPerServer);

  const bytes = chunks.map(({ length }) => length * ELEMENT_BYTES);
  const byServer = assignLargestFirst(bytes, servers);
  const members: number[][] = Array.from({ length: servers }, () => []);
  byServer.assignment.forEach((server, i) => members[server]!.push(i));

  const placed = new Array<PlacedChunk>(chunks.length);
  const loads = members.map((own, server): ServerLoad => {
    const ownBytes = own.map((i) => bytes[i]!);
    const byCore = assignLargestFirst(ownBytes, coresPerServer);
    const byInterface = assignLargestFirst(ownBytes, interfacesPerServer);
    own.forEach((i, j) => {
      const { key, index, start, length } = chunks[i]!;
      const place = { server, core: byCore.assignment[j]!, interface: byInterface.assignment[j]! };
      placed[i] = Object.freeze({ key, index, start, length, ...place });
    });
    return Object.freeze({
      chunks: own.length,
      bytes: byServer.loads[server]!,
      bytesByCore: Object.freeze(byCore.loads),
      bytesByInterface: Object.freeze(byInterface.loads),
    });
  });
  return Object.freeze({ chunks: Object.freeze(placed), servers: Object.freeze(loads) });
}

/** For people: a line for each server with its load, its busiest core and interface, and how far these are above the mean. */
export function printPlacement({ chunks, servers }: Placement): string {
  const total = servers.reduce((sum, { bytes }) => sum + bytes, 0);
  const rows = servers.map((load, i) => [
    String(i),
    String(load.chunks),
    megabytes(load.bytes),
    aboveMean(load.bytes, total / servers.length),
    busiest(load.bytesByCore, load.bytes),
    busiest(load.bytesByInterface, load.bytes),
  ]);
  const table = [['server', 'chunks', 'load', 'to the mean', 'busiest core', 'busiest interface'], ...rows];
  const widths = table[0]!.map((_, column) => Math.max(...table.map((row) => row[column]!.length)));
  const lines = table.map((row) => row.map((cell, column) => cell.padStart(widths[column]!)).join('  '));
  const { bytesByCore, bytesByInterface } = servers[0]!;
  const title =
    `${megabytes(total)} in ${counted(chunks.length, 'chunk')} on ${counted(servers.length, 'server')} with ` +
    `${counted(bytesByCore.length, 'core')} and ${counted(bytesByInterface.length, 'interface')}`;
  return [title, ...lines].join('\n');
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

function busiest(loads: readonly number[], total: number): string {
  const most = Math.max(...loads);
  return `${loads.indexOf(most)}: ${aboveMean(most, total / loads.length)}`;
}

function aboveMean(load: number, mean: number): string {
  const percent = (mean === 0 ? 0 : 100 * (load / mean - 1)).toFixed(1);
  if (Number(percent) === 0) return '0.0 %';
  return `${percent.startsWith('-') ? '' : '+'}${percent} %`;
}

function megabytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(2)} MB`;
}
