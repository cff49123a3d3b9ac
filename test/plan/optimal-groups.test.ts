import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  algorithmOne,
  allInOne,
  fixedBuckets,
  iterationMs,
  layerByLayer,
  linearCost,
  optimalGroups,
  type MergeProblem,
} from '../../src/plan/index.ts';
import { readVectors, type Tolerance } from '../support/shared.ts';
import { allGroupings, bruteForce, timeOf } from './brute-force.ts';
import { mergeProblems } from './merge-problems.ts';

interface SchedulingCase {
  readonly name: string;
  readonly layers: number;
  readonly tf: number;
  readonly tb: readonly number[];
  readonly m: readonly number[];
  readonly a: number;
  readonly b: number;
  readonly optimal: number;
  /** Of small cases, as the next two. */
  readonly optimal_groups?: readonly (readonly number[])[];
  readonly wfbp?: number;
  readonly single?: number;
  readonly tolerance: Tolerance;
}

/** Forward order and seconds become backward order; the unit is whatever comes out again. */
const problemOf = ({ tf, tb, m, a, b }: SchedulingCase): MergeProblem => ({
  forwardMs: tf,
  layers: tb.map((backwardMs, i) => ({ name: `layer ${i + 1}`, backwardMs, bytes: m[i]! })).reverse(),
  exchangeMs: linearCost(a, b),
});

const ROUNDING = 1e-9;
const isClose = (got: number, want: number) => Math.abs(got - want) <= ROUNDING * Math.max(1, want);

describe('merging, by the oracle vectors', () => {
  const cases = readVectors<SchedulingCase>('scheduling.json');

  it.each(cases)('$name', (c) => {
    const problem = problemOf(c);
    const within = (got: number, want: number) =>
      expect(Math.abs(got - want)).toBeLessThanOrEqual(c.tolerance.atol + c.tolerance.rtol * want);
    within(iterationMs(problem, optimalGroups(problem)), c.optimal);
    if (c.optimal_groups) {
      const grouping = c.optimal_groups.map((group) => group.length);
      within(iterationMs(problem, grouping), c.optimal);
    }
    if (c.wfbp) within(iterationMs(problem, layerByLayer(problem)), c.wfbp);
    if (c.single) within(iterationMs(problem, allInOne(problem)), c.single);
    if (c.layers <= 12) within(bruteForce(problem), c.optimal);
  });
});

describe('the optimal groups', () => {
  it('are as quick as the best of all groupings, with and without a cost of borders', () => {
    fc.assert(
      fc.property(mergeProblems(9), (problem) => {
        const grouping = optimalGroups(problem);
        expect(isClose(timeOf(problem, grouping), bruteForce(problem))).toBe(true);
      }),
      { numRuns: 300 },
    );
  });

  it('are as quick as the best of all groupings of twelve layers', () => {
    fc.assert(
      fc.property(mergeProblems(12), (problem) => {
        expect(isClose(iterationMs(problem, optimalGroups(problem)), bruteForce(problem))).toBe(true);
      }),
      { numRuns: 30 },
    );
  });

  it('are never slower than a baseline', () => {
    fc.assert(
      fc.property(mergeProblems(60), fc.integer({ min: 1, max: 5000 }), (problem, bucketBytes) => {
        const optimum = iterationMs(problem, optimalGroups(problem));
        for (const grouping of [
          layerByLayer(problem),
          allInOne(problem),
          fixedBuckets(problem, bucketBytes),
          algorithmOne(problem),
        ])
          expect(iterationMs(problem, grouping)).toBeGreaterThanOrEqual(optimum * (1 - ROUNDING));
      }),
      { numRuns: 200 },
    );
  });

  it('keep slower starts with fewer borders: one state for each prefix is exact only where borders are free', () => {
    // Two messages are sent first by two borders, which the long third layer then has to wait for in vain.
    const sizes = [
      [1, 10],
      [1, 10],
      [100, 1],
    ] as const;
    const layers = sizes.map(([backwardMs, bytes], i) => ({ name: `l${i}`, backwardMs, bytes }));
    const problem = { forwardMs: 0, layers, exchangeMs: linearCost(0, 1), segmentMs: 0.5 };
    expect(timeOf(problem, quickestPrefixes(problem))).toBe(104);
    expect(iterationMs(problem, optimalGroups(problem))).toBe(103.5);
    const free = { ...problem, segmentMs: 0 };
    expect(timeOf(free, quickestPrefixes(free))).toBe(103);
    expect(iterationMs(free, optimalGroups(free))).toBe(103);
  });

  it('are one group where starting a message is dear, and one for each layer where it is free and compute hides all', () => {
    const layers = [1, 2, 3, 4].map((n) => ({ name: `l${n}`, backwardMs: 10, bytes: 100 }));
    expect(optimalGroups({ forwardMs: 5, layers, exchangeMs: linearCost(1000, 0.01) })).toEqual([4]);
    expect(optimalGroups({ forwardMs: 5, layers, exchangeMs: linearCost(0, 0.09) })).toEqual([1, 1, 1, 1]);
  });

  it('are none without layers, frozen, and refuse costs that are no times', () => {
    const exchangeMs = linearCost(1, 1);
    expect(optimalGroups({ forwardMs: 5, layers: [], exchangeMs })).toEqual([]);
    const layers = [{ name: 'fc', backwardMs: 1, bytes: 4 }];
    expect(Object.isFrozen(optimalGroups({ forwardMs: 5, layers, exchangeMs }))).toBe(true);
    expect(() => optimalGroups({ forwardMs: 5, layers, exchangeMs: () => NaN })).toThrow(
      /exchangeMs\(4\) is NaN/,
    );
    expect(() => optimalGroups({ forwardMs: -5, layers, exchangeMs })).toThrow(/forwardMs is -5/);
  });
});

/** The dynamic program with one state for each prefix, as it would be exact without a cost of borders. */
function quickestPrefixes(problem: MergeProblem): number[] {
  const best: number[][] = [[]];
  problem.layers.forEach((_, last) => {
    const head = { ...problem, layers: problem.layers.slice(0, last + 1) };
    const ways = best.map((grouping, first) => [...grouping, last + 1 - first]);
    best.push(ways.reduce((x, y) => (timeOf(head, y) < timeOf(head, x) ? y : x)));
  });
  return best.at(-1)!;
}

describe('brute force', () => {
  it('tries every grouping once', () => {
    expect(allGroupings(3).map(String).sort()).toEqual(['1,1,1', '1,2', '2,1', '3']);
  });
});
