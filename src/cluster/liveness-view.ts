/**
 * What a process knows of who is gone, on shared memory: written by the thread that holds the connection to the
 * scheduler, read by any thread at any time, also by one that never yields. It is a hint of the scheduler's; transports
 * see deaths of their own. Invariant: the epoch changes after the words it tells of, so a reader who sees the new
 * epoch sees them.
 */
import { MAX_MEMBERS } from './messages.ts';
import type { LeaveReason } from './messages.ts';

/** The int32 words of the view. */
export const LivenessWord = {
  /** Counts the changes (modulo 2^32). */
  EPOCH: 0,
  /** 1 once the scheduler is lost. */
  SCHEDULER_LOST: 1,
  /** Processes that wait for a regroup. */
  NEWCOMERS: 2,
  /** The first of one word for each member: 0, or how it went. */
  MEMBERS: 8,
} as const;
const WORDS = LivenessWord.MEMBERS + MAX_MEMBERS;

/** The value of a member's word is the index. */
export const LEAVE_REASONS: readonly (LeaveReason | undefined)[] = [undefined, 'closed', 'lost', 'silent'];

export class LivenessView {
  readonly #words: Int32Array<SharedArrayBuffer>;

  /** A view on the buffer of another one, which may be of another thread; without it, of a new one. */
  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(4 * WORDS)) {
    this.#words = new Int32Array(buffer);
  }

  /** For a view in another thread. */
  get buffer(): SharedArrayBuffer {
    return this.#words.buffer;
  }

  /** Changes whenever something here does; compare for equality only. */
  get epoch(): number {
    return Atomics.load(this.#words, LivenessWord.EPOCH);
  }

  get schedulerLost(): boolean {
    return Atomics.load(this.#words, LivenessWord.SCHEDULER_LOST) !== 0;
  }

  /** How many processes wait for a regroup. */
  get newcomers(): number {
    return Atomics.load(this.#words, LivenessWord.NEWCOMERS);
  }

  /** How a member went; undefined while it lives, or if it was gone before this process joined. */
  reasonOf(member: number): LeaveReason | undefined {
    return LEAVE_REASONS[Atomics.load(this.#words, LivenessWord.MEMBERS + member)];
  }

  /** Members that are gone, in whatever way. Reads every word: look at `epoch` first where it matters. */
  lostMembers(): number[] {
    const lost: number[] = [];
    for (let member = 0; member < MAX_MEMBERS; member++) {
      if (Atomics.load(this.#words, LivenessWord.MEMBERS + member) !== 0) lost.push(member);
    }
    return lost;
  }

  /** Blocks the thread until the epoch is another one; false if it still is the same after that time. */
  waitForChange(epoch: number, timeoutMs: number): boolean {
    return Atomics.wait(this.#words, LivenessWord.EPOCH, epoch, timeoutMs) !== 'timed-out';
  }
}
