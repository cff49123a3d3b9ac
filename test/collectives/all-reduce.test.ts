/** Laws of allreduce that hold for every algorithm: the sum does not depend on it, nor on who comes first. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { allReduce, availableAlgorithms } from '../../src/collectives/index.ts';
import type { AllReduceAlgorithm, CollectiveOperation } from '../../src/collectives/index.ts';
import { runGroup } from '../support/run-group.ts';
import type { RunOptions } from '../support/run-group.ts';

const twoHosts = (size: number) => Array.from({ length: size }, (_, rank) => (rank % 2 === 0 ? 'a' : 'b'));

function everyAlgorithm(options: RunOptions, inputs: readonly number[][], op: CollectiveOperation) {
  return runGroup(options, async ({ group, rank, region }) => {
    const results = new Map<AllReduceAlgorithm, number[]>();
    for (const algorithm of availableAlgorithms(group)) {
      const vector = region('float32', inputs[rank]!);
      await allReduce(group, vector, { op, algorithm });
      results.set(algorithm, [...vector.view]);
    }
    return results;
  });
}

describe('allreduce', () => {
  it('gives the same result by any algorithm, within rounding, and the same bits on all ranks', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 9 }),
        fc.integer({ min: 0, max: 70 }),
        fc.constantFrom<CollectiveOperation>('sum', 'mean', 'min', 'max', 'product'),
        fc.boolean(),
        fc.integer(),
        async (size, length, op, shared, seed) => {
          const inputs = Array.from({ length: size }, (_, rank) =>
            Array.from({ length }, (_, i) => Math.fround(Math.sin(seed + 31 * rank + i))),
          );
          const all = await everyAlgorithm({ size, shared, seed, hosts: twoHosts(size) }, inputs, op);
          for (const [algorithm, result] of all[0]!) {
            const reference = all[0]!.get('direct')!;
            result.forEach((value, i) => {
              const spread = inputs.reduce((sum, input) => sum + Math.abs(input[i]!), 0);
              expect(Math.abs(value - reference[i]!)).toBeLessThanOrEqual(2e-7 * size * (spread + 1));
            });
            for (const other of all) expect(other.get(algorithm)).toEqual(result);
          }
        },
      ),
      { numRuns: 60 },
    );
  });

  it('takes several rings for a long vector between hosts, the last slice shorter', async () => {
    const size = 3;
    // Slices of 1.5 MB, four under way: eight slices and a piece.
    const length = (4 * 3 * 2 ** 20) / 4 + 1001;
    const sums = await runGroup({ size, seed: 3, hosts: twoHosts(size) }, async ({ group, rank }) => {
      const long = group.space.allocate(4 * length).allocate('float32', length);
      for (let i = 0; i < length; i++) long.view[i] = ((i % 101) + 1) * (rank + 1);
      await allReduce(group, long, { algorithm: 'rings' });
      return long.view.findIndex((value, i) => value !== ((i % 101) + 1) * 6);
    });
    expect(sums).toEqual([-1, -1, -1]);
  });

  it('does not depend on the order in which messages arrive', async () => {
    const size = 5;
    const inputs = Array.from({ length: size }, (_, rank) =>
      Array.from({ length: 50 }, (_, i) => Math.sin(rank * 7 + i) * 1e3 ** (i % 3)),
    );
    const first = await everyAlgorithm({ size, seed: 1, hosts: twoHosts(size) }, inputs, 'sum');
    for (let seed = 2; seed < 8; seed++) {
      expect(await everyAlgorithm({ size, seed, hosts: twoHosts(size) }, inputs, 'sum')).toEqual(first);
    }
  });

  it('takes long vectors through several slices and steps', async () => {
    const length = 3 * 65536 * 2 + 17;
    const results = await runGroup({ size: 3 }, async ({ group, rank, region }) => {
      const faults: string[] = [];
      for (const algorithm of availableAlgorithms(group)) {
        const vector = region(
          'float32',
          Array.from({ length }, (_, i) => (rank + 1) * (i % 1000)),
        );
        await allReduce(group, vector, { algorithm });
        const wrong = vector.view.findIndex((value, i) => value !== 6 * (i % 1000));
        if (wrong >= 0) faults.push(`${algorithm}: [${wrong}] is ${vector.view[wrong]}`);
      }
      return faults;
    });
    expect(results.flat()).toEqual([]);
  });

  it('reduces several vectors of a rank as one object and gives all of them the result', async () => {
    for (const shared of [false, true]) {
      for (const length of [5, 9000]) {
        await runGroup({ size: 3, shared, hosts: twoHosts(3), seed: 5 }, async ({ group, rank, region }) => {
          for (const algorithm of availableAlgorithms(group)) {
            const vectors = [1, 10].map((factor) =>
              region(
                'float32',
                Array.from({ length }, () => factor * (rank + 1)),
              ),
            );
            await allReduce(group, vectors, { op: 'mean', algorithm });
            for (const { view } of vectors) expect(new Set(view), algorithm).toEqual(new Set([11]));
          }
        });
      }
    }
  });

  it('weighs averages by what was contributed', async () => {
    await runGroup({ size: 3, seed: 9 }, async ({ group, rank, region }) => {
      for (const algorithm of availableAlgorithms(group)) {
        const vector = region('float32', [rank, 3 * rank]);
        await allReduce(group, vector, { op: 'mean', algorithm, weight: [1, 2, 5][rank]! });
        expect([...vector.view], algorithm).toEqual([1.5, 4.5]);
      }
    });
  });

  it('leaves vectors of no weight out of an average, whatever they hold', async () => {
    for (const shared of [false, true]) {
      // Short vectors are exchanged whole, long ones in parts.
      for (const length of [2, 5001]) {
        await runGroup({ size: 3, shared, seed: 9, hosts: twoHosts(3) }, async ({ group, rank, region }) => {
          const filled = (value: number) => region('float32', Array<number>(length).fill(value));
          for (const algorithm of availableAlgorithms(group)) {
            const weight = rank === 1 ? 0 : 2;
            const single = filled([10, Infinity, 30][rank]!);
            await allReduce(group, single, { op: 'mean', algorithm, weight });
            expect(new Set(single.view), algorithm).toEqual(new Set([20]));
            const pair = [filled([10, 100, 30][rank]!), filled([20, NaN, 40][rank]!)];
            await allReduce(group, pair, { op: 'mean', algorithm, weight });
            for (const { view } of pair) expect(new Set(view), algorithm).toEqual(new Set([25]));
          }
        });
      }
    }
  });

  it('gives zeros for an average to which nobody gave weight', async () => {
    for (const size of [1, 3]) {
      await runGroup({ size, seed: 9, hosts: twoHosts(size) }, async ({ group, region }) => {
        for (const algorithm of availableAlgorithms(group)) {
          const vectors = [region('float64', [1, NaN]), region('float64', [2, 3])];
          await allReduce(group, vectors, { op: 'mean', algorithm, weight: 0 });
          for (const { view } of vectors) expect([...view], algorithm).toEqual([0, 0]);
        }
        const coded = region('float32', [1, 2]);
        await allReduce(group, coded, { op: 'mean', codec: { kind: 'fp16' }, weight: 0 });
        expect([...coded.view]).toEqual([0, 0]);
      });
    }
  });

  it('does not weigh what is no average', async () => {
    await runGroup({ size: 2, seed: 9 }, async ({ group, rank, region }) => {
      const vector = region('float32', [rank + 1]);
      await allReduce(group, vector, { weight: rank });
      expect(vector.view[0]).toBe(3);
    });
  });

  it('runs many at once, in any order when they have tags, and in overlapping groups', async () => {
    await runGroup({ size: 4, seed: 11 }, async ({ group, rank, region, subgroup }) => {
      const pair = subgroup(10 + (rank >> 1), rank < 2 ? [0, 1] : [2, 3]);
      const order = Array.from({ length: 20 }, (_, i) => (i * [1, 3, 7, 9][rank]!) % 20);
      const vectors = order.map((tag) => ({ tag, vector: region('float32', [tag, rank]) }));
      const handles = vectors.map(({ tag, vector }) => allReduce(group, vector, { tag }));
      const local = region('float32', [rank]);
      await allReduce(pair, local);
      for (const handle of handles) await handle;
      for (const { tag, vector } of vectors) expect([...vector.view]).toEqual([4 * tag, 6]);
      expect(local.view[0]).toBe(rank < 2 ? 1 : 5);
    });
  });

  it('refuses bad arguments before anything is sent', async () => {
    await runGroup({ size: 2 }, ({ group, region }) => {
      const vector = region('float32', [1]);
      expect(() => allReduce(group, vector, { op: 'median' as 'sum' })).toThrow(/op is 'median'/);
      expect(() => allReduce(group, region('int32', [1]), { op: 'mean' })).toThrow(/mean of int32/);
      expect(() => allReduce(group, [])).toThrow(/no region/);
      expect(() => allReduce(group, [vector, region('float32', [1, 2])])).toThrow(/1 float32 and 2 float32/);
      expect(() => allReduce(group, vector, { tag: -1 })).toThrow(/tag is -1/);
      expect(() => allReduce(group, vector, { algorithm: 'native' })).toThrow(/'native'/);
      expect(() => allReduce(group, vector, { weight: NaN })).toThrow(/weight is NaN/);
      return Promise.resolve();
    });
  });
});
