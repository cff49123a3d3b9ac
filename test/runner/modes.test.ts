/**
 * Five small models in the modes of `on`, over shared memory and TCP. Synchronous ones end where one device does; the others
 * at an accuracy that is stated here. The long form (TRIBUTARY_ACCEPTANCE) has all pairs, the short one each mode, model and
 * transport with some others.
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { fit, type FitEvent, type Workers } from '../../src/runner/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { byForm } from '../support/long-form.ts';
import { segmentFiles } from '../support/segment-files.ts';
import { programOf } from '../support/test-program.ts';
import { smallModels, type SmallModel } from './small-models.ts';
import { withoutWaits } from '../support/worker-output.ts';

interface Outcome {
  readonly steps: number;
  readonly finished: boolean;
  readonly workers: number;
  readonly evaluation: { readonly loss: number; readonly accuracy: number };
  readonly parameters: Readonly<Record<string, readonly number[]>>;
  readonly averages: readonly Readonly<Record<string, readonly number[]>>[];
  readonly events: readonly FitEvent[];
}

const PROGRAM = fileURLToPath(new URL('modes-program.ts', import.meta.url));
const folder = temporaryFolders();

function train(model: SmallModel, on: Workers, more: object = {}): Outcome {
  const order = JSON.stringify({ model, on, ...more });
  const { status, stdout, stderr, pid } = spawnSync(process.execPath, [...programOf(PROGRAM), order], {
    encoding: 'utf8',
    timeout: 170_000,
  });
  expect({ status, stderr: withoutWaits(stderr) }).toEqual({ status: 0, stderr: '' });
  expect(segmentFiles().filter((name) => name.includes(`replica-${pid}-`))).toEqual([]);
  return JSON.parse(stdout) as Outcome;
}

const known = new Map<SmallModel, Promise<Omit<Outcome, 'events'>>>();

/** What one device makes of it. */
function oneDevice(name: SmallModel): Promise<Omit<Outcome, 'events'>> {
  const made = known.get(name) ?? trainAlone(name);
  known.set(name, made);
  return made;
}

async function trainAlone(name: SmallModel): Promise<Omit<Outcome, 'events'>> {
  const { model, ...options } = smallModels[name]();
  const result = await fit(model, options);
  const { replica, steps, finished, workers, evaluation } = result;
  const valuesOf = (regions: ReadonlyMap<string, { readonly view: Float32Array }>) =>
    Object.fromEntries([...regions].map(([key, { view }]) => [key, [...view]]));
  const parameters = valuesOf(replica.memory.parameters);
  const averages = [...replica.memory.averages.values()].map(valuesOf);
  await result.close();
  return { steps, finished, workers, parameters, averages, evaluation: evaluation as Outcome['evaluation'] };
}

function expectClose(actual: Outcome, expected: Omit<Outcome, 'events'>): void {
  const both = [
    [actual.parameters, expected.parameters],
    ...actual.averages.map((one, i) => [one, expected.averages[i]!]),
  ];
  for (const [mine, theirs] of both) {
    const differences = Object.entries(theirs!).flatMap(([name, values]) =>
      values.map((value, i) => Math.abs(mine![name]![i]! - value)),
    );
    expect(Math.max(...differences)).toBeLessThan(1e-4);
  }
}

const elastic = { elastic: 0.5, everySteps: 4 } as const;
const MODES: Readonly<Record<string, Workers>> = {
  collective: { mode: 'collective', workers: 3 },
  'dist-sgd': { mode: 'dist-sgd', workers: 3, servers: 2, serverCores: 2 },
  'mpi-sgd': { mode: 'mpi-sgd', workers: 4, clients: 2 },
  'dist-asgd': { mode: 'dist-asgd', workers: 2 },
  'mpi-asgd': { mode: 'mpi-asgd', workers: 4, clients: 2, servers: 2 },
  'bounded staleness': { workers: 3, clients: 3, consistency: { staleness: 1 } },
  'dist-esgd': { mode: 'dist-esgd', workers: 2, consistency: elastic },
  'mpi-esgd': { mode: 'mpi-esgd', workers: 3, clients: 2, consistency: elastic },
};
const isSynchronous = (mode: string) => mode.endsWith('-sgd') || mode === 'collective';
/** Of clients that do not wait for each other: each makes as many updates as one device, on samples of its own. */
const ACCURACY = 0.85;

type Case = readonly [mode: string, model: SmallModel, transport: 'shm' | 'tcp'];

/** Every mode, model and transport, and each kind of consistency with each kind of gradient. */
const covering: readonly Case[] = [
  ['collective', 'rows', 'tcp'],
  ['dist-sgd', 'clipping', 'shm'],
  ['mpi-sgd', 'average', 'tcp'],
  ['mpi-sgd', 'batch norm', 'shm'],
  ['dist-asgd', 'mlp', 'tcp'],
  ['mpi-asgd', 'rows', 'shm'],
  ['bounded staleness', 'clipping', 'tcp'],
  ['dist-esgd', 'average', 'shm'],
  ['mpi-esgd', 'batch norm', 'tcp'],
];
const all = Object.keys(MODES).flatMap((mode) =>
  (Object.keys(smallModels) as SmallModel[]).flatMap((model) =>
    (['shm', 'tcp'] as const).map((transport): Case => [mode, model, transport]),
  ),
);

it.each(byForm(all, covering))(
  '%s trains the model with %s over %s',
  async (mode, model, transport) => {
    const on = { ...MODES[mode]!, transport };
    const result = train(model, on);
    const one = await oneDevice(model);
    expect(result).toMatchObject({ finished: true, workers: on.workers });
    expect(result.events.filter(({ type }) => type === 'epoch')).toHaveLength(6);
    if (isSynchronous(mode)) {
      expect(result.steps).toBe(one.steps);
      // Each worker normalises its own share of a batch.
      if (model === 'batch norm') expect(result.evaluation.accuracy).toBeGreaterThan(ACCURACY);
      else expectClose(result, one);
    } else expect(result.evaluation.accuracy).toBeGreaterThan(ACCURACY);
  },
  180_000,
);

it('goes on in another mode and on other workers, by the place in the samples', () => {
  const checkpointDirectory = folder();
  const first = train('mlp', { workers: 2 }, { maxSteps: 63, checkpointDirectory });
  expect(first).toMatchObject({ steps: 63, finished: true });
  const asynchronous = MODES['mpi-asgd']!;
  const second = train('mlp', asynchronous, { maxSteps: 44, checkpointDirectory, resume: true });
  // Three epochs are done, which are 33 steps of twice 16 samples: eleven more are made.
  expect(second.events[0]).toMatchObject({ type: 'resumed', step: 63 });
  expect(second).toMatchObject({ steps: 63 + 11, finished: true });
  const third = train('mlp', MODES['dist-esgd']!, { checkpointDirectory, resume: true });
  expect(third.events[0]).toMatchObject({ type: 'resumed', step: 74 });
  expect(third.steps).toBe(74 + 22);
  expect(third.evaluation.accuracy).toBeGreaterThan(ACCURACY);
}, 540_000);
