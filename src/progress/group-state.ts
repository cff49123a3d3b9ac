/**
 * What the engine remembers of one group: how many operations of each tag have begun, whether a member is lost, and who
 * has no more data. Invariant: sequences of a tag begin in order, without gaps, on every rank; a joined rank takes
 * part under the numbers that the others give.
 */
import type { PeerError } from '../base/index.ts';
import type { JoinNotice } from './notices.ts';
import type { Members } from './operation.ts';

export class GroupState {
  readonly group: Members;
  broken: PeerError | undefined;
  /** Members without data, with the first sequence of each tag to which they contribute nothing. */
  joined = new Map<number, ReadonlyMap<number, number>>();
  /** Counts how often all ranks have joined. */
  round = 0;
  readonly #next = new Map<number, number>();
  #joining = false;
  /** Notices of ranks that are a round ahead. */
  #ahead: { member: number; notice: JoinNotice }[] = [];

  constructor(group: Members) {
    this.group = group;
  }

  /** Whether this rank has joined and waits for the others to. */
  get isJoining(): boolean {
    return this.#joining;
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

  join(): [number, number][] {
    this.#joining = true;
    this.joined.set(this.group.members[this.group.rank]!, new Map(this.#next));
    return [...this.#next];
  }

  /** Another rank joined; false if that is not of this round. */
  hear(member: number, notice: JoinNotice): boolean {
    if (notice.round === this.round + 1) this.#ahead.push({ member, notice });
    if (notice.round !== this.round) return false;
    this.joined.set(member, new Map(notice.from));
    return true;
  }

  endRound(): void {
    this.#joining = false;
    this.joined = new Map();
    this.round++;
    const ahead = this.#ahead;
    this.#ahead = [];
    for (const { member, notice } of ahead) this.hear(member, notice);
  }
}
