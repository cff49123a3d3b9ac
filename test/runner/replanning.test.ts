/** When a plan is made anew: if times have drifted by more than half, with figures that fit what was measured. */
import { describe, expect, it } from 'vitest';
import type { CommunicationThread } from '../../src/communication/index.ts';
import { bytesPerElement, SharedSpace, type DType, type Region } from '../../src/memory/index.ts';
import type { ExchangeInput } from '../../src/plan/index.ts';
import { planned } from '../../src/runner/plan-run.ts';
import { replan, StepTimes } from '../../src/runner/replanning.ts';

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
    expect(times.take()).toEqual({ computeMs: 3, exchangeMs: 8 });
    expect(times.take()).toEqual({ computeMs: 0, exchangeMs: 0 });
  });
});
