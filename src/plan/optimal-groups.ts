/**
 * The grouping with the shortest iteration, exactly, for any cost of messages. (MG-WFBP states algorithm 1 for this, but what
 * it decides for one layer is not undone by the next; it is kept in `merge-baselines.ts`.)
 *
 * Terms: a state is one way to group the first j layers, by what the rest of the iteration can see of it: when its last
 * message ends, and how much later compute is because of its borders and messages. A state that is no better in either than
 * another of the same j can never win, as all later times only grow with both. So it is enough to keep the others, the front
 * of j. Where borders cost nothing a front has one state, and the whole takes O(L^2). When the iteration ends depends on
 * nothing else either, so that the best state of the last front is the best of all.
 * Invariant: no grouping is quicker under `iterationMs` than the one returned.
 */
import {
  borderMs,
  checkProblem,
  endMs,
  messageMs,
  type Grouping,
  type MergeProblem,
} from './merge-schedule.ts';

interface State {
  /** How much later the compute that follows is. */
  readonly delayMs: number;
  /** When the last message so far ends. */
  readonly endMs: number;
  /** Messages so far. */
  readonly groups: number;
  /** How many layers the last of them carries. */
  readonly count: number;
  readonly before: State | undefined;
}

/** Of equally quick groupings it takes one with fewer messages. */
export function optimalGroups(problem: MergeProblem): Grouping {
  return quickestOf(problem, groupings(problem));
}

/** The groupings that can be the quickest, whenever the iteration ends by `endMs` of a problem. */
export interface GroupingFront {
  readonly states: readonly State[];
  /** When compute ends without borders and messages. */
  readonly computedMs: number;
}

/** The same for all problems that differ in `endMs` only. */
export function groupings(problem: MergeProblem): GroupingFront {
  checkProblem(problem);
  const fronts: State[][] = [[{ delayMs: 0, endMs: 0, groups: 0, count: 0, before: undefined }]];
  let computedMs = problem.forwardMs;
  problem.layers.forEach((layer, last) => {
    computedMs += layer.backwardMs;
    fronts.push(frontOf(problem, fronts, computedMs, last + 1));
  });
  return { states: fronts.at(-1)!, computedMs };
}

export function quickestOf(problem: MergeProblem, { states, computedMs }: GroupingFront): Grouping {
  let [best, bestMs] = [states.at(-1)!, Infinity];
  for (const state of states) {
    const ms = endMs(problem, computedMs + state.delayMs, state.endMs);
    if (ms > bestMs || (ms === bestMs && state.groups >= best.groups)) continue;
    [best, bestMs] = [state, ms];
  }
  return Object.freeze(groupingOf(best));
}

/** The front of the first `end` layers, by ascending delay, so that the last state ends first. */
function frontOf(
  problem: MergeProblem,
  fronts: readonly State[][],
  computedMs: number,
  end: number,
): State[] {
  const front: State[] = [];
  let bytes = 0;
  for (let first = end - 1; first >= 0; first--) {
    bytes += problem.layers[first]!.bytes;
    const costMs = messageMs(problem, bytes, first, end);
    // Behind the last message there is no compute that it could delay.
    const ownDelayMs = end === problem.layers.length ? 0 : borderMs(problem, costMs);
    for (const before of fronts[first]!) {
      const readyMs = computedMs + before.delayMs;
      const sentMs = Math.max(before.endMs, readyMs) + costMs;
      const [delayMs, groups] = [before.delayMs + ownDelayMs, before.groups + 1];
      insert(front, { delayMs, endMs: sentMs, groups, count: end - first, before });
      // The next states have ended even earlier, which is in vain where compute is late already.
      if (before.endMs <= readyMs) break;
    }
  }
  return front;
}

/** Unless a state of the front is as good in both; those that are not better than the new one leave. */
function insert(front: State[], state: State): void {
  let [low, high] = [0, front.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (front[middle]!.delayMs <= state.delayMs) low = middle + 1;
    else high = middle;
  }
  // All before `low` have no more delay; the last of them ends first.
  const rival = front[low - 1];
  if (rival && (rival.endMs < state.endMs || (rival.endMs === state.endMs && !isShorter(state, rival))))
    return;
  let from = low;
  while (from > 0 && front[from - 1]!.delayMs === state.delayMs) from--;
  let to = low;
  while (to < front.length && front[to]!.endMs >= state.endMs) to++;
  front.splice(from, to - from, state);
}

function isShorter(a: State, b: State): boolean {
  return a.delayMs === b.delayMs && a.groups < b.groups;
}

function groupingOf(last: State): number[] {
  const counts: number[] = [];
  for (let state = last; state.before !== undefined; state = state.before) counts.unshift(state.count);
  return counts;
}
