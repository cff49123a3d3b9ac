/** What a runner says of a run: predicted against measured, the slowest worker, and whether one worker would be faster. */
import { describe, expect, it } from 'vitest';
import { planExchange } from '../../src/plan/index.ts';
import { cutEverywhere, layerTimes } from '../../src/runner/layer-times.ts';
import { runReport } from '../../src/runner/run-report.ts';

const plan = planExchange({
  forwardMs: 4,
  layers: [{ name: 'a', backwardMs: 6, parameters: [{ name: 'a', kind: 'dense', elements: 1000 }] }],
  cluster: { workers: 2, machines: 1, workersPerMachine: 2, servers: 0 },
  costs: { collective: { startMs: 1, msPerByte: 0 } },
});

describe('the report of a run', () => {
  it('names predicted and measured times and the slowest worker', () => {
    const [line, ...others] = runReport(plan, 90, [
      { stepMs: 13, computeMs: 9, waitMs: 3 },
      { stepMs: 13, computeMs: 11, waitMs: 1 },
    ]);
    expect(line).toBe(
      '90 steps: 13.0 ms each, 10.0 ms computing and 2.00 ms waiting for gradients (predicted for both 11.0 ms, 1 message a step), 1.00 ms loading and updating. Worker 1 is the slowest, 10 % behind the mean.',
    );
    expect(others).toEqual([]);
  });

  it('does not take chance for a worker alone being faster', () => {
    const pace = (waitMs: number) => ({ stepMs: 10 + waitMs, computeMs: 10, waitMs });
    expect(runReport(plan, 90, [pace(10.9), pace(10.9)])).toHaveLength(1);
    expect(runReport(plan, 90, [pace(11.1), pace(11.1)])).toHaveLength(2);
  });

  it('says when one worker would be faster, and what takes the time', () => {
    const pace = { stepMs: 25, computeMs: 10, waitMs: 15 };
    const lines = runReport(plan, 90, [pace, pace]);
    expect(lines[0]).toContain('No worker is behind the others.');
    expect(lines[1]).toMatch(/^slower than one worker, .* about 20.0 ms .*: 15.0 ms .* Use larger batches/);
  });
});

describe('times of layers', () => {
  it('cut the forward pass off and every gradient from the next', () => {
    expect(cutEverywhere(['b', 'a'])).toEqual([[], ['b'], ['a']]);
  });

  it('add up to the uncut pass, and what the cuts add is told apart', () => {
    const times = layerTimes(
      [10, 8, 9],
      [
        [3, 6, 3],
        [3, 5, 2],
        [4, 6, 3],
      ],
    );
    // Medians 3, 6, 3: 12 in pieces, 9 in one; two cuts.
    expect(times.segmentMs).toBeCloseTo(1.5, 12);
    expect([times.forwardMs, ...times.backwardMs]).toEqual([2.25, 4.5, 2.25]);
  });

  it('never counts a cut as a gain', () => {
    expect(layerTimes([20], [[3, 6, 3]])).toEqual({ forwardMs: 3, backwardMs: [6, 3], segmentMs: 0 });
  });
});
