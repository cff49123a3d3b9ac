/** `fit` on several workers: the result of one, also where it was stopped in between. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { fit, type FitEvent, type FitOptions } from '../../src/runner/index.ts';
import { CheckpointStore, type Evaluation } from '../../src/runtime/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { circlesModel, circlesRun } from './circles.ts';
import { programOf } from '../support/test-program.ts';
import { segmentFiles } from '../support/segment-files.ts';
import { withoutWaits } from '../support/worker-output.ts';

const PROGRAM = fileURLToPath(new URL('./fit-workers-program.ts', import.meta.url));
const folder = temporaryFolders();

interface Outcome {
  readonly steps: number;
  readonly finished: boolean;
  readonly evaluation?: Evaluation;
  readonly workers: number;
  readonly parameters: readonly (readonly number[])[];
  /** What the optimizer keeps. */
  readonly slots: readonly (readonly number[])[];
  readonly events: readonly FitEvent[];
}

function run(options: Partial<FitOptions>): Outcome {
  const { stdout, stderr, status, pid } = spawnSync(
    process.execPath,
    [...programOf(PROGRAM), JSON.stringify(options)],
    { encoding: 'utf8', timeout: 100_000 },
  );
  expect({ status, stderr: withoutWaits(stderr) }).toEqual({ status: 0, stderr: '' });
  expect(stdout.trim().split('\n')).toHaveLength(1);
  expect(segmentFiles().filter((name) => name.includes(`replica-${pid}-`))).toEqual([]);
  return JSON.parse(stdout) as Outcome;
}

async function oneDevice(options: Partial<FitOptions> = {}): Promise<Outcome> {
  const events: FitEvent[] = [];
  const onEvent = (event: FitEvent) => event.type !== 'progress' && events.push(event);
  const result = await fit(circlesModel(), { ...circlesRun, ...options, onEvent });
  const { steps, finished, evaluation, workers } = result;
  const parameters = [...result.replica.memory.parameters.values()].map(({ view }) => [...view]);
  const slots = [...result.replica.memory.slots.values()].flatMap((own) =>
    Object.values(own).map(({ view }) => [...view]),
  );
  await result.close();
  return { steps, finished, workers, parameters, slots, events, ...(evaluation ? { evaluation } : {}) };
}

function expectClose(actual: Outcome, expected: Outcome): void {
  for (const what of ['parameters', 'slots'] as const) {
    const differences = expected[what].flatMap((values, i) =>
      values.map((value, j) => Math.abs(actual[what][i]![j]! - value)),
    );
    expect(Math.max(...differences)).toBeLessThan(1e-4);
  }
  expect(actual.evaluation!.loss).toBeCloseTo(expected.evaluation!.loss, 4);
  expect(actual.evaluation!.accuracy).toBeCloseTo(expected.evaluation!.accuracy!, 2);
  const [steps, before] = [actual, expected].map(({ events }) =>
    events.flatMap((event) => (event.type === 'epoch' ? [event.step] : [])),
  );
  expect(before!.slice(-steps!.length)).toEqual(steps);
}

it.each([2, 3])(
  'has the parameters of one device on %i workers',
  async (workers) => {
    const result = run({ on: { workers } });
    expect(result).toMatchObject({ workers, steps: 54, finished: true });
    expect(result.events.filter(({ type }) => type === 'epoch')).toHaveLength(3);
    expectClose(result, await oneDevice());
  },
  110_000,
);

it('goes on in the middle of an epoch as if it had never stopped, on two workers', async () => {
  const checkpointDirectory = folder();
  const first = run({ on: { workers: 2 }, maxSteps: 23, checkpointDirectory });
  expect(first.events.filter(({ type }) => type === 'checkpoint')).toHaveLength(2);
  const rest = run({ on: { workers: 2 }, checkpointDirectory, resume: true });
  expect(rest.events[0]).toMatchObject({ type: 'resumed', step: 23 });
  expect(rest.events[1]).toMatchObject({ type: 'started', step: 23, totalSteps: 54 });
  expectClose(rest, await oneDevice());
}, 110_000);

it('brings home what lived on servers, for the checkpoint and for the caller, and goes on from there', async () => {
  const [checkpointDirectory, ofOneDevice] = [folder(), folder()];
  const result = run({ on: { workers: 2, strategy: 'servers' }, checkpointDirectory, maxSteps: 23 });
  expectClose(result, await oneDevice({ maxSteps: 23, checkpointDirectory: ofOneDevice }));
  const { checkpoint } = new CheckpointStore(checkpointDirectory).latest();
  expect(checkpoint!.step).toBe(23);
  const { optimizer } = new CheckpointStore(ofOneDevice).latest().checkpoint!;
  for (const [name, { data }] of Object.entries(optimizer)) {
    (data as Float32Array).forEach((value, i) =>
      expect(checkpoint!.optimizer[name]!.data[i]).toBeCloseTo(value, 5),
    );
  }
  // A file has its tensors in an order of its own.
  const stored = Object.values(checkpoint!.tensors).map(({ data }) => [...(data as Float32Array)].join());
  expect(stored.sort()).toEqual(result.parameters.map((values) => values.join()).sort());
  const rest = run({ on: { workers: 2, strategy: 'servers' }, checkpointDirectory, resume: true });
  expectClose(rest, await oneDevice());
}, 110_000);
