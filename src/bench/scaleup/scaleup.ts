/**
 * `bench scaleup`: how much faster several learners on one machine train a model than one, by every update mode, against what
 * the machine allows and against PyTorch in lock step. Checks the options and makes cases of what sides.ts measures.
 * Invariant: what is compared was measured in the same run, in alternation, on the same samples.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { elementCount, gradients } from '../../graph/index.ts';
import { createOptimizer, Kernels } from '../../kernels/index.ts';
import { UPDATE_MODES } from '../../learners/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import { textCnn, textRecipe } from '../../models/index.ts';
import { describeMachine } from '../machine.ts';
import { DDP_VARIANTS } from './ddp-group.ts';
import { MPI_VARIANTS } from './mpi-group.ts';
import { BYTES_FORMULA, bytesPerStep, caseOf, SYNCHRONOUS } from './scaleup-case.ts';
import type { ScaleupBench, ScaleupCase, ScaleupMode, StepSize } from './scaleup-case.ts';
import { describePeers, measureSides, SCALEUP_PEERS, startPeers } from './sides.ts';
import type { ScaleupPeer, SideFigures, SidesSetting, StartedPeer } from './sides.ts';
import { meanTouchedRows, readSamples } from './text-task.ts';
import type { TextSamples } from './text-task.ts';
import { writeTorchTask } from './torch-task.ts';

/** All that learners offer, and lock step to compare with. */
export const SCALEUP_MODES: readonly ScaleupMode[] = [...UPDATE_MODES, SYNCHRONOUS];

export interface ScaleupBenchOptions {
  /** Absolute path of a CSV file of texts and labels. */
  readonly data: string;
  /** Numbers of learners, each a case of its own. Default 1 and 2. */
  readonly learners?: readonly number[] | undefined;
  /** Samples in a batch of one learner, each a case of its own. Default 1, 2, 8 and 32. */
  readonly batches?: readonly number[] | undefined;
  /** Of `SCALEUP_MODES`, each a case of its own. Default all. */
  readonly modes?: readonly ScaleupMode[] | undefined;
  /** To compare with. Default all. */
  readonly peers?: readonly ScaleupPeer[] | undefined;
  /** Alternating rounds. Default 3. */
  readonly rounds?: number | undefined;
  /** How long the steps of one side are counted in a turn, in milliseconds. Default 4,000. */
  readonly turnMs?: number | undefined;
  /** From the first steps of learners until they are counted, in milliseconds. Default 1,000. */
  readonly warmupMs?: number | undefined;
  /** Environment for the peers. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal?: AbortSignal | undefined;
  /** What is going on, in words. */
  readonly onProgress?: ((message: string) => void) | undefined;
}

const MAX_LEARNERS = 64;
const MAX_BATCH = 4096;
const MAX_ROUNDS = 100;
const MAX_TURN_MS = 60_000;

export async function benchScaleup(options: ScaleupBenchOptions): Promise<ScaleupBench> {
  const setting = settingOf(options);
  const { data, batches = [1, 2, 8, 32], peers = SCALEUP_PEERS } = options;
  checkList('batches', batches, MAX_BATCH);
  const samples = readSamples(data);
  const folder = await mkdtemp(join(tmpdir(), 'tributary-bench-'));
  const started: StartedPeer[] = [];
  const skipped: string[] = [];
  const cases: ScaleupCase[] = [];
  try {
    const taskFile = writeTorchTask(samples, folder);
    skipped.push(...(await startPeers({ ...setting, peers, taskFile, folder, env: options.env }, started)));
    for (const batch of batches) {
      const samplesPerStep = samples.dataset.length / Math.ceil(samples.dataset.length / batch);
      const task = { file: data, batchSize: batch };
      const step = { batch, samplesPerStep, size: stepSizeOf(samples, batch) };
      const figures = await measureSides({ ...setting, batch, samplesPerStep, task }, started);
      cases.push(...casesOf(setting, figures, step));
    }
    return {
      ...{ bench: 'scaleup', date: new Date().toISOString(), machine: describeMachine() },
      ...{ data: basename(data), configuration: configurationOf(setting, samples, started) },
      ...{ skipped, notes: notesOn(setting), cases },
    };
  } finally {
    await Promise.all(started.map(({ group }) => group.close()));
    await rm(folder, { recursive: true, force: true });
  }
}

function settingOf(options: ScaleupBenchOptions): SidesSetting {
  const { learners = [1, 2], modes = SCALEUP_MODES, rounds = 3, turnMs = 4000, warmupMs = 1000 } = options;
  const { signal, onProgress = () => undefined } = options;
  checkList('learners', learners, MAX_LEARNERS);
  checkList('rounds', [rounds], MAX_ROUNDS);
  checkList('turnMs', [turnMs], MAX_TURN_MS);
  checkList('warmupMs', [warmupMs], MAX_TURN_MS);
  const unknown = modes.find((mode) => !SCALEUP_MODES.includes(mode));
  if (unknown !== undefined || modes.length === 0) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `there is no update mode '${unknown ?? ''}'; give some of ${SCALEUP_MODES.map((mode) => `'${mode}'`).join(', ')}`,
      { mode: unknown, known: SCALEUP_MODES },
    );
  }
  return { learners, modes, rounds, turnMs, warmupMs, signal, onProgress };
}

function checkList(name: string, values: readonly number[], most: number): void {
  const wrong = values.find((value) => !(Number.isSafeInteger(value) && value >= 1 && value <= most));
  if (wrong === undefined && values.length > 0 && new Set(values).size === values.length) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${name} is ${values.join(', ') || 'empty'}; give different whole numbers from 1 to ${most}`,
    { [name]: values },
  );
}

/** Of a mean step. What has a sparse gradient is the table of word vectors, of which rows are touched. */
export function stepSizeOf(samples: TextSamples, batch: number): StepSize {
  const all = gradients(textCnn({ ...textRecipe.options, ...samples.facts }).loss);
  const dense = all
    .filter(({ kind }) => kind === 'dense')
    .map(({ parameter }) => elementCount(parameter.shape));
  const table = all.find(({ kind }) => kind === 'sparse')!;
  const optimizer = createOptimizer(Kernels.create(SharedSpace.create()), textRecipe.optimizer);
  return {
    denseElements: dense.reduce((sum, elements) => sum + elements, 0),
    rows: meanTouchedRows(samples, batch),
    tableRows: table.parameter.shape[0]!,
    rowLength: table.parameter.shape[1]!,
    slots: optimizer.slots.length,
  };
}

function casesOf(
  { learners, modes }: Pick<SidesSetting, 'learners' | 'modes'>,
  figures: SideFigures,
  { size, ...step }: { readonly batch: number; readonly samplesPerStep: number; readonly size: StepSize },
): ScaleupCase[] {
  return learners.flatMap((count) =>
    modes.map((mode) =>
      caseOf({
        ...{ ...step, learners: count, mode, ...figures.ours(count, mode) },
        bytesPerStep: bytesPerStep(size, mode, count),
        singleSamplesPerSec: figures.single,
        ceilingSamplesPerSec: figures.ceiling(count),
        ddpSamplesPerSec: figures.peer('ddp', count),
        mpiSamplesPerSec: figures.peer('mpi', count),
        torchSamplesPerSec: figures.peer('ddp', 1),
      }),
    ),
  );
}

function configurationOf(
  { rounds, turnMs, warmupMs }: SidesSetting,
  { dataset, facts }: TextSamples,
  started: readonly StartedPeer[],
): Readonly<Record<string, unknown>> {
  const { options, optimizer, sparseUpdates } = textRecipe;
  return {
    model: { name: 'text-cnn', ...options, ...facts },
    samples: dataset.length,
    ...{ optimizer, sparseUpdates },
    threads: 'one for each process',
    single: 'one learner, which exchanges with nobody',
    ceiling:
      'as many independent single learners as learners, at the same time; for one learner, the single one',
    bytes: BYTES_FORMULA,
    statistic:
      'median of alternating rounds; learners are started anew for each turn, and their steps are counted in a window of time after warming up',
    ...{ rounds, turnMs, warmupMs },
    ddp: `the same sizes, dropouts and optimizer; lock step, the batch is that of one process; the fastest of ${DDP_VARIANTS.join(', ')} for each batch size`,
    mpi: `PyTorch with an exchange written by hand on mpi4py, as for ddp; dense gradients lie in one flat tensor, which goes by one allreduce, or by a reduce-scatter, an update of each rank's share and an allgather of the weights; of the table the touched rows go by an allgather; Adam is written by hand on the flat tensor and the touched rows; the fastest of ${MPI_VARIANTS.join(', ')} for each batch size`,
    sides: describePeers(started),
  };
}

function notesOn({ learners }: SidesSetting): string[] {
  const [most, cores] = [Math.max(...learners), cpus().length];
  return most > cores ? [`${most} learners share ${cores} cores: so do the copies of the ceiling.`] : [];
}
