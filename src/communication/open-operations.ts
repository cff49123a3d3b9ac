/**
 * The operations that the caller has given to its communication thread: their slots among the shared words, how they
 * ended, and waiting for them. Invariants: a slot belongs to one operation until the caller has learnt how it ended; no
 * wait outlasts the thread, or the operation's deadline by more than `GRACE_MS`.
 */
import { InternalError, UsageError } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import { MAX_SLOTS, Outcome } from './shared-words.ts';
import type { SharedWords } from './shared-words.ts';
import { ThreadHandle } from './thread-handle.ts';
import type { HandleHost } from './thread-handle.ts';
import type { CommunicationLink } from './messages.ts';

/** How much longer than an operation's own deadline its thread may take to say how it ended. */
const GRACE_MS = 10_000;
/** Between two looks at whether the thread is alive while blocked on it; also how late its reports are passed on then. */
const LOOK_MS = 100;
/** The same for handles that are awaited; their thread's end comes as an event. */
const WATCH_MS = 1000;
/** Below so many open handles nobody looks for those that were never waited for. */
const SWEEP_AT = 1024;

export class OpenOperations implements HandleHost {
  readonly #link: CommunicationLink;
  readonly #words: SharedWords;
  readonly #defaultDeadlineMs: number;
  readonly #open = new Map<number, ThreadHandle>();
  readonly #failures = new Map<number, TributaryError>();
  readonly #awaited = new Set<ThreadHandle>();
  readonly #free: number[] = [];
  #nextSlot = 0;
  #sweepAt = SWEEP_AT;
  #watch: NodeJS.Timeout | undefined;

  constructor(link: CommunicationLink, words: SharedWords, defaultDeadlineMs: number) {
    this.#link = link;
    this.#words = words;
    this.#defaultDeadlineMs = defaultDeadlineMs;
  }

  /** A handle for an operation that is about to be posted. */
  open(what: string, deadlineMs = this.#defaultDeadlineMs): ThreadHandle {
    if (this.#open.size >= this.#sweepAt) this.#sweep();
    const slot = this.#free.pop() ?? this.#nextSlot++;
    if (slot >= MAX_SLOTS) {
      this.#nextSlot--;
      throw new UsageError(
        'INVALID_ARGUMENT',
        `${this.#open.size} operations are under way; wait for some before starting more`,
        { underWay: this.#open.size, most: MAX_SLOTS },
      );
    }
    this.#words.reset(slot);
    const handle = new ThreadHandle(this, slot, what, performance.now() + deadlineMs + GRACE_MS);
    this.#open.set(slot, handle);
    return handle;
  }

  /** The operation could not be posted. */
  discard(handle: ThreadHandle): void {
    this.#close(handle);
  }

  /** The thread said why an operation failed. */
  failed(slot: number, error: TributaryError): void {
    this.#failures.set(slot, error);
  }

  /** Nothing more comes from the thread: what has not ended has failed. */
  failAll(error: TributaryError): void {
    for (const handle of [...this.#open.values()]) {
      this.look(handle);
      if (this.#open.get(handle.slot) !== handle) continue;
      this.#words.settle(handle.slot, Outcome.FAILED);
      this.#close(handle);
      handle.settle(error);
    }
  }

  look(handle: ThreadHandle): void {
    const outcome = this.#words.outcome(handle.slot);
    if (outcome === Outcome.UNDER_WAY) return;
    if (outcome === Outcome.FAILED) this.#link.drain();
    const error = outcome === Outcome.DONE ? undefined : this.#failures.get(handle.slot);
    // A thread that cannot go on tells so once for all; that has settled the handle during the drain.
    if (this.#open.get(handle.slot) !== handle || (outcome === Outcome.FAILED && !error)) return;
    this.#close(handle);
    handle.settle(error, this.#words.timesOf(handle.slot));
  }

  block(handle: ThreadHandle): void {
    for (;;) {
      this.#words.awaitOutcome(handle.slot, LOOK_MS);
      if (handle.settled) return;
      this.#link.drain();
      this.#link.checkAlive();
      if (handle.settled) return;
      this.#giveUpIfLate(handle);
    }
  }

  follow(handle: ThreadHandle): void {
    this.#awaited.add(handle);
    this.#link.hold();
    this.#watch ??= setInterval(() => this.#checkAwaited(), WATCH_MS).unref();
    void this.#untilSettled(handle).finally(() => {
      this.#link.release();
      this.#awaited.delete(handle);
      if (this.#awaited.size > 0) return;
      clearInterval(this.#watch);
      this.#watch = undefined;
    });
  }

  cancel(handle: ThreadHandle): void {
    if (!this.#link.end) this.#link.post({ kind: 'cancel', slot: handle.slot });
  }

  async #untilSettled(handle: ThreadHandle): Promise<void> {
    while (!handle.settled) await this.#words.outcomeChange(handle.slot);
  }

  #checkAwaited(): void {
    for (const handle of this.#awaited) if (!handle.settled) this.#giveUpIfLate(handle);
  }

  #giveUpIfLate(handle: ThreadHandle): void {
    const lateMs = performance.now() - handle.deadlineMs;
    if (lateMs < 0) return;
    // Wakes whoever awaits it. The slot stays taken until the thread has written to it, if it ever does.
    this.#words.settle(handle.slot, Outcome.FAILED);
    handle.settle(
      new InternalError(
        'BROKEN_INVARIANT',
        `the communication thread has not said how ${handle.what} ended, ${GRACE_MS} ms after its deadline; it may hang in native code: end this process, and please report it`,
        { operation: handle.what, lateMs },
      ),
    );
  }

  /** Frees the slots of operations that have ended and that nobody asks about. */
  #sweep(): void {
    for (const handle of [...this.#open.values()]) this.look(handle);
    this.#sweepAt = Math.max(SWEEP_AT, 2 * this.#open.size);
  }

  #close(handle: ThreadHandle): void {
    this.#failures.delete(handle.slot);
    this.#open.delete(handle.slot);
    this.#free.push(handle.slot);
  }
}
