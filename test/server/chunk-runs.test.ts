/** Ranges that travel as runs are those that were meant. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { rangesOfRuns, runsOf } from '../../src/server/wire/chunk-runs.ts';
import type { Range } from '../../src/server/wire/chunk-runs.ts';

const pieces = fc
  .array(fc.record({ gap: fc.nat(2), each: fc.integer({ min: 1, max: 3 }) }), { maxLength: 30 })
  .map((steps) => {
    let at = 0;
    return steps.map(({ gap, each }): Range => {
      const start = at + gap;
      at = start + each;
      return [start, each];
    });
  });

describe('runs of ranges', () => {
  it('are the same ranges on the other side', () => {
    fc.assert(
      fc.property(pieces, (ranges) => {
        const runs = JSON.parse(JSON.stringify(runsOf(ranges))) as unknown[];
        expect(rangesOfRuns(runs, 1000, ranges.length)).toEqual(ranges);
      }),
    );
  });

  it('are one for chunks that follow each other, the last of which is shorter', () => {
    const chunks = Array.from({ length: 100_000 }, (_, i): Range => [8 * i, i === 99_999 ? 3 : 8]);
    expect(runsOf(chunks)).toEqual([[0, 799_995, 8]]);
  });

  it.each([
    ['reach beyond the piece', [[0, 11]]],
    [
      'overlap',
      [
        [0, 4],
        [3, 2],
      ],
    ],
    ['are more than there may be', [[0, 10, 1]]],
    ['are cut into nothing', [[0, 10, 0]]],
    ['are empty', [[3, 0]]],
    ['are no numbers', [[0, '4']]],
  ])('are refused if they %s', (_, runs) => {
    expect(() => rangesOfRuns(runs, 10, 9)).toThrow('sent a malformed');
  });
});
