/**
 * Of what a folder holds the newest good ones stay, with all that is newer, and nothing that goes
 * wrong costs more.
 */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { keepNewest } from '../../src/base/index.ts';

it('keeps so many good ones and what is newer, verifies no more than that, and tries to remove each of the others', () => {
  fc.assert(
    fc.property(
      fc.array(fc.record({ isGood: fc.boolean(), isStuck: fc.boolean() })),
      fc.integer({ min: 1, max: 4 }),
      (found, keep) => {
        const verified: number[] = [];
        const removed: number[] = [];
        const stuck: number[] = [];
        const kept = keepNewest({
          newestFirst: [...found.keys()],
          keep,
          isGood: (at) => {
            verified.push(at);
            return found[at]!.isGood;
          },
          remove: (at) => {
            if (found[at]!.isStuck) throw new Error('it is stuck');
            removed.push(at);
          },
          onNotRemoved: (at, reason) => {
            expect(reason).toBe('it is stuck');
            stuck.push(at);
          },
        });
        const good = [...found.keys()].filter((at) => found[at]!.isGood);
        expect(kept).toEqual(good.slice(0, keep));
        const firstOld = good.length < keep ? found.length : good[keep - 1]! + 1;
        expect(verified).toEqual([...found.keys()].slice(0, firstOld));
        expect([...removed, ...stuck].sort((a, b) => a - b)).toEqual([...found.keys()].slice(firstOld));
      },
    ),
  );
});
