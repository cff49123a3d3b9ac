/**
 * What the engine remembers of one group: how many operations of each tag have begun, whether a member is lost, and who
 * has no more data. Invariants: sequences of a tag begin in order, without gaps, on every rank; a joined rank takes
 * part under the numbers that the others give; ranks join in rounds, and the number of a round is that of its joins, so
 * that ranks agree on it even if a join succeeded on some and failed on others.
 */
import type { PeerError } from '../base/index.ts';
import type { OperationKey } from '../transport/index.ts';
import type { JoinNotice } from './notices.ts';
import type { Members } from './operation.ts';

export class GroupState {
  readonly group: Members;
  broken: PeerError | undefined;
  /** Members that have joined in this round, with the first sequence of each tag to which they contribute nothing. */
  joined = new Map<number, ReadonlyMap<number, number>>();
  /** The sequence of the joins that are under way or come next; earlier ones have ended, well or not. */
  round = 0;
  readonly #next = new Map<number, number>();
  /** The tag of joins, once somebody has joined. */
  #joinTag: number | undefined;
  /** What members said that are rounds ahead, while this rank has not heard of all joins of its own round. */
  readonly #ahead = new Map<number, JoinNotice>();

  constructor(group: Members) {
    this.group = group;
  }

  /** Whether this rank has joined and waits for the others to. */
  get isJoining(): boolean {
    return this.joined.has(this.#self);
  }

  /** The number of the next operation with this tag; `given` if another rank has numbered it. */
  begin(tag: number, given: number | undefined): number {
    const sequence = given ?? this.#next.get(tag) ?? 0;
    this.#next.set(tag, Math.max(sequence + 1, this.#next.get(tag) ?? 0));
    return sequence;
  }

  hasBegun(tag: number, sequence: number): boolean {
    return sequence < (this.#next.get(tag) ?? 0);
  }

  contributes(member: number, tag: number, sequence: number): boolean {
    const from = this.joined.get(member);
    return from === undefined || sequence < (from.get(tag) ?? 0);
  }

  /** This rank joins; returns the first sequence of each tag to which it contributes nothing. */
  join({ tag, sequence }: OperationKey): [number, number][] {
    this.#joinTag = tag;
    if (sequence > this.round) this.#turnTo(sequence);
    this.joined.set(this.#self, new Map(this.#next));
    return [...this.#next];
  }

  /** Another rank joined; false if that does not count yet, or no more. */
  hear(member: number, notice: JoinNotice): boolean {
    if (notice.sequence < this.round) return false;
    this.#joinTag = notice.tag;
    if (notice.sequence > this.round) {
      if (this.isJoining) {
        this.#ahead.set(member, notice);
        return false;
      }
      // A round in which this rank has not joined is behind others only because it failed there.
      this.#turnTo(notice.sequence);
    }
    this.joined.set(member, new Map(notice.from));
    return true;
  }

  /** A member left an operation: if that was its join, the round is over for all that had joined. */
  leave(member: number, { tag, sequence }: OperationKey): void {
    if (tag !== this.#joinTag) return;
    if (this.#ahead.get(member)?.sequence === sequence) this.#ahead.delete(member);
    if (sequence === this.round) this.endRound();
  }

  endRound(): void {
    this.#turnTo(this.round + 1);
  }

  get #self(): number {
    return this.group.members[this.group.rank]!;
  }

  #turnTo(round: number): void {
    this.round = round;
    this.joined = new Map();
    const ahead = [...this.#ahead];
    this.#ahead.clear();
    for (const [member, notice] of ahead) this.hear(member, notice);
  }
}
