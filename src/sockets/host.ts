/**
 * What a process has of its machine: time, random bytes, socket calls and files. Handed down from where a server or a
 * store starts, so that a simulation can give each of its processes a machine of its own. Threads are in `server/`,
 * which alone has any to pass. Invariant: code below a host never takes these from the system by itself.
 */
import { randomBytes } from 'node:crypto';
import { systemClock } from '../base/index.ts';
import type { Clock } from '../base/index.ts';
import { lockableFiles } from '../memory/index.ts';
import type { LockableFiles } from '../memory/index.ts';
import { libc } from './libc.ts';
import type { Libc } from './libc.ts';

export interface Host {
  readonly clock: Clock;
  readonly files: LockableFiles;
  /** Socket calls; nothing native is loaded before the first use. */
  readonly libc: Libc;
  /** So many bytes that nobody can guess, as hexadecimal digits. */
  readonly randomHex: (bytes: number) => string;
}

/** The machine that this process really runs on. */
export const systemHost: Host = {
  clock: systemClock,
  files: lockableFiles,
  get libc() {
    return libc();
  },
  randomHex: (bytes) => randomBytes(bytes).toString('hex'),
};
