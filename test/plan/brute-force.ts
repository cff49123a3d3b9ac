/** All groupings of a few layers, timed by a second reading of the rule that shares nothing with the one under test. */
import type { Grouping, MergeProblem } from '../../src/plan/index.ts';

/** Every way to cut a row of `layers` into groups: each bit says whether there is a border after a layer. */
export function allGroupings(layers: number): number[][] {
  if (layers === 0) return [[]];
  return Array.from({ length: 2 ** (layers - 1) }, (_, borders) => {
    const grouping = [1];
    for (let i = 0; i < layers - 1; i++) {
      if ((borders >> i) & 1) grouping.push(1);
      else grouping[grouping.length - 1]! += 1;
    }
    return grouping;
  });
}

/** Backwards from the last message: it starts after the one before it, and not before its own layers are done. */
export function timeOf(problem: MergeProblem, grouping: Grouping): number {
  if (grouping.length === 0) return problem.forwardMs;
  const { forwardMs, layers, exchangeMs, segmentMs = 0, busyShare = 0 } = problem;
  const endOf = (group: number): number => {
    if (group < 0) return 0;
    const end = grouping.slice(0, group + 1).reduce((sum, count) => sum + count, 0);
    const first = end - grouping[group]!;
    const backward = layers.slice(0, end).reduce((sum, { backwardMs }) => sum + backwardMs, 0);
    const bytes = layers.slice(first, end).reduce((sum, layer) => sum + layer.bytes, 0);
    const taken = grouping.slice(0, group).reduce((sum, _, before) => sum + costOf(before), 0);
    const ready = forwardMs + backward + group * segmentMs + busyShare * taken;
    return Math.max(ready, endOf(group - 1)) + exchangeMs(bytes, first, end);
  };
  const costOf = (group: number): number => {
    const end = grouping.slice(0, group + 1).reduce((sum, count) => sum + count, 0);
    const first = end - grouping[group]!;
    return exchangeMs(
      layers.slice(first, end).reduce((sum, layer) => sum + layer.bytes, 0),
      first,
      end,
    );
  };
  return endOf(grouping.length - 1);
}

export function bruteForce(problem: MergeProblem): number {
  return Math.min(...allGroupings(problem.layers.length).map((grouping) => timeOf(problem, grouping)));
}
