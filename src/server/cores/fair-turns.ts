/**
 * Whose turn it is on a core: tenants share its time, whatever they ask for and over however many connections. Each gets a
 * little time in a round; one that took longer, because what it asked for cannot be cut, waits until the others have had as
 * much. It knows tenants as objects only. Invariants: as long as somebody is ready somebody is served; a tenant that is
 * alone never waits.
 */
import type { Clock } from '../../base/index.ts';

/** Short enough that a neighbour who never stops adds little to an exchange; many times as long as asking the kernel. */
export const TURN_MS = 0.25;

export class FairTurns<Member extends object> {
  readonly #clock: Clock;
  /** Milliseconds that a group may use; below 0: that it has used beyond its share. */
  readonly #balances = new WeakMap<object, number>();
  #deadlineMs = Infinity;
  #rounds = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Whether who is served now has had its time. */
  readonly isOver = (): boolean => this.#clock.nowMs() >= this.#deadlineMs;

  /** One round: serves members that are ready, those of a group one after the other until its time is over. */
  serve(
    ready: readonly Member[],
    groupOf: (member: Member) => object,
    serve: (member: Member) => void,
  ): void {
    const groups = new Map<object, Member[]>();
    for (const member of ready) {
      const group = groupOf(member);
      const members = groups.get(group);
      if (members) members.push(member);
      else groups.set(group, [member]);
    }
    const round = this.#rounds++;
    // If all have used too much, nobody need wait for the one that used least.
    const most = Math.max(...[...groups.keys()].map((group) => this.#balances.get(group) ?? 0));
    const more = TURN_MS - Math.min(0, most);
    for (const [group, members] of rotated([...groups], round)) {
      const balance = Math.min(TURN_MS, (this.#balances.get(group) ?? 0) + more);
      this.#balances.set(group, balance);
      if (balance <= 0) continue;
      const startMs = this.#clock.nowMs();
      this.#deadlineMs = startMs + balance;
      for (const member of rotated(members, round)) {
        serve(member);
        if (this.isOver()) break;
      }
      this.#balances.set(group, balance - (this.#clock.nowMs() - startMs));
    }
    this.#deadlineMs = Infinity;
  }
}

function rotated<T>(list: readonly T[], by: number): readonly T[] {
  const at = by % list.length;
  return at === 0 ? list : [...list.slice(at), ...list.slice(0, at)];
}
