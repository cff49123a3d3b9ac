import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cutIntoChunks, DEFAULT_CHUNK_BYTES } from '../../src/plan/index.ts';

const keyLists = fc
  .array(fc.nat(400), { maxLength: 8 })
  .map((lengths) => lengths.map((length, i) => ({ key: `layer ${i}`, length })));
const chunkSizes = fc.integer({ min: 1, max: 8 }).map((lines) => 64 * lines);

describe('chunks', () => {
  it('cover every key exactly once and in order', () => {
    fc.assert(
      fc.property(keyLists, chunkSizes, (keys, chunkBytes) => {
        const chunks = cutIntoChunks(keys, chunkBytes);
        const covered = chunks.flatMap(({ key, start, length }) =>
          Array.from({ length }, (_, i) => `${key}[${start + i}]`),
        );
        const all = keys.flatMap(({ key, length }) => Array.from({ length }, (_, i) => `${key}[${i}]`));
        expect(covered).toEqual(all);
      }),
    );
  });

  it('are full but for the last of a key, never empty, and numbered within it', () => {
    fc.assert(
      fc.property(keyLists, chunkSizes, (keys, chunkBytes) => {
        const chunks = cutIntoChunks(keys, chunkBytes);
        for (const { key, length } of keys) {
          const own = chunks.filter((chunk) => chunk.key === key);
          expect(own.map(({ index }) => index)).toEqual([...own.keys()]);
          expect(own).toHaveLength(Math.ceil((4 * length) / chunkBytes));
          for (const chunk of own.slice(0, -1)) expect(4 * chunk.length).toBe(chunkBytes);
          for (const chunk of own) expect(chunk.length).toBeGreaterThan(0);
        }
      }),
    );
  });

  it('have 32 KB unless told otherwise', () => {
    expect(DEFAULT_CHUNK_BYTES).toBe(32_768);
    expect(cutIntoChunks([{ key: 'w', length: 8193 }])).toEqual([
      { key: 'w', index: 0, start: 0, length: 8192 },
      { key: 'w', index: 1, start: 8192, length: 1 },
    ]);
  });

  it('do not exist for a key of length 0', () => {
    expect(cutIntoChunks([{ key: 'empty', length: 0 }])).toEqual([]);
  });

  it.each([0, -64, 63, 96, 64.5, NaN])(
    'are refused at %d bytes, as they would share cache lines',
    (chunkBytes) => {
      expect(() => cutIntoChunks([], chunkBytes)).toThrow(
        expect.objectContaining({
          code: 'INVALID_ARGUMENT',
          message: `chunkBytes is ${chunkBytes}; pass a positive multiple of 64.`,
        }),
      );
    },
  );

  it.each([-1, 1.5, NaN])('are refused for a key of length %d, which is named', (length) => {
    expect(() => cutIntoChunks([{ key: 'w', length }])).toThrow(
      expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: `The length of key w is ${length}; pass a count of elements, 0 or more.`,
      }),
    );
  });

  it('are refused for a key that is listed twice', () => {
    const keys = ['w', 'b', 'w'].map((key) => ({ key, length: 1 }));
    expect(() => cutIntoChunks(keys)).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT', facts: { key: 'w' } }),
    );
  });
});
