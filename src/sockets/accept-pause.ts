/**
 * What to do when the kernel has no descriptor or no memory for a connection that waits: leave the listening socket alone for a
 * while, since it stays readable and asking again at once would take a whole processor, and say so in the log, once a
 * minute at most. It owns no socket and no clock. Invariant: connections that wait are looked at again within a second.
 */
import { closeSync, openSync } from 'node:fs';
import { EMFILE, ENFILE, ENOBUFS, ENOMEM, errorName } from './libc.ts';

const FIRST_PAUSE_MS = 20;
const LONGEST_PAUSE_MS = 1000;
const LOG_INTERVAL_MS = 60_000;

const REASONS: ReadonlyMap<number, string> = new Map([
  [
    -EMFILE,
    'this process has no file descriptor left; raise the limit (ulimit -n) or open fewer connections',
  ],
  [-ENFILE, 'this machine has no file descriptor left; raise it (sysctl fs.file-max) or end other processes'],
  [-ENOBUFS, 'the kernel has no memory left for sockets; end other processes or use fewer connections'],
  [-ENOMEM, 'the kernel has no memory left for sockets; end other processes or use fewer connections'],
]);

export class AcceptPause {
  readonly #log: (line: string) => void;
  #untilMs = -Infinity;
  #pauseMs = FIRST_PAUSE_MS;
  #loggedAtMs = -Infinity;

  constructor(log: (line: string) => void) {
    this.#log = log;
  }

  /** How long to leave the socket alone, in milliseconds; 0: look at it. */
  waitMs(nowMs: number): number {
    return Math.max(0, this.#untilMs - nowMs);
  }

  /** Takes the negative errno of an accept; whether it means that there is to be a pause, which begins now. */
  failed(result: number, nowMs: number): boolean {
    const reason = REASONS.get(result);
    if (reason === undefined) return false;
    this.#untilMs = nowMs + this.#pauseMs;
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    if (nowMs - this.#loggedAtMs >= LOG_INTERVAL_MS) {
      this.#loggedAtMs = nowMs;
      this.#log(`cannot accept connections (${errorName(result)}): ${reason}`);
    }
    return true;
  }

  /** A connection was accepted. */
  succeeded(): void {
    this.#pauseMs = FIRST_PAUSE_MS;
  }
}

/**
 * What an accept would give now if descriptors are out, else 0: the negative errno. For servers of Node, which then drop
 * connections without a word.
 */
export function probeDescriptors(): number {
  try {
    closeSync(openSync('/dev/null', 'r'));
    return 0;
  } catch (error) {
    return (error as NodeJS.ErrnoException).errno ?? 0;
  }
}
