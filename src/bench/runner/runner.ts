/**
 * `bench runner`: how close workers by `getRunner` come to as many independent copies, which exchange nothing, with PyTorch
 * alone and by DDP beside them. Checks the options and makes cases of what sides.ts measures.
 * Invariant: what is compared was measured in the same run, in alternation, and came to the same losses.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { describeMachine, type Machine } from '../machine.ts';
import { StolenTime } from '../stolen-time.ts';
import { RUNNER_MODELS, runnerModels, TRAINING, type RunnerModel } from './runner-models.ts';
import { COMPARED_STEPS, measureSides, type SideFigures } from './sides.ts';

export interface RunnerBenchOptions {
  /** Default all. */
  readonly models?: readonly RunnerModel[] | undefined;
  /** Processes that train together on this machine, from 2. Default 2. */
  readonly workers?: number | undefined;
  /** Samples in a batch of each worker. Default 32. */
  readonly batch?: number | undefined;
  /** Alternating rounds. Default 5. */
  readonly rounds?: number | undefined;
  /** About how long a turn of one side takes, in milliseconds. Default 3,000. */
  readonly turnMs?: number | undefined;
  /** Whether PyTorch is measured too. Default true. */
  readonly withPeers?: boolean | undefined;
  /** Environment for all processes. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal?: AbortSignal | undefined;
  /** What is going on, in words. */
  readonly onProgress?: ((message: string) => void) | undefined;
}

export interface RunnerCase {
  readonly model: string;
  readonly workers: number;
  /** Of each worker. */
  readonly batch: number;
  /** Of all workers, by `getRunner`. */
  readonly samplesPerSec: number;
  /** Of one device alone. */
  readonly singleSamplesPerSec: number;
  /** Of as many independent copies as workers, at the same time. */
  readonly ceilingSamplesPerSec: number;
  /** Of those copies when they wait for each other behind every step: what lock step alone costs here. */
  readonly inStepSamplesPerSec: number;
  /** To one device. */
  readonly speedup: number;
  /** To the ceiling. */
  readonly efficiency: number;
  /** To the copies in step: what is left for the exchange. */
  readonly efficiencyInStep: number;
  /** Of a step of the first worker: forward and backward pass. */
  readonly computeMs: number;
  /** Of a step of the first worker: for gradients of others, behind the backward pass. */
  readonly waitMs: number;
  /** Null where PyTorch was not measured. */
  readonly ddpSamplesPerSec: number | null;
  /** Of one PyTorch process alone. */
  readonly ddpSingleSamplesPerSec: number | null;
}

export interface RunnerBench {
  readonly bench: 'runner';
  /** ISO 8601. */
  readonly date: string;
  readonly machine: Machine;
  readonly configuration: Readonly<Record<string, unknown>>;
  /** What was left out, and why. */
  readonly skipped: readonly string[];
  readonly notes: readonly string[];
  readonly cases: readonly RunnerCase[];
}

export async function benchRunner(options: RunnerBenchOptions): Promise<RunnerBench> {
  const { models = RUNNER_MODELS, workers = 2, batch = 32, rounds = 5, turnMs = 3000 } = options;
  const { env, signal, withPeers = true, onProgress = () => undefined } = options;
  check('workers', workers, 2, 64);
  check('batch', batch, 1, 4096);
  check('rounds', rounds, 1, 100);
  check('turnMs', turnMs, 1, 60_000);
  const stolen = new StolenTime();
  const folder = await mkdtemp(join(tmpdir(), 'tributary-bench-'));
  const setting = { workers, batch, rounds, turnMs, withPeers, folder, env, signal, onProgress };
  const measured: (readonly [RunnerModel, SideFigures])[] = [];
  try {
    for (const model of models) measured.push([model, await measureSides(model, setting)]);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return {
    ...{ bench: 'runner', date: new Date().toISOString(), machine: describeMachine() },
    configuration: {
      ...{ workers, batch, rounds, turnMs, ...TRAINING, threads: 'one for each worker' },
      step: 'loading, forward, backward, exchange and update; PyTorch takes its batches as views of memory, without copying',
      single: 'one device alone, which exchanges with nobody',
      ceiling: 'as many independent single devices as workers, at the same time',
      inStep:
        'the same, but each waits for the others behind every step, on a word of shared memory, and exchanges nothing',
      statistic:
        'median of alternating rounds; all processes live as long as their model and sleep between turns',
      ddp: 'the same model from the same parameters on the same samples by plain SGD; the fastest variant',
      peers: measured.flatMap(([model, figures]) => figures.peers.map((peer) => ({ model, ...peer }))),
    },
    skipped: [...new Set(measured.flatMap(([, { skipped }]) => skipped))],
    notes: [...notesOn(models, workers), ...stolen.notes()],
    cases: measured.map(([model, figures]) => caseOf(runnerModels[model].title, { workers, batch }, figures)),
  };
}

/** The figures of a model with their ratios. */
export function caseOf(
  model: string,
  { workers, batch }: Pick<RunnerCase, 'workers' | 'batch'>,
  figures: Omit<SideFigures, 'peers' | 'skipped'>,
): RunnerCase {
  const { single, ceiling, inStep, computeMs, waitMs, ddp, ddpSingle } = figures;
  return {
    ...{ model, workers, batch, samplesPerSec: figures.workers },
    ...{ singleSamplesPerSec: single, ceilingSamplesPerSec: ceiling, inStepSamplesPerSec: inStep },
    ...{ speedup: figures.workers / single, efficiency: figures.workers / ceiling },
    ...{ efficiencyInStep: figures.workers / inStep, computeMs, waitMs },
    ...{ ddpSamplesPerSec: ddp, ddpSingleSamplesPerSec: ddpSingle },
  };
}

function notesOn(models: readonly RunnerModel[], workers: number): string[] {
  const cores = cpus().length;
  const normalised = models.filter((model) => runnerModels[model].hasBatchStatistics);
  return [
    `The first ${COMPARED_STEPS} losses of ${workers} workers, and of PyTorch DDP where it is there, are those of one device with the same batch, parameters and samples.`,
    ...(normalised.length === 0
      ? []
      : [
          `${normalised.map((model) => runnerModels[model].title).join(', ')}: every worker normalises by its own share of a batch, so one device computes the shares one after the other.`,
        ]),
    ...(workers > cores ? [`${workers} workers share ${cores} cores: so do the copies of the ceiling.`] : []),
  ];
}

function check(name: string, value: number, least: number, most: number): void {
  if (Number.isSafeInteger(value) && value >= least && value <= most) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${name} is ${value}; give a whole number from ${least} to ${most}`,
    { [name]: value },
  );
}
