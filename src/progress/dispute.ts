/**
 * Ranks called different things under one sequence number: collects what each of them called, so that the error on
 * every rank says who said what. It sends nothing itself. Invariant: a dispute is settled when all ranks have
 * spoken or `SPEAK_MS` after the first has, so that nobody waits for one that never calls.
 */
import { PeerError } from '../base/index.ts';
import type { Members } from './operation.ts';

/** How long ranks have to say what they called. */
export const SPEAK_MS = 400;

export class Dispute {
  readonly openedMs: number;
  readonly #called = new Map<number, string>();

  constructor(openedMs: number) {
    this.openedMs = openedMs;
  }

  says(member: number, called: string): void {
    this.#called.set(member, called);
  }

  hasSpoken(member: number): boolean {
    return this.#called.has(member);
  }

  isDue(group: Members, nowMs: number): boolean {
    return this.#called.size >= group.size || nowMs >= this.openedMs + SPEAK_MS;
  }

  error(group: Members): PeerError {
    const lines = group.members.map(
      (member, rank) => `${group.title(rank)}: ${this.#called.get(member) ?? 'has not called anything yet'}`,
    );
    const calls = Object.fromEntries(
      group.members.map((member, rank) => [rank, this.#called.get(member) ?? null]),
    );
    return new PeerError(
      'COLLECTIVE_MISMATCH',
      `the ranks of group ${group.id} called different things where they should call the same. ${lines.join('; ')}. Call the same collective with the same type, length, operation and name on all ranks, in the same order, or give calls that may come in any order different tags.`,
      { group: group.id, calls },
    );
  }
}
