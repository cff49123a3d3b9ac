/** When a plan is made anew: if times have drifted by more than half, with figures that fit what was measured. */
import { describe, expect, it } from 'vitest';
import type { CommunicationThread } from '../../src/communication/index.ts';
import { bytesPerElement, SharedSpace, type DType, type Region } from '../../src/memory/index.ts';
import type { ExchangeInput } from '../../src/plan/index.ts';
import { planned, routesOf } from '../../src/runner/plan-run.ts';
import { betterRoutesText, replan, StepTimes } from '../../src/runner/replanning.ts';
import type { GradientPlace } from '../../src/runtime/index.ts';

const space = SharedSpace.create({ maxBytes: 2 ** 24 });
const done = { wait: () => undefined };

/** The thread of a worker that is alone: what it tells, it hears. */
const alone = {
  world: { id: 1, rank: 0, size: 1, hosts: ['here'], members: [0] },
  allocate: (dtype: DType, length: number) =>
    space.allocate(length * bytesPerElement(dtype)).allocate(dtype, length),
  free: () => Promise.resolve(),
  broadcast: () => done,
  allGather: (input: Region<'float64'>, output: Region<'float64'>) => {
    output.view.set(input.view);
    return done;
  },
} as unknown as CommunicationThread;

const layer = (name: string) => ({
  ...{ name, backwardMs: 2, parameters: [{ name, kind: 'dense' as const, elements: 250_000 }] },
});
/** Messages that take about as long as what hides them. */
const input: ExchangeInput = {
  ...{ forwardMs: 4, layers: ['c', 'b', 'a'].map(layer), segmentMs: 0.001 },
  cluster: { workers: 2, machines: 2, workersPerMachine: 1, servers: 0 },
  costs: { collective: { startMs: 0.1, msPerByte: 2e-6 } },
};

const timesOf = (computeMs: number, exchangeMs: number): StepTimes => {
  const times = new StepTimes();
  for (let i = 0; i < 4; i++) {
    const half = exchangeMs / 2;
    times.add(computeMs, [
      { startedMs: 0, endedMs: half },
      { startedMs: half, endedMs: exchangeMs },
    ]);
  }
  return times;
};

/** So many of 100 rows are touched. */
const gradientsWith = (count: number): ReadonlyMap<string, GradientPlace> =>
  new Map(
    Object.entries({ words: { kind: 'sparse', count, tableRows: 100 }, dense: { kind: 'dense' } }),
  ) as unknown as ReadonlyMap<string, GradientPlace>;

/** Few rows are cheaper by servers, and many by an allreduce of the whole table. */
const withTable: ExchangeInput = {
  ...{ forwardMs: 4, segmentMs: 0.001, leastGain: 0.05 },
  layers: [
    {
      ...{ name: 'words', backwardMs: 2 },
      parameters: [{ name: 'words', kind: 'sparse', elements: 1_000_000, rowLength: 10_000, sparsity: 0.05 }],
    },
  ],
  cluster: { workers: 4, machines: 4, workersPerMachine: 1, servers: 4 },
  costs: {
    ...{ collective: { startMs: 1, msPerByte: 5e-6 }, gather: { startMs: 1, msPerByte: 3e-5 } },
    ...{ serverDense: { startMs: 1, msPerByte: 1e-5 }, serverRows: { startMs: 1, msPerByte: 1e-5 } },
  },
};

describe('rows that are touched', () => {
  const run = planned(alone, withTable);
  const timesWith = (rows: number, share = rows / 5): StepTimes => {
    const times = timesOf(run.plan.computeMs, share * run.plan.exchangeMs);
    for (let i = 0; i < 4; i++) times.addRows(['words'], gradientsWith(rows));
    return times;
  };

  it('keep their plan while they are about as many', () => {
    expect(routesOf(run.plan).get('words')).toBe('server rows');
    expect(replan(alone, run, timesWith(6))).toBeUndefined();
  });

  it('that have become many more have other routes named, which are quicker by more than noise', () => {
    const next = replan(alone, run, timesWith(90))!;
    expect(routesOf(next.plan).get('words')).toBe('server rows');
    expect(next.plan.parameters[0]!.sparsity).toBeCloseTo(0.9, 12);
    const better = next.betterRoutes!;
    expect(better.changes).toEqual([{ name: 'words', from: 'server rows', to: 'collective' }]);
    expect(better.iterationMs).toBeLessThan(0.9 * next.plan.iterationMs);
    const text = betterRoutesText(better, next.plan);
    expect(text).toContain('words by collective instead of server rows');
    // With these figures nothing is new any more.
    const after = timesOf(next.plan.computeMs, next.plan.exchangeMs);
    for (let i = 0; i < 4; i++) after.addRows(['words'], gradientsWith(90));
    expect(replan(alone, next, after)).toBeUndefined();
  });

  it('are planned anew without other routes where these were as good before, or are hardly better', () => {
    // A trial has shown that the prediction was too good: that alone is no news.
    const tried = planned(alone, { ...withTable, routes: { words: 'collective' } });
    const times = timesOf(2 * tried.plan.computeMs, tried.plan.exchangeMs);
    expect(replan(alone, tried, times)!.betterRoutes).toBeUndefined();
    expect(replan(alone, run, timesWith(9))!.betterRoutes).toBeUndefined();
  });

  it('leave a strategy that was asked for alone', () => {
    const asked = planned(alone, { ...withTable, strategy: 'servers' });
    const next = replan(alone, asked, timesWith(90))!;
    expect(next.betterRoutes).toBeUndefined();
  });
});

describe('a plan', () => {
  const run = planned(alone, input);

  it('stays while times are about those that it was made of', () => {
    const { computeMs, exchangeMs } = run.plan;
    expect(run.plan.groups.length).toBeGreaterThan(1);
    expect(replan(alone, run, timesOf(computeMs * 1.3, exchangeMs * 0.8))).toBeUndefined();
  });

  it('is made anew when messages have become much cheaper or dearer, by the same routes', () => {
    const { computeMs, exchangeMs } = run.plan;
    const next = replan(alone, run, timesOf(computeMs, exchangeMs * 10))!;
    expect(next.plan.iterationMs).toBeGreaterThan(run.plan.iterationMs);
    expect(next.plan.parameters.map(({ route }) => route)).toEqual(
      run.plan.parameters.map(({ route }) => route),
    );
    // With the new figures the new plan fits.
    const after = timesOf(next.plan.computeMs, next.plan.exchangeMs);
    expect(replan(alone, next, after)).toBeUndefined();
  });

  it('stays though messages overlap, which makes each seem to take longer', () => {
    const { computeMs, exchangeMs, groups } = run.plan;
    const times = new StepTimes();
    const messages = groups.map((_, i) => ({
      ...{ name: `${i}`, bytes: 1, startedMs: i, endedMs: exchangeMs - groups.length + i + 1 },
    }));
    times.add(computeMs, messages);
    expect(replan(alone, run, times)).toBeUndefined();
  });

  it('takes means since the last look', () => {
    const times = timesOf(3, 8);
    times.addRows(['words', 'dense'], gradientsWith(10));
    times.addRows(['words'], gradientsWith(30));
    expect(times.take()).toEqual({ computeMs: 3, exchangeMs: 8, sparsity: { words: 0.1 } });
    expect(times.take()).toEqual({ computeMs: 0, exchangeMs: 0, sparsity: {} });
  });
});
