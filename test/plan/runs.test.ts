/** Chunks in runs: the same loads, longer stretches. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cutIntoChunks, dealInRuns, placeChunks } from '../../src/plan/index.ts';
import type { PlacedChunk } from '../../src/plan/index.ts';

const loadsOf = (chunks: readonly PlacedChunk[]) => {
  const loads = new Map<string, number>();
  for (const { server, core, length } of chunks) {
    const name = `${server} ${core}`;
    loads.set(name, (loads.get(name) ?? 0) + length);
  }
  return [...loads].sort();
};
const stretches = (chunks: readonly PlacedChunk[]) =>
  chunks.filter(({ key, core, server }, i) => {
    const before = chunks[i - 1];
    return before?.key !== key || before.core !== core || before.server !== server;
  }).length;

describe('chunks in runs', () => {
  it('keep the load of every core, whatever the keys', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 5000 }), { minLength: 1, maxLength: 20 }),
        fc.integer({ min: 1, max: 4 }),
        fc.integer({ min: 1, max: 4 }),
        (lengths, servers, coresPerServer) => {
          const keys = lengths.map((length, i) => ({ key: `k${i}`, length }));
          const { chunks } = placeChunks(cutIntoChunks(keys, 64), { servers, coresPerServer });
          const dealt = dealInRuns(chunks);
          expect(loadsOf(dealt)).toEqual(loadsOf(chunks));
          expect(dealt.map(({ key, start, server }) => [key, start, server])).toEqual(
            chunks.map(({ key, start, server }) => [key, start, server]),
          );
        },
      ),
    );
  });

  it('follow each other eight at a time, and still use all cores for one long key', () => {
    const { chunks } = placeChunks(cutIntoChunks([{ key: 'w', length: 16 * 64 }], 64), {
      servers: 1,
      coresPerServer: 2,
    });
    expect(stretches(chunks)).toBe(64);
    const dealt = dealInRuns(chunks);
    expect(stretches(dealt)).toBe(8);
    expect(new Set(dealt.map(({ core }) => core)).size).toBe(2);
  });
});
