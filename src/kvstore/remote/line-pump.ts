/**
 * Drives all connections of this thread to servers: sleeps in the kernel until one of them has
 * something, lets it go on, and returns to the event loop, where whoever awaited it continues. It
 * blocks the thread only while an answer is awaited, a few milliseconds at a time; another thread
 * that has something to say ends that by a bell. Invariant: as long as somebody waits there is a
 * turn to come; afterwards there is none, so that a process can end.
 */
import { asTributaryError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import { POLLIN, POLLOUT, PollSet } from '../../sockets/index.ts';
import type { Host } from '../../sockets/index.ts';

export interface Pumped {
  /** The descriptor to look at; undefined while there is none. */
  readonly fd: number | undefined;
  readonly hasUnsent: boolean;
  /** Whether an answer is awaited. */
  readonly isWaiting: boolean;
  /** Goes on as far as it can without waiting. */
  step(nowMs: number): void;
  /** Ends it; whoever waits for an answer gets the error. */
  close(error: TributaryError): void;
}

/**
 * How another thread reaches this one while it sleeps in the kernel, where it hears no messages.
 */
export interface PumpBell {
  /** Readable once it was rung. */
  readonly fd: number;
  /** This thread is about to sleep. True: something was said already, so that it must not. */
  readonly asleep: () => boolean;
  /** It sleeps no more. `isRung`: because of the bell. */
  readonly awake: (isRung: boolean) => void;
}

/** A thread that waits for long is blocked for longer, up to this: every turn costs time that servers here could use. */
const MAX_SLEEP_MS = 16;
const SPACE_BYTES = 4 * 65536;

export class LinePump {
  readonly #host: Host;
  readonly #poll: PollSet;
  readonly #lines = new Set<Pumped>();
  #isTurning = false;
  #sleepMs = 1;
  #bell: PumpBell | undefined;

  /** `space`: where it keeps what it asks the kernel. Default: a small one of its own. */
  constructor(host: Host, space = SharedSpace.create({ maxBytes: SPACE_BYTES })) {
    this.#host = host;
    this.#poll = new PollSet(space, host.libc);
  }

  add(line: Pumped): void {
    this.#lines.add(line);
  }

  remove(line: Pumped): void {
    this.#lines.delete(line);
  }

  hear(bell: PumpBell): void {
    this.#bell = bell;
  }

  /** Somebody waits from now on. */
  wake(): void {
    if (this.#isTurning) return;
    this.#isTurning = true;
    this.#host.clock.soon(() => this.#turn());
  }

  #turn(): void {
    const nowMs = this.#host.clock.nowMs();
    for (const line of this.#lines) step(line, nowMs);
    const waiting = [...this.#lines].filter(({ isWaiting }) => isWaiting);
    if (waiting.length === 0) {
      this.#isTurning = false;
      return;
    }
    this.#poll.clear();
    for (const { fd, hasUnsent } of waiting) {
      if (fd !== undefined) this.#poll.add(fd, hasUnsent ? POLLIN | POLLOUT : POLLIN);
    }
    const found = this.#sleep();
    this.#sleepMs = found > 0 ? 1 : Math.min(MAX_SLEEP_MS, 2 * this.#sleepMs);
    const wokenMs = this.#host.clock.nowMs();
    for (const line of waiting) step(line, wokenMs);
    this.#host.clock.soon(() => this.#turn());
  }

  /** Returns on how many something happened. */
  #sleep(): number {
    const bell = this.#bell;
    if (bell === undefined) return this.#poll.wait(this.#sleepMs);
    const place = this.#poll.add(bell.fd, POLLIN);
    const found = this.#poll.wait(bell.asleep() ? 0 : this.#sleepMs);
    const isRung = this.#poll.found(place) !== 0;
    if (isRung) this.#host.libc.hush(bell.fd);
    bell.awake(isRung);
    return found;
  }
}

/** One that fails must not stop the others. */
function step(line: Pumped, nowMs: number): void {
  try {
    line.step(nowMs);
  } catch (error) {
    line.close(asTributaryError(error));
  }
}

const pumps = new WeakMap<Host, LinePump>();

/** One for the thread that a host stands for: stores of one thread must not wait for each other. */
export function linePumpOf(host: Host, space?: SharedSpace): LinePump {
  let pump = pumps.get(host);
  if (pump === undefined) pumps.set(host, (pump = new LinePump(host, space)));
  return pump;
}
