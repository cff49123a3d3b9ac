import { describe, expect, it } from 'vitest';
import { underWay } from '../../src/runner/under-way.ts';

describe('messages under way', () => {
  it.each([
    [
      'one after the other',
      [
        [0, 2],
        [3, 5],
      ],
      { exchangeMs: 4, hiddenMs: 3 },
    ],
    [
      'overlapping',
      [
        [0, 4],
        [1, 5],
        [2, 6],
      ],
      { exchangeMs: 6, hiddenMs: 4 },
    ],
    [
      'one within another, in any order',
      [
        [2, 3],
        [1, 7],
      ],
      { exchangeMs: 6, hiddenMs: 3 },
    ],
    ['none', [], { exchangeMs: 0, hiddenMs: 0 }],
  ])('%s', (_, times, expected) => {
    const messages = times.map(([startedMs, endedMs]) => ({ startedMs: startedMs!, endedMs: endedMs! }));
    expect(underWay(messages, 4)).toEqual(expected);
  });
});
