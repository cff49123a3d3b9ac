import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { assignLargestFirst, largestFirstRatio } from '../../src/plan/index.ts';
import { readVectors } from '../support/shared.ts';
import { makespanLowerBound, optimalMakespan, sum } from './makespan-bounds.ts';

interface PartitionCase {
  readonly name: string;
  readonly sizes: readonly number[];
  readonly bins: number;
  readonly assignment: readonly number[];
  readonly loads: readonly number[];
  readonly makespan: number;
  readonly optimal_makespan: number | null;
  readonly bound_ratio: number;
}

/** The bound holds exactly; the ratio as a float64 does not. */
const ROUNDING = 1 + 1e-12;

describe('largest first, by the oracle vectors', () => {
  const cases = readVectors<PartitionCase>('partition.json');

  it.each(cases)('$name', (c) => {
    const { assignment, loads, makespan } = assignLargestFirst(c.sizes, c.bins);
    expect(assignment).toEqual(c.assignment);
    expect(loads).toEqual(c.loads);
    expect(makespan).toBe(c.makespan);
    expect(largestFirstRatio(c.bins)).toBeCloseTo(c.bound_ratio, 12);
    const optimum = c.optimal_makespan ?? makespanLowerBound(c.sizes, c.bins);
    expect(makespan).toBeLessThanOrEqual(largestFirstRatio(c.bins) * optimum * ROUNDING);
  });
});

/** Few different sizes, so that ties are common. */
const fewSizes = (most: number) => fc.array(fc.nat(12), { maxLength: most });
const manySizes = fc.array(fc.oneof(fc.nat(100_000), fc.constant(32_768)), { maxLength: 300 });
const binCounts = fc.integer({ min: 1, max: 20 });

describe('largest first', () => {
  it('is within (4k - 1) / (3k) of the exact optimum', () => {
    fc.assert(
      fc.property(fewSizes(9), fc.integer({ min: 1, max: 4 }), (sizes, bins) => {
        const optimum = optimalMakespan(sizes, bins);
        expect(makespanLowerBound(sizes, bins)).toBeLessThanOrEqual(optimum);
        const { makespan } = assignLargestFirst(sizes, bins);
        expect(makespan).toBeGreaterThanOrEqual(optimum);
        expect(3 * bins * makespan).toBeLessThanOrEqual((4 * bins - 1) * optimum);
      }),
      { numRuns: 500 },
    );
  });

  it('is within (4k - 1) / (3k) of a bound below the optimum for many sizes', () => {
    fc.assert(
      fc.property(manySizes, binCounts, (sizes, bins) => {
        const { makespan } = assignLargestFirst(sizes, bins);
        const bound = makespanLowerBound(sizes, bins);
        expect(makespan).toBeLessThanOrEqual(largestFirstRatio(bins) * bound * ROUNDING);
      }),
      { numRuns: 300 },
    );
  });

  it('reaches (4k - 1) / (3k) in the worst case: two each of 2k - 1 down to k + 1, and three of k', () => {
    for (let bins = 2; bins <= 8; bins++) {
      const pairs = Array.from({ length: bins - 1 }, (_, i) => [2 * bins - 1 - i, 2 * bins - 1 - i]);
      const { makespan } = assignLargestFirst([...pairs.flat(), bins, bins, bins], bins);
      expect(makespan).toBe(4 * bins - 1);
    }
  });

  it('gives every size to the lightest bin at its turn, by a rule written out plainly', () => {
    fc.assert(
      fc.property(manySizes, binCounts, (sizes, bins) => {
        const loads = new Array<number>(bins).fill(0);
        const assignment = new Array<number>(sizes.length).fill(-1);
        for (const size of [...new Set(sizes)].sort((a, b) => b - a))
          sizes.forEach((other, i) => {
            if (other !== size) return;
            assignment[i] = loads.indexOf(Math.min(...loads));
            loads[assignment[i]]! += size;
          });
        expect(assignLargestFirst(sizes, bins)).toEqual({ assignment, loads, makespan: Math.max(...loads) });
      }),
    );
  });

  it('loses no size, and leaves the bins at most one size apart', () => {
    fc.assert(
      fc.property(manySizes, binCounts, (sizes, bins) => {
        const { assignment, loads, makespan } = assignLargestFirst(sizes, bins);
        expect(assignment).toHaveLength(sizes.length);
        expect(sum(loads)).toBe(sum(sizes));
        expect(makespan - Math.min(...loads)).toBeLessThanOrEqual(Math.max(0, ...sizes));
      }),
    );
  });

  it.each([0, -1, 1.5, NaN, Infinity])('refuses %d bins and says so', (bins) => {
    expect(() => assignLargestFirst([1], bins)).toThrow(
      expect.objectContaining({
        name: 'UsageError',
        code: 'INVALID_ARGUMENT',
        message: `bins is ${bins}; pass a positive integer.`,
      }),
    );
  });

  it.each([-1, NaN, Infinity])('refuses a size of %d and names its place', (size) => {
    expect(() => assignLargestFirst([3, size], 2)).toThrow(
      expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: `sizes[1] is ${size}; pass a finite number, 0 or more.`,
      }),
    );
  });
});
