/**
 * The words that both threads look at: the doorbell by which the caller wakes the communication thread, and one word for
 * each operation by which the thread says that it has ended. Messages go by a port; these words only tell that
 * there is something. Invariant: what a word announces was posted before the word changed.
 */
import { isThreadAlive, systemThreadId } from '../base/index.ts';

/** What the word of an operation says. */
export const Outcome = { UNDER_WAY: 0, DONE: 1, FAILED: 2 } as const;

/** Operations that may be under way, or ended and not looked at, at one time. */
export const MAX_SLOTS = 65536;

const DOORBELL = 0;
const SLEEPING = 1;
/** The thread's number in the system, 0 where that cannot be found out. */
const THREAD_ID = 2;
/** 1 while the caller is blocked on an operation. */
const CALLER_WAITS = 3;
/** Apart from the outcomes by a cache line, which the other side writes. */
const FIRST_SLOT = 16;

const WORDS = FIRST_SLOT + MAX_SLOTS;

/** Milliseconds since 1970, as finely as the clock goes. */
export interface OperationTimes {
  readonly startedMs: number;
  readonly endedMs: number;
}

function wallMs(): number {
  return performance.timeOrigin + performance.now();
}

/** Not in the library of types that the project is compiled with. */
interface AsyncAtomics {
  waitAsync(
    this: void,
    words: Int32Array,
    index: number,
    expected: number,
  ): { readonly async: true; readonly value: Promise<string> } | { readonly async: false };
}

export class SharedWords {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  /** When the operation of each slot began and ended. */
  readonly #times: Float64Array;

  constructor(buffer = new SharedArrayBuffer(4 * WORDS + 8 * 2 * MAX_SLOTS)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, WORDS);
    this.#times = new Float64Array(buffer, 4 * WORDS);
  }

  /** The thread's side: the operation is about to be started. */
  begin(slot: number): void {
    this.#times[2 * slot] = wallMs();
  }

  /** Of an operation that has ended, on the clock of `performance.timeOrigin`, which all threads share. */
  timesOf(slot: number): OperationTimes {
    return { startedMs: this.#times[2 * slot]!, endedMs: this.#times[2 * slot + 1]! };
  }

  /** The caller's side: there are commands. Post them first. */
  ring(): void {
    Atomics.add(this.#words, DOORBELL, 1);
    if (Atomics.load(this.#words, SLEEPING) !== 0) Atomics.notify(this.#words, DOORBELL);
  }

  /** How often the bell has been rung. */
  get rings(): number {
    return Atomics.load(this.#words, DOORBELL);
  }

  /** The thread's side: sleeps until the bell has been rung since it stood at `rings`. */
  sleep(rings: number, timeoutMs: number): void {
    Atomics.store(this.#words, SLEEPING, 1);
    Atomics.wait(this.#words, DOORBELL, rings, timeoutMs);
    Atomics.store(this.#words, SLEEPING, 0);
  }

  outcome(slot: number): number {
    return Atomics.load(this.#words, FIRST_SLOT + slot);
  }

  reset(slot: number): void {
    Atomics.store(this.#words, FIRST_SLOT + slot, Outcome.UNDER_WAY);
  }

  settle(slot: number, outcome: typeof Outcome.DONE | typeof Outcome.FAILED): void {
    this.#times[2 * slot + 1] = wallMs();
    Atomics.store(this.#words, FIRST_SLOT + slot, outcome);
    Atomics.notify(this.#words, FIRST_SLOT + slot);
  }

  /** Blocks while the operation is under way, at most so long. */
  awaitOutcome(slot: number, timeoutMs: number): void {
    Atomics.store(this.#words, CALLER_WAITS, 1);
    Atomics.wait(this.#words, FIRST_SLOT + slot, Outcome.UNDER_WAY, timeoutMs);
    Atomics.store(this.#words, CALLER_WAITS, 0);
  }

  /** The thread's side: whether the caller is blocked, so that its processor has nothing else to do. */
  get isCallerWaiting(): boolean {
    return Atomics.load(this.#words, CALLER_WAITS) !== 0;
  }

  /** Resolves when the operation may have ended. It does not keep the process alive. */
  async outcomeChange(slot: number): Promise<void> {
    const { waitAsync } = Atomics as unknown as AsyncAtomics;
    const change = waitAsync(this.#words, FIRST_SLOT + slot, Outcome.UNDER_WAY);
    if (change.async) await change.value;
  }

  /** The thread's side: notes which thread of the system it is. */
  enrol(): void {
    Atomics.store(this.#words, THREAD_ID, systemThreadId());
  }

  /** Whether the thread runs, as far as the system says; true also for a caller that is blocked and gets no events. */
  get isThreadAlive(): boolean {
    return isThreadAlive(Atomics.load(this.#words, THREAD_ID));
  }
}
