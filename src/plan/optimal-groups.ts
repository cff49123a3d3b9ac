/**
 * The grouping with the shortest iteration, exactly, for any cost of messages. (MG-WFBP states algorithm 1 for this, but what
 * it decides for one layer is not undone by the next; it is kept in `merge-baselines.ts`.)
 *
 * Terms: a state is one way to group the first j layers, by what the rest of the iteration can see of it: when its last
 * message ends, and how much later compute is because of its borders. A state that is no better in either than another
 * of the same j can never win, as all later times only grow with both. So it is enough to keep the others, the front of j.
 * Without a cost of borders a front has one state, and the whole takes O(L^2); with it at most j, and O(L^3).
 * Invariant: no grouping is quicker under `iterationMs` than the one returned.
 */
import { checkProblem, messageMs, type Grouping, type MergeProblem } from './merge-schedule.ts';

interface State {
  /** Messages so far. */
  readonly groups: number;
  /** When the last of them ends. */
  readonly endMs: number;
  /** How many layers the last of them carries. */
  readonly count: number;
  readonly before: State | undefined;
}

/** Of equally quick states of the first j layers it takes the one with the fewest messages. */
export function optimalGroups(problem: MergeProblem): Grouping {
  checkProblem(problem);
  const { forwardMs, layers, segmentMs = 0 } = problem;
  const fronts: State[][] = [[{ groups: 0, endMs: 0, count: 0, before: undefined }]];
  let computedMs = forwardMs;
  layers.forEach((layer, last) => {
    computedMs += layer.backwardMs;
    fronts.push(frontOf(problem, fronts, computedMs, last + 1, segmentMs > 0));
  });
  const quickest = fronts.at(-1)!.at(-1)!;
  return Object.freeze(groupingOf(quickest));
}

/** The front of the first `end` layers, by ascending groups, so that the last state ends first. */
function frontOf(
  problem: MergeProblem,
  fronts: readonly State[][],
  computedMs: number,
  end: number,
  doBordersCost: boolean,
): State[] {
  const { layers, segmentMs = 0 } = problem;
  /** By the number of groups, from 1. */
  const earliestMs = new Float64Array(end + 1).fill(Infinity);
  const counts = new Int32Array(end + 1);
  const befores = new Array<State | undefined>(end + 1).fill(undefined);
  let bytes = 0;
  for (let first = end - 1; first >= 0; first--) {
    bytes += layers[first]!.bytes;
    const costMs = messageMs(problem, bytes, first, end);
    for (const before of fronts[first]!) {
      const readyMs = computedMs + before.groups * segmentMs;
      const endMs = Math.max(before.endMs, readyMs) + costMs;
      const groups = before.groups + 1;
      if (endMs < earliestMs[groups]!) {
        earliestMs[groups] = endMs;
        counts[groups] = end - first;
        befores[groups] = before;
      }
      // The next states have ended even earlier, which is in vain where compute is late already.
      if (before.endMs <= readyMs) break;
    }
  }
  const front: State[] = [];
  earliestMs.forEach((endMs, groups) => {
    if (endMs >= (front.at(-1)?.endMs ?? Infinity)) return;
    if (!doBordersCost) front.pop();
    front.push({ groups, endMs, count: counts[groups]!, before: befores[groups] });
  });
  return front;
}

function groupingOf(last: State): number[] {
  const counts: number[] = [];
  for (let state = last; state.before !== undefined; state = state.before) counts.unshift(state.count);
  return counts;
}
