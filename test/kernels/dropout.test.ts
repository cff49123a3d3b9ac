import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { Arena } from './arena.ts';

const arena = new Arena();
const { kernels } = arena;
beforeEach(() => arena.reset());

function mask(ids: readonly number[], perSample: number, p: number, seed: number, offset = 0): number[] {
  const target = arena.floats(new Float32Array(ids.length * perSample).fill(9), offset);
  kernels.dropoutMask(target, { p, seed, sampleIds: arena.region('int32', ids) });
  return Array.from(target.view);
}

describe('a dropout mask', () => {
  it('of a sample does not depend on the batch, the position in it or the alignment', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer(), { minLength: 1, maxLength: 6 }),
        fc.nat(30),
        fc.nat(3),
        (ids, n, at) => {
          arena.reset();
          const batch = mask(ids, n, 0.4, 7, at);
          for (const [i, id] of ids.entries()) {
            expect(batch.slice(i * n, (i + 1) * n)).toEqual(mask([id], n, 0.4, 7));
          }
          expect(arena.guardsIntact()).toBe(true);
        },
      ),
    );
  });

  it('of a longer row begins with that of a shorter', () => {
    expect(mask([3], 50, 0.5, 1).slice(0, 21)).toEqual(mask([3], 21, 0.5, 1));
  });

  it('holds 0 and 1 / (1 - p) in the right shares, independent by seed, sample and neighbour', () => {
    const n = 20_000;
    for (const p of [0.1, 0.5, 0.9]) {
      const values = mask([1], n, p, 42);
      const kept = Math.fround(1 / (1 - p));
      expect(values.every((value) => value === 0 || value === kept)).toBe(true);
      const share = (a: readonly number[], b: readonly number[]): number =>
        a.filter((value, i) => value === 0 && b[i] === 0).length / a.length;
      const near = (value: number): number => 5 * Math.sqrt((value * (1 - value)) / n);
      expect(Math.abs(share(values, values) - p)).toBeLessThan(near(p));
      for (const other of [
        mask([2], n, p, 42),
        mask([1], n, p, 43),
        [...values.slice(1), 1],
        [...values.slice(4), 1, 1, 1, 1],
      ]) {
        expect(Math.abs(share(values, other) - p * p)).toBeLessThan(near(p * p));
      }
    }
  });

  it('keeps everything with p 0 and refuses what is no chance or no batch', () => {
    expect(mask([1, 2], 5, 0, 3)).toEqual(new Array(10).fill(1));
    expect(mask([], 5, 0.5, 3)).toEqual([]);
    expect(() => mask([1], 5, 1, 3)).toThrow(/p of dropoutMask/);
    expect(() => mask([1], 5, -0.1, 3)).toThrow(/p of dropoutMask/);
    const sampleIds = arena.region('int32', [1, 2]);
    expect(() => kernels.dropoutMask(arena.floats([1, 2, 3]), { p: 0.5, seed: 1, sampleIds })).toThrow(
      /divide/,
    );
  });
});
