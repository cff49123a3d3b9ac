/**
 * Drives all connections of this thread to servers: sleeps in the kernel until one of them has something, lets it go on, and
 * returns to the event loop, where whoever awaited it continues. It blocks the thread only while an answer is awaited,
 * a few milliseconds at a time. Invariant: as long as somebody waits there is a turn to come; afterwards there is none,
 * so that a process can end.
 */
import { SharedSpace } from '../../memory/index.ts';
import { POLLIN, POLLOUT, PollSet } from '../../sockets/index.ts';

export interface Pumped {
  /** The descriptor to look at; undefined while there is none. */
  readonly fd: number | undefined;
  readonly hasUnsent: boolean;
  /** Whether an answer is awaited. */
  readonly isWaiting: boolean;
  /** Goes on as far as it can without waiting. */
  step(nowMs: number): void;
}

/** A thread that waits for long is blocked for longer, up to this: every turn costs time that servers here could use. */
const MAX_SLEEP_MS = 16;
const SPACE_BYTES = 4 * 65536;

export class LinePump {
  readonly #poll = new PollSet(SharedSpace.create({ maxBytes: SPACE_BYTES }));
  readonly #lines = new Set<Pumped>();
  #isTurning = false;
  #sleepMs = 1;

  add(line: Pumped): void {
    this.#lines.add(line);
  }

  remove(line: Pumped): void {
    this.#lines.delete(line);
  }

  /** Somebody waits from now on. */
  wake(): void {
    if (this.#isTurning) return;
    this.#isTurning = true;
    setImmediate(() => this.#turn());
  }

  #turn(): void {
    const nowMs = performance.now();
    for (const line of this.#lines) line.step(nowMs);
    const waiting = [...this.#lines].filter(({ isWaiting }) => isWaiting);
    if (waiting.length === 0) {
      this.#isTurning = false;
      return;
    }
    this.#poll.clear();
    for (const { fd, hasUnsent } of waiting) {
      if (fd !== undefined) this.#poll.add(fd, hasUnsent ? POLLIN | POLLOUT : POLLIN);
    }
    const found = this.#poll.wait(this.#sleepMs);
    this.#sleepMs = found > 0 ? 1 : Math.min(MAX_SLEEP_MS, 2 * this.#sleepMs);
    const wokenMs = performance.now();
    for (const line of waiting) line.step(wokenMs);
    setImmediate(() => this.#turn());
  }
}

let ofThisThread: LinePump | undefined;

/** One for a thread: stores of one thread must not wait for each other. */
export function linePump(): LinePump {
  ofThisThread ??= new LinePump();
  return ofThisThread;
}
