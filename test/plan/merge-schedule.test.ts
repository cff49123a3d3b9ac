import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { iterationMs, linearCost, messagesOf, timeline, type MergeProblem } from '../../src/plan/index.ts';
import { allGroupings, timeOf } from './brute-force.ts';
import { mergeProblems } from './merge-problems.ts';

const problem: MergeProblem = {
  forwardMs: 10,
  layers: [
    { name: 'fc', backwardMs: 4, bytes: 300 },
    { name: 'conv2', backwardMs: 6, bytes: 100 },
    { name: 'conv1', backwardMs: 8, bytes: 10 },
  ],
  exchangeMs: linearCost(3, 0.05),
  segmentMs: 1,
};

describe('the time of an iteration', () => {
  it('is that of messages which wait for their layers and for the message before', () => {
    // fc is done at 14 and sent until 32; conv2, done at 21, waits for it and takes 8; conv1 is done at 30, sent until 43.5.
    expect(iterationMs(problem, [1, 1, 1])).toBeCloseTo(43.5, 9);
    // One message of 410 bytes after 28 ms of compute without a border.
    expect(iterationMs(problem, [3])).toBeCloseTo(51.5, 9);
    expect(messagesOf(problem, [2, 1])).toEqual([
      { first: 0, end: 2, bytes: 400, readyMs: 20, startMs: 20, endMs: 43 },
      { first: 2, end: 3, bytes: 10, readyMs: 29, startMs: 43, endMs: 46.5 },
    ]);
  });

  it('agrees with a second reading of the rule for any grouping', () => {
    fc.assert(
      fc.property(mergeProblems(7), fc.nat(), (random, pick) => {
        const groupings = allGroupings(random.layers.length);
        const grouping = groupings[pick % groupings.length]!;
        expect(iterationMs(random, grouping)).toBeCloseTo(timeOf(random, grouping), 9);
      }),
    );
  });

  it('is the forward pass without layers', () => {
    expect(iterationMs({ ...problem, layers: [] }, [])).toBe(10);
  });

  it.each([[[1, 1]], [[1, 1, 2]], [[3, 0]], [[1.5, 1.5]], [[]]])(
    'refuses %j as a grouping of three layers',
    (grouping) => {
      expect(() => iterationMs(problem, grouping)).toThrow(/not a grouping of 3 layers; pass counts/);
    },
  );
});

describe('the timeline', () => {
  it('has a bar for everything that takes time', () => {
    expect(timeline(problem, [2, 1])).toEqual([
      { lane: 'compute', name: 'forward', startMs: 0, endMs: 10 },
      { lane: 'compute', name: 'fc', startMs: 10, endMs: 14 },
      { lane: 'compute', name: 'conv2', startMs: 14, endMs: 20 },
      { lane: 'communication', name: 'fc to conv2', startMs: 20, endMs: 43 },
      { lane: 'compute', name: 'border', startMs: 20, endMs: 21 },
      { lane: 'compute', name: 'conv1', startMs: 21, endMs: 29 },
      { lane: 'communication', name: 'conv1', startMs: 43, endMs: 46.5 },
    ]);
  });

  it('ends with the iteration, and no two bars of a lane overlap', () => {
    fc.assert(
      fc.property(mergeProblems(7), fc.nat(), (random, pick) => {
        const groupings = allGroupings(random.layers.length);
        const grouping = groupings[pick % groupings.length]!;
        const bars = timeline(random, grouping);
        for (const lane of ['compute', 'communication'] as const) {
          const own = bars.filter((bar) => bar.lane === lane);
          own.forEach((bar, i) => {
            expect(bar.endMs).toBeGreaterThanOrEqual(bar.startMs);
            if (i > 0) expect(bar.startMs).toBeGreaterThanOrEqual(own[i - 1]!.endMs);
          });
        }
        const end = Math.max(...bars.map(({ endMs }) => endMs));
        expect(end).toBeCloseTo(iterationMs(random, grouping), 9);
      }),
    );
  });
});
