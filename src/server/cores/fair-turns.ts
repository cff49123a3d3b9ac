/**
 * Whose turn it is on a core: tenants share its time, whatever they ask for and over however many connections. Each
 * gets a little time in a round; one that took longer, because what it asked for cannot be cut, waits until the
 * others have had as much. It knows tenants as objects only. Terms: a debt is time used beyond that; a large one is
 * paid by time that passes, also while nobody else is ready, since whoever waits for its answer asks again a moment
 * later. Invariants: as long as somebody without a large debt is ready somebody is served; a tenant that is alone
 * never waits.
 */
import type { Clock } from '../../base/index.ts';

/**
 * Short enough that a neighbour who never stops adds little to an exchange; many times as long as asking the kernel.
 */
export const TURN_MS = 0.25;
/** Below this a debt is forgiven when nobody else is ready; the kernel's sleep is not shorter. */
export const LARGE_DEBT_MS = 1;
/** Who was ready so lately may be about to ask again. */
const ACTIVE_MS = 5;

export class FairTurns {
  readonly #clock: Clock;
  /** Milliseconds that a group may use; below 0: that it has used beyond its share. */
  readonly #balances = new WeakMap<object, number>();
  /** Until when large debts are paid. */
  readonly #paidAtMs = new WeakMap<object, number>();
  /** Who was ready last, and who last before that was another one. */
  #latest: { readonly group: object | undefined; readonly atMs: number } = {
    group: undefined,
    atMs: -Infinity,
  };
  #before = this.#latest;
  /** When who is served now has had its time; between rounds nobody has any. */
  #deadlineMs = -Infinity;
  #rounds = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Whether who is served now has had its time. */
  readonly isOver = (): boolean => this.#clock.nowMs() >= this.#deadlineMs;

  /** How long the group is not served, whoever else is ready, in milliseconds; 0: it may be. */
  waitMs(group: object): number {
    const nowMs = this.#clock.nowMs();
    const debtMs = -(this.#balances.get(group) ?? 0);
    const leftMs = debtMs - LARGE_DEBT_MS - (nowMs - (this.#paidAtMs.get(group) ?? nowMs));
    return Math.max(0, Math.min(leftMs, this.#otherAtMs(group) + ACTIVE_MS - nowMs));
  }

  /** Time that was used for the group outside of its turns, in milliseconds, until now. */
  charge(group: object, usedMs: number): void {
    const nowMs = this.#clock.nowMs();
    this.#pay(group, nowMs - usedMs, 0);
    this.#balances.set(group, (this.#balances.get(group) ?? 0) - usedMs);
    this.#paidAtMs.set(group, nowMs);
  }

  /** One round: serves members that are ready, those of a group one after the other until its time is over. */
  serve<Member extends object>(
    ready: readonly Member[],
    groupOf: (member: Member) => object,
    serve: (member: Member) => void,
  ): void {
    if (ready.length === 0) return;
    const groups = new Map<object, Member[]>();
    for (const member of ready) {
      const group = groupOf(member);
      const members = groups.get(group);
      if (members) members.push(member);
      else groups.set(group, [member]);
    }
    const round = this.#rounds++;
    const nowMs = this.#clock.nowMs();
    for (const group of groups.keys()) this.#note(group, nowMs);
    for (const group of groups.keys()) this.#pay(group, nowMs, groups.size - 1);
    // If all have used too much, nobody need wait for the one that used least.
    const most = Math.max(...[...groups.keys()].map((group) => this.#balances.get(group) ?? 0));
    const isAwaited = groups.size === 1 && this.waitMs([...groups.keys()][0]!) > 0;
    const forgiven = isAwaited ? 0 : -Math.min(0, most);
    for (const [group, members] of rotated([...groups], round)) {
      const before = (this.#balances.get(group) ?? 0) + forgiven;
      const balance = before > -LARGE_DEBT_MS ? Math.min(TURN_MS, before + TURN_MS) : before;
      this.#balances.set(group, balance);
      if (balance <= 0) continue;
      const startMs = this.#clock.nowMs();
      this.#deadlineMs = startMs + balance;
      for (const member of rotated(members, round)) {
        serve(member);
        if (this.isOver()) break;
      }
      const endMs = this.#clock.nowMs();
      this.#balances.set(group, balance - (endMs - startMs));
      this.#paidAtMs.set(group, endMs);
    }
    this.#deadlineMs = -Infinity;
  }

  #note(group: object, atMs: number): void {
    if (this.#latest.group !== group) this.#before = this.#latest;
    this.#latest = { group, atMs };
  }

  /** When another group was ready last. */
  #otherAtMs(group: object): number {
    return this.#latest.group === group ? this.#before.atMs : this.#latest.atMs;
  }

  /** Time that the others had, or could have had, pays a large debt; so many others share it. */
  #pay(group: object, nowMs: number, others: number): void {
    const balance = this.#balances.get(group) ?? 0;
    if (balance > -LARGE_DEBT_MS) return;
    const passedMs = nowMs - (this.#paidAtMs.get(group) ?? nowMs);
    this.#paidAtMs.set(group, nowMs);
    this.#balances.set(group, Math.min(0, balance + passedMs / Math.max(1, others)));
  }
}

function rotated<T>(list: readonly T[], by: number): readonly T[] {
  const at = by % list.length;
  return at === 0 ? list : [...list.slice(at), ...list.slice(0, at)];
}
