/**
 * What is known about an operation that has waited long: who was asked, what they answered, and the report that names
 * the rank nobody can do without. It sends nothing itself. Invariant: every other rank of the group is either known by
 * its answer or named as silent.
 */
import type { AnswerNotice } from './notices.ts';
import type { Operation } from './operation.ts';

export interface StallReport {
  readonly group: number;
  readonly operation: string;
  readonly rank: number;
  readonly waitedMs: number;
  /** Ranks that have not called the operation, or do not answer. */
  readonly missing: readonly number[];
  /** Who waits for whom, by rank. */
  readonly waiting: readonly { readonly rank: number; readonly waitsFor: readonly number[] }[];
  /** The whole report as a sentence. */
  readonly text: string;
}

/** How long the others have for their answers. */
export const ANSWER_MS = 250;

export class Stall {
  readonly askedMs: number;
  readonly #operation: Operation;
  readonly #hasLeft: (member: number) => boolean;
  readonly #answers = new Map<number, AnswerNotice>();

  /** Whoever has left in order, and is not waited for, has done its part and need not answer. */
  constructor(operation: Operation, askedMs: number, hasLeft: (member: number) => boolean) {
    this.#operation = operation;
    this.askedMs = askedMs;
    this.#hasLeft = hasLeft;
  }

  answer(member: number, answer: AnswerNotice): void {
    this.#answers.set(member, answer);
  }

  isDue(nowMs: number): boolean {
    return this.#answers.size >= this.#operation.group.size - 1 || nowMs >= this.askedMs + ANSWER_MS;
  }

  report(nowMs: number): StallReport {
    const operation = this.#operation;
    const { group } = operation;
    const waitedMs = nowMs - operation.startedMs;
    const missing: number[] = [];
    const own = operation.waitsFor();
    const waiting = [{ rank: group.rank, waitsFor: own }];
    const sentences = [`rank ${group.rank} waits for ${ranks(own)}`];
    group.members.forEach((member, rank) => {
      if (rank === group.rank) return;
      const answer = this.#answers.get(member);
      if (!answer && this.#hasLeft(member)) {
        sentences.push(`rank ${rank} has finished it and left`);
      } else if (!answer) {
        missing.push(rank);
        sentences.push(`${group.title(rank)} does not answer`);
      } else if (answer.state === 'not started') {
        missing.push(rank);
        sentences.push(`${group.title(rank)} has not called it (${answer.doing})`);
      } else if (answer.state === 'waiting') {
        const waitsFor = answer.waitsFor.map((other) => group.members.indexOf(other)).filter((at) => at >= 0);
        waiting.push({ rank, waitsFor });
        sentences.push(`rank ${rank} waits for ${ranks(waitsFor)}`);
      } else {
        sentences.push(`rank ${rank} has finished it`);
      }
    });
    const named =
      missing.length > 0 ? `; missing: ${missing.map((rank) => group.title(rank)).join(', ')}` : '';
    const text =
      `${operation.call.describe()} of group ${group.id} has waited ${(waitedMs / 1000).toFixed(1)} s` +
      `${named}. ${sentences.join('; ')}.`;
    return {
      group: group.id,
      operation: operation.call.describe(),
      rank: group.rank,
      waitedMs,
      missing,
      waiting,
      text,
    };
  }
}

function ranks(list: readonly number[]): string {
  if (list.length === 0) return 'nobody';
  return list.length === 1 ? `rank ${list[0]}` : `ranks ${list.join(', ')}`;
}
