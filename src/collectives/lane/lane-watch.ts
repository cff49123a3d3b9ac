/**
 * Looks after a wait in the lane that has become long: a member that died is named by its error, one that merely stands
 * still is reported and, at the deadline, given up. Invariant: a wait that is looked after ends, with a name.
 */
import { PeerError } from '../../base/index.ts';
import type { Group } from '../../cluster/index.ts';

const WHAT = 'allreduce (direct, in memory that the ranks share)';
const ADVICE =
  'Find out what stopped it, and form a group anew with cluster.regroup(). As long as it lives it may still write to the vector.';
/** After this the processor is given up between two looks. */
const SLEEP_AFTER_MS = 2;

/** When a caller wants to have waited long enough. */
export interface LaneLimits {
  /** Default: that of the cluster. */
  readonly deadlineMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

export class LaneWatch {
  readonly #group: Group;
  readonly #rank: number;
  readonly #limits: LaneLimits;
  readonly #startedMs = performance.now();
  #reportMs: number;

  constructor(group: Group, rank: number, limits: LaneLimits) {
    this.#group = group;
    this.#rank = rank;
    this.#limits = limits;
    this.#reportMs = this.#startedMs + group.progress.stallAfterMs;
  }

  /** Why the wait is over, or undefined if it goes on. */
  look(): PeerError | undefined {
    const { progress, members } = this.#group;
    const waitedMs = performance.now() - this.#startedMs;
    progress.lookForLosses(waitedMs > SLEEP_AFTER_MS ? 1 : 0);
    if (progress.isLost(members[this.#rank]!)) return this.#group.broken;
    if (performance.now() >= this.#reportMs) this.#report(waitedMs);
    if (this.#limits.signal?.aborted) return this.#cancelled(waitedMs);
    return waitedMs >= (this.#limits.deadlineMs ?? progress.deadlineMs) ? this.#late(waitedMs) : undefined;
  }

  #report(waitedMs: number): void {
    const { id, rank, progress } = this.#group;
    this.#reportMs = performance.now() + progress.stallAfterMs;
    progress.onStall({
      group: id,
      operation: WHAT,
      rank,
      waitedMs,
      missing: [this.#rank],
      waiting: [{ rank, waitsFor: [this.#rank] }],
      text: this.#text(waitedMs),
    });
  }

  #text(waitedMs: number): string {
    const { id, rank } = this.#group;
    const who = this.#group.title(this.#rank);
    return `${WHAT} of group ${id} has waited ${(waitedMs / 1000).toFixed(1)} s; missing: ${who}. rank ${rank} waits for rank ${this.#rank}, which has come but does not finish.`;
  }

  #late(waitedMs: number): PeerError {
    const { id, rank } = this.#group;
    return new PeerError('TIMEOUT', `${this.#text(waitedMs)} ${ADVICE}`, {
      group: id,
      rank,
      missing: [this.#rank],
      waitedMs,
    });
  }

  #cancelled(waitedMs: number): PeerError {
    const { id, rank } = this.#group;
    return new PeerError(
      'CANCELLED',
      `Cancelled by ${this.#group.title(rank)}: ${this.#text(waitedMs)} ${ADVICE}`,
      {
        group: id,
        rank,
        missing: [this.#rank],
        waitedMs,
      },
    );
  }
}
