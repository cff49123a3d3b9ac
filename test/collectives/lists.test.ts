/** Reduce and broadcast of lists: one vector, wherever its regions lie. */
import { describe, expect, it } from 'vitest';
import { broadcastList, reduceList } from '../../src/collectives/index.ts';
import { runGroup } from '../support/run-group.ts';

const PLACES = [{ shared: false }, { shared: true }];
const LENGTHS = [0, 1, 7, 16, 17, 1000, 3, 0, 40_000];

describe.each(PLACES)('a list (shared memory: $shared)', ({ shared }) => {
  it.each([1, 2, 3, 5, 8])('is reduced to rank 0 of %i, and sources stay as they are', async (size) => {
    await runGroup({ size, shared, seed: size }, async ({ group, rank, region }) => {
      const sources = LENGTHS.map((length, i) => region('float32', Array<number>(length).fill(rank + i)));
      const targets =
        rank > 0 ? [] : LENGTHS.map((length) => region('float32', Array<number>(length).fill(NaN)));
      await reduceList(group, sources, targets);
      const ranks = (size * (size - 1)) / 2;
      targets.forEach((target, i) =>
        expect(target.view.every((value) => value === ranks + size * i)).toBe(true),
      );
      sources.forEach((source, i) => expect(source.view.every((value) => value === rank + i)).toBe(true));
    });
  });

  it('is averaged by weight, also into the sources of rank 0', async () => {
    await runGroup({ size: 3, shared, seed: 3 }, async ({ group, rank, region }) => {
      const values = [10, 100, 1000][rank]!;
      const sources = [region('float32', [values]), region('float32', [0, 2 * values])];
      await reduceList(group, sources, sources, { op: 'mean', weight: [1, 3, 4][rank]! });
      const mean = rank === 0 ? (10 + 3 * 100 + 4 * 1000) / 8 : values;
      expect(sources.map(({ view }) => [...view])).toEqual([[mean], [0, 2 * mean]]);
    });
  });

  it.each([1, 2, 3, 5, 8])('of rank 0 becomes that of all %i', async (size) => {
    await runGroup({ size, shared, seed: size }, async ({ group, rank, region }) => {
      const regions = LENGTHS.map((length, i) =>
        region('float32', Array<number>(length).fill(100 * rank + i)),
      );
      await broadcastList(group, regions);
      regions.forEach((one, i) => expect(one.view.every((value) => value === i)).toBe(true));
    });
  });

  it('is not taken for one of the same length that is cut elsewhere', async () => {
    const ends = await runGroup({ size: 2, shared }, async ({ group, rank, region }) => {
      const regions = [
        region('float32', Array<number>(1 + rank).fill(1)),
        region('float32', Array<number>(2 - rank).fill(1)),
      ];
      return Promise.allSettled([broadcastList(group, regions)]);
    });
    for (const [end] of ends) expect(end).toMatchObject({ reason: { code: 'COLLECTIVE_MISMATCH' } });
  });

  it('of nothing, or of two types, is refused', async () => {
    await runGroup({ size: 1, shared }, ({ group, region }) => {
      expect(() => broadcastList(group, [])).toThrow(/no region; give one or more of one type/);
      expect(() => reduceList(group, [region('float32', [1]), region('int32', [1])], [])).toThrow(
        /regions of float32 and int32/,
      );
      return Promise.resolve();
    });
  });
});
