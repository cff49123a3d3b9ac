/** Reduce and reduce-scatter: what a rank gives keeps its values, and its weight counts. */
import { describe, expect, it } from 'vitest';
import { reduce, reduceScatter } from '../../src/collectives/index.ts';
import { runGroup } from '../support/run-group.ts';

/** With messages between ranks, and in memory that they share. */
const PLACES = [{ shared: false }, { shared: true }];
const DTYPES = ['float32', 'float64'] as const;
const VALUES = [10, 100, 1000];

describe.each(PLACES)('reduce (shared memory: $shared)', ({ shared }) => {
  it.each([0, 1, 2])(
    'weighs averages at root %i and leaves the regions of the others alone',
    async (root) => {
      await runGroup({ size: 3, shared, seed: 4 }, async ({ group, rank, region }) => {
        for (const dtype of DTYPES) {
          const vector = region(dtype, [VALUES[rank]!, 0]);
          await reduce(group, vector, { op: 'mean', root, weight: [1, 3, 4][rank]! });
          const mean = (10 + 3 * 100 + 4 * 1000) / 8;
          expect([...vector.view]).toEqual([rank === root ? mean : VALUES[rank]!, 0]);
        }
      });
    },
  );

  it.each([0, 1, 2])('leaves a rank of no weight out of the average at root %i', async (root) => {
    await runGroup({ size: 3, shared, seed: 4 }, async ({ group, rank, region }) => {
      for (const dtype of DTYPES) {
        const value = rank === 1 ? Infinity : VALUES[rank]!;
        const vector = region(dtype, [value]);
        await reduce(group, vector, { op: 'mean', root, weight: rank === 1 ? 0 : 1 });
        expect(vector.view[0]).toBe(rank === root ? 505 : value);
        const nothing = region(dtype, [value]);
        await reduce(group, nothing, { op: 'mean', root, weight: 0 });
        expect(nothing.view[0]).toBe(rank === root ? 0 : value);
      }
    });
  });
});

describe.each(PLACES)('reduce-scatter (shared memory: $shared)', ({ shared }) => {
  it('weighs averages and leaves the inputs alone', async () => {
    await runGroup({ size: 3, shared, seed: 4 }, async ({ group, rank, region }) => {
      for (const dtype of DTYPES) {
        const input = region(
          dtype,
          [1, 2, 3, 4].map((factor) => factor * VALUES[rank]!),
        );
        const before = [...input.view];
        const output = region(dtype, rank === 0 ? [0, 0] : [0]);
        await reduceScatter(group, input, output, { op: 'mean', weight: [1, 3, 4][rank]! });
        const mean = (10 + 3 * 100 + 4 * 1000) / 8;
        expect([...output.view]).toEqual([[mean, 2 * mean], [3 * mean], [4 * mean]][rank]);
        expect([...input.view]).toEqual(before);
      }
    });
  });

  it('leaves a rank of no weight out of the average', async () => {
    await runGroup({ size: 3, shared, seed: 4 }, async ({ group, rank, region }) => {
      for (const dtype of DTYPES) {
        const value = rank === 1 ? NaN : VALUES[rank]!;
        const input = region(dtype, [value, value, value]);
        const output = region(dtype, [7]);
        await reduceScatter(group, input, output, { op: 'mean', weight: rank === 1 ? 0 : 1 });
        expect(output.view[0]).toBe(505);
        await reduceScatter(group, input, output, { op: 'mean', weight: 0 });
        expect(output.view[0]).toBe(0);
        expect([...input.view]).toEqual([value, value, value]);
      }
    });
  });
});

it.each([NaN, -1, Infinity])('both refuse a weight of %d', async (weight) => {
  await runGroup({ size: 1 }, ({ group, region }) => {
    const [input, output] = [region('float32', [1]), region('float32', [1])];
    const expected = expect.objectContaining({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining(`weight is ${weight}`) as string,
    }) as Error;
    expect(() => reduce(group, input, { op: 'mean', weight })).toThrow(expected);
    expect(() => reduceScatter(group, input, output, { op: 'mean', weight })).toThrow(expected);
    return Promise.resolve();
  });
});
