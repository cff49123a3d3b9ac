/**
 * The time of an iteration whose gradients leave in groups while the backward pass goes on
 * (MG-WFBP, sections II.C and III). Terms: layers are in BACKWARD order, so `layers[0]` has its
 * gradient first; a grouping says how many neighbouring layers each message carries; a message
 * starts when all its layers are done and the message before is finished, and the iteration ends
 * with the last, unless the problem has more to do behind it: `step-time.ts` says what a message is
 * where some parameters live on servers, and what servers do behind the last. Which grouping is
 * best is said in `optimal-groups.ts`. Invariant: `iterationMs` and `timeline` are one model, and
 * everything that compares groupings uses it.
 */
import { UsageError } from '../base/index.ts';
import { refuse } from './argument-checks.ts';
import { requireCostNumber } from './exchange-costs.ts';
import { requireShare } from './transfer-amounts.ts';

export interface MergeLayer {
  readonly name: string;
  /** Milliseconds of its part of the backward pass. */
  readonly backwardMs: number;
  /** Bytes of its gradient as they are sent. */
  readonly bytes: number;
}

export interface MergeProblem {
  /** Milliseconds of the forward pass. */
  readonly forwardMs: number;
  /** In the order of the backward pass: the last layer of the model first. */
  readonly layers: readonly MergeLayer[];
  /**
   * Milliseconds of a message of `bytes`, also of 0 bytes, with the gradients of `layers[first]` to `layers[end - 1]`. A
   * measured cost looks at the bytes only (`linearCost`, `measuredCost`), a plan with several routes at the layers too.
   */
  readonly exchangeMs: (bytes: number, first: number, end: number) => number;
  /** Milliseconds of compute that each border between groups adds, where the backward pass is cut. Default 0. */
  readonly segmentMs?: number;
  /** Share of a message's time that it takes from compute behind it, where both need the same processor. Default 0. */
  readonly busyShare?: number;
  /**
   * When the iteration ends, by when compute and the last message have ended. It must not fall with either. Default: with
   * the last message.
   */
  readonly endMs?: (computedMs: number, sentMs: number) => number;
}

/** How many layers each message carries, in backward order; at least one, and all layers together. */
export type Grouping = readonly number[];

export interface Message {
  /** The first layer in it and the one after its last. */
  readonly first: number;
  readonly end: number;
  readonly bytes: number;
  /** When the last of its layers is done. */
  readonly readyMs: number;
  readonly startMs: number;
  readonly endMs: number;
}

/** One bar of a picture. */
export interface Interval {
  readonly lane: 'compute' | 'communication' | 'servers';
  readonly name: string;
  readonly startMs: number;
  readonly endMs: number;
}

/** When the iteration ends, counted from the start of its forward pass. */
export function iterationMs(problem: MergeProblem, grouping: Grouping): number {
  const last = messagesOf(problem, grouping).at(-1);
  return endMs(problem, last?.readyMs ?? problem.forwardMs, last?.endMs ?? problem.forwardMs);
}

/** When the iteration ends whose compute and last message end then. */
export function endMs(problem: MergeProblem, computedMs: number, sentMs: number): number {
  return problem.endMs?.(computedMs, sentMs) ?? sentMs;
}

/** Every message with its times. */
export function messagesOf(problem: MergeProblem, grouping: Grouping): Message[] {
  checkProblem(problem);
  checkGrouping(grouping, problem.layers.length);
  const { forwardMs, layers } = problem;
  let [computedMs, sentMs, first] = [forwardMs, 0, 0];
  let delayMs = 0;
  return grouping.map((count) => {
    const end = first + count;
    computedMs += delayMs;
    let bytes = 0;
    for (const layer of layers.slice(first, end)) {
      computedMs += layer.backwardMs;
      bytes += layer.bytes;
    }
    const startMs = Math.max(sentMs, computedMs);
    const costMs = messageMs(problem, bytes, first, end);
    sentMs = startMs + costMs;
    delayMs = borderMs(problem, costMs);
    const message = { first, end, bytes, readyMs: computedMs, startMs, endMs: sentMs };
    first = end;
    return message;
  });
}

/** By how much the compute behind a message is later: for the border itself, and for what the message takes of it. */
export function borderMs({ segmentMs = 0, busyShare = 0 }: MergeProblem, costMs: number): number {
  return segmentMs + busyShare * costMs;
}

/** The iteration as bars: forward pass, each layer's backward pass, borders that cost something, and messages. */
export function timeline(problem: MergeProblem, grouping: Grouping): readonly Interval[] {
  const { forwardMs, layers } = problem;
  const intervals: Interval[] = [];
  let [now, delayMs] = [0, 0];
  const compute = (name: string, ms: number) => {
    intervals.push(Object.freeze({ lane: 'compute', name, startMs: now, endMs: now + ms }));
    now += ms;
  };
  compute('forward', forwardMs);
  for (const { first, end, startMs, endMs } of messagesOf(problem, grouping)) {
    if (delayMs > 0) compute('border', delayMs);
    delayMs = borderMs(problem, endMs - startMs);
    const members = layers.slice(first, end);
    for (const { name, backwardMs } of members) compute(name, backwardMs);
    intervals.push(Object.freeze({ lane: 'communication', name: titleOf(members), startMs, endMs }));
  }
  return Object.freeze(intervals);
}

function titleOf(members: readonly MergeLayer[]): string {
  const last = members.at(-1)!.name;
  return members.length === 1 ? last : `${members[0]!.name} to ${last}`;
}

/** The cost of one message, checked where it is asked for, as it may come from anywhere. */
export function messageMs(problem: MergeProblem, bytes: number, first: number, end: number): number {
  const ms = problem.exchangeMs(bytes, first, end);
  if (!Number.isFinite(ms) || ms < 0) refuse(`exchangeMs(${bytes})`, ms, 'a finite number, 0 or more');
  return ms;
}

export function checkProblem({ forwardMs, layers, segmentMs = 0, busyShare = 0 }: MergeProblem): void {
  requireCostNumber('forwardMs', forwardMs);
  requireCostNumber('segmentMs', segmentMs);
  requireShare('busyShare', busyShare);
  for (const { name, backwardMs, bytes } of layers) {
    requireCostNumber(`backwardMs of layer ${name}`, backwardMs);
    requireCostNumber(`bytes of layer ${name}`, bytes);
  }
}

function checkGrouping(grouping: Grouping, layers: number): void {
  const covered = grouping.reduce((sum, count) => sum + count, 0);
  if (covered === layers && grouping.every((count) => Number.isSafeInteger(count) && count > 0)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `The groups [${grouping.join(', ')}] are not a grouping of ${layers} layers; pass counts of at least 1 whose sum is ${layers}.`,
    { grouping, layers },
  );
}
