/**
 * Which processes can share memory: those that give the same host identity. It names the boot (two machines never
 * have the same), the network namespace (each stands for a host of its own), the shared-memory file system (two
 * containers on one machine have two), and the folder in it, which is that of a user: no user can open segments of
 * another. Invariant: doubt gives different identities, because TCP always works.
 */
import { readFileSync, readlinkSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname } from 'node:path';
import { defaultSegmentDirectory } from '../memory/index.ts';

/** Equal for processes that can map the same segments; begins with the host's name, for reading. */
export function hostIdentity(): string {
  const parts = [bootId(), networkNamespace(), sharedMemoryDevice()];
  // An unknown part must not look equal to the unknown part of another machine.
  const known = parts.map((part) => part ?? `process-${process.pid}-${performance.timeOrigin}`);
  return `${hostname()}/${known.join('/')}`;
}

function bootId(): string | undefined {
  return attempt(() => readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim());
}

function networkNamespace(): string | undefined {
  return attempt(() => /\[(\d+)\]/.exec(readlinkSync('/proc/self/ns/net'))?.[1]);
}

function sharedMemoryDevice(): string | undefined {
  return attempt(() => {
    const folder = defaultSegmentDirectory();
    return `${statSync(dirname(folder)).dev}:${folder.replaceAll('/', ':')}`;
  });
}

function attempt(read: () => string | undefined): string | undefined {
  try {
    return read() || undefined;
  } catch {
    return undefined;
  }
}
