/**
 * `fit`: one call from a model and a dataset to trained parameters, on one device or on several workers. It opens a
 * runner, goes through its steps, evaluates after every epoch, and reports by typed events; it prints nothing.
 * Invariants: what is resumed from a checkpoint goes on as if it had never stopped, on one device bit for bit; what
 * follows the call runs in the first process only.
 */
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import { refuseUnknownOptions, type OptionNames } from '../base/index.ts';
import type { Dataset } from '../data/index.ts';
import type { Model } from '../graph/index.ts';
import { beyondEnd, checkRunData, type Evaluation, type Replica } from '../runtime/index.ts';
import { fitByLearners, type LearnersReport, type LearnersEvent } from './fit-learners.ts';
import { openRunnerOn } from './get-runner.ts';
import { RUN_OPTIONS, RUNNER_OPTIONS } from './option-names.ts';
import { checkDataset, checkRunLength, checkRunnerConfig } from './option-values.ts';
import { Pace } from './pace.ts';
import { resolveOn, type On } from './on.ts';
import type { CheckpointEvent } from './run-checkpoints.ts';
import type { Runner, RunnerConfig, RunOptions } from './runner.ts';
import { shard } from './shard.ts';

export interface FitOptions extends RunnerConfig, RunOptions {
  readonly train: Dataset;
  /** Evaluated after every epoch. */
  readonly test?: Dataset | undefined;
  /**
   * Who trains. With workers or learners the script is started again in each further process, comes
   * to this call there, and ends in it: a script can do so once, and with no other runner open.
   * Default: this process.
   */
  readonly on?: On | undefined;
  /** Milliseconds between two `progress` events. Default 100. */
  readonly progressIntervalMs?: number | undefined;
  /** Receives events, in the first process only. Default: none. */
  readonly onEvent?: (event: FitEvent) => void;
}

const FIT_OPTIONS: OptionNames<FitOptions> = {
  ...{ train: true, test: true, on: true, progressIntervalMs: true },
  ...RUN_OPTIONS,
  ...RUNNER_OPTIONS,
};

export type FitEvent =
  | CheckpointEvent
  | LearnersEvent
  | {
      readonly type: 'started';
      readonly step: number;
      readonly totalSteps: number;
      /** Elements of all. */
      readonly parameters: number;
      /** Process ids of learners, where they train. */
      readonly learners?: readonly number[];
      /** That of their server, where they have one. */
      readonly server?: number | undefined;
    }
  | {
      readonly type: 'progress';
      readonly step: number;
      readonly totalSteps: number;
      readonly epoch: number;
      /** Mean over the last steps; of learners since the epoch began. */
      readonly loss: number;
      readonly samplesPerSec: number;
      /** NaN until it is known. */
      readonly remainingMs: number;
      /** Learners that have begun to train. */
      readonly ready?: number;
      /**
       * Of learners: updates by others between reading the weights and applying a gradient, mean
       * over all batches.
       */
      readonly meanStaleness?: number;
    }
  | {
      readonly type: 'epoch';
      readonly epoch: number;
      readonly step: number;
      readonly loss: number;
      readonly evaluation?: Evaluation;
    }
  | { readonly type: 'stopped'; readonly step: number };

export interface FitResult {
  /** Holds the trained parameters; close it when done. */
  readonly replica: Replica;
  readonly steps: number;
  /** False if the signal stopped it. */
  readonly finished: boolean;
  readonly evaluation: Evaluation | undefined;
  readonly samplesPerSec: number;
  /** 1 with learners, of which `learners` tells. */
  readonly workers: number;
  /** Where learners trained. */
  readonly learners?: LearnersReport;
  readonly checkpointPath: string | undefined;
  close(): Promise<void>;
}

export async function fit(model: Model, options: FitOptions): Promise<FitResult> {
  refuseUnknownOptions('fit', options, FIT_OPTIONS);
  const {
    onEvent = () => undefined,
    progressIntervalMs = 100,
    log = (line: string) => process.stderr.write(`${line}\n`),
  } = options;
  checkRunnerConfig(model, options);
  checkRunLength(options);
  checkDataset('train', options.train);
  if (options.test !== undefined) checkDataset('test', options.test);
  checkRunData(model, options);
  const resolved = resolveOn(options.on, 'here');
  if (resolved.kind === 'learners') return fitByLearners(model, options, resolved);
  const pace = new Pace(progressIntervalMs);
  const observed = {
    ...options,
    onEvent: (event: CheckpointEvent) => {
      onEvent(event);
      pace.pause();
    },
  };
  const runner = await openRunnerOn(model, observed, resolved, { isAlone: true });
  try {
    const { replica, workers, rank } = runner;
    const note = beyondEnd(runner.checkpointPath, replica.step, totalStepsOf(runner, options));
    if (rank === 0 && note !== undefined) log(note);
    const evaluation = await train(runner, options, pace, rank === 0 ? onEvent : () => undefined);
    // Further workers end here.
    await runner.leave();
    return {
      ...{
        replica,
        workers,
        evaluation,
        steps: replica.step,
        finished: replica.step >= totalStepsOf(runner, options),
      },
      ...{ samplesPerSec: pace.samplesPerSec(), checkpointPath: runner.checkpointPath },
      close: () => runner.close(),
    };
  } catch (error) {
    await runner.abort(error as Error);
    throw error;
  }
}

function totalStepsOf(
  { stepSamples, stepOffset }: Runner,
  { train, epochs = 1, maxSteps = Infinity }: FitOptions,
): number {
  return stepOffset + Math.min(epochs * Math.ceil(train.length / stepSamples), maxSteps);
}

/** Gives the last evaluation. */
async function train(
  runner: Runner,
  options: FitOptions,
  pace: Pace,
  tell: (event: FitEvent) => void,
): Promise<Evaluation | undefined> {
  const { replica, workers } = runner;
  const { test, epochs, maxSteps, signal } = options;
  const totalSteps = totalStepsOf(runner, options);
  const parameters = [...replica.model.graph.parameters.values()].reduce(
    (sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1),
    0,
  );
  tell({ type: 'started', step: replica.step, totalSteps, parameters });
  pace.begin();
  let evaluation: Evaluation | undefined;
  // Several workers measure and plan in their first step.
  let isTimed = workers === 1;
  for await (const { step, epoch, loss, samples, last } of runner.run(shard(options.train), {
    ...{ epochs, maxSteps, signal },
  })) {
    pace.add(loss, samples, isTimed);
    isTimed = true;
    if (pace.due()) {
      const remainingMs = pace.remainingMs(totalSteps - step);
      const [recent, samplesPerSec] = [pace.recentLoss(), pace.samplesPerSec()];
      tell({ type: 'progress', step, totalSteps, epoch, loss: recent, samplesPerSec, remainingMs });
      await yieldToEvents();
    }
    if (!last && step !== totalSteps) continue;
    evaluation = test && (await runner.evaluate(shard(test)));
    tell({ type: 'epoch', epoch, step, loss: pace.epochLoss(), ...(evaluation ? { evaluation } : {}) });
    await yieldToEvents();
    pace.pause();
  }
  if (replica.step < totalSteps) tell({ type: 'stopped', step: replica.step });
  // A checkpoint of the end left nothing to do.
  else if (test && !evaluation) evaluation = await runner.evaluate(shard(test));
  return evaluation;
}
