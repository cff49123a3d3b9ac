import { expect, test } from 'vitest';
import { Trace } from '../../src/runner/trace.ts';

interface TraceEvent {
  readonly ph: string;
  readonly name: string;
  readonly args: object;
}

test('a trace has lanes of computing and communication, with steps, bytes and microseconds', () => {
  const trace = new Trace();
  trace.add('computing', 'backward', 'backward conv1..dense', 1.7e12 + 0.25, 1.7e12 + 1.75, 7);
  trace.add('communication', 'reduce', 'allreduce conv1', 1.7e12 + 1.75, 1.7e12 + 2, 7, 4096);
  trace.add('communication', 'push', 'push table', 1.7e12 + 2, 1.7e12 + 2, 8, 0);
  expect(trace.events(1)).toEqual([
    { ph: 'M', pid: 1, tid: 0, name: 'process_name', args: { name: 'worker 1' } },
    { ph: 'M', pid: 1, tid: 0, name: 'thread_name', args: { name: 'computing' } },
    { ph: 'M', pid: 1, tid: 1, name: 'thread_name', args: { name: 'communication' } },
    {
      ...{ ph: 'X', pid: 1, tid: 0, name: 'backward conv1..dense', cat: 'backward' },
      ...{ args: { step: 7 }, ts: 1.7e15 + 250, dur: 1500 },
    },
    {
      ...{ ph: 'X', pid: 1, tid: 1, name: 'allreduce conv1', cat: 'reduce' },
      ...{ args: { step: 7, bytes: 4096 }, ts: 1.7e15 + 1750, dur: 250 },
    },
    {
      ...{ ph: 'X', pid: 1, tid: 1, name: 'push table', cat: 'push' },
      ...{ args: { step: 8, bytes: 0 }, ts: 1.7e15 + 2000, dur: 0 },
    },
  ]);
});

test('a trace keeps the first 200,000 intervals and says how many it left out', () => {
  const trace = new Trace();
  for (let step = 0; step < 200_003; step++)
    trace.add('computing', 'backward', `group ${step % 3}`, step, step + 1, step);
  const [worker, , , ...intervals] = trace.events(0) as TraceEvent[];
  expect(worker!.args).toEqual({ name: 'worker 0 (3 left out)' });
  expect(intervals).toHaveLength(200_000);
  for (const step of [0, 1023, 1024, 199_999])
    expect(intervals[step]).toMatchObject({
      name: `group ${step % 3}`,
      args: { step },
      ts: step * 1000,
      dur: 1000,
    });
});

test('messages that are under way together are in lanes of their own, others in the first that is free', () => {
  const trace = new Trace();
  const add = (name: string, startedMs: number, endedMs: number) =>
    trace.add('communication', 'push', name, startedMs, endedMs, 1);
  // In the order in which they ended.
  add('b', 2, 4);
  add('a', 1, 5);
  add('c', 3, 6);
  add('d', 5, 7);
  const [, ...events] = trace.events(0) as (TraceEvent & { readonly tid: number })[];
  const names = events.filter(({ ph }) => ph === 'M').map(({ args }) => args);
  expect(names).toEqual([
    ...[{ name: 'computing' }, { name: 'communication' }],
    ...[{ name: 'communication 2' }, { name: 'communication 3' }],
  ]);
  const lanes = events.filter(({ ph }) => ph === 'X').map(({ name, tid }) => `${name} ${tid}`);
  expect(lanes).toEqual(['b 2', 'a 1', 'c 3', 'd 1']);
});
