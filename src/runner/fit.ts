/**
 * `fit`: one call from a model and a dataset to trained parameters, on one device. It owns the loop (epochs,
 * learning rate, evaluation, checkpoints, resume, stopping) and reports by typed events; it prints nothing.
 * Invariant: what is resumed from a checkpoint goes on bit for bit as if it had never stopped.
 */
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import { learningRateAt, UsageError, type ScheduleSpec } from '../base/index.ts';
import { OnnxCompute, type Compute, type SessionOptions } from '../compute/index.ts';
import { openLoader, SampleOrder, type BatchLoader, type Dataset } from '../data/index.ts';
import type { Model } from '../graph/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import { SharedSpace } from '../memory/index.ts';
import { CheckpointStore, Replica, type JsonValue } from '../runtime/index.ts';
import { evaluate, type Evaluation } from './evaluate.ts';
import { Pace } from './pace.ts';

export interface FitOptions {
  readonly train: Dataset;
  /** Evaluated after every epoch. */
  readonly test?: Dataset | undefined;
  readonly optimizer: OptimizerSpec;
  /** Changes the learning rate by step. Default: the optimizer's own rate throughout. */
  readonly schedule?: ScheduleSpec | undefined;
  /** Samples in a batch. Default 32. */
  readonly batchSize?: number | undefined;
  /** Default 1. */
  readonly epochs?: number | undefined;
  /** Stop after this many steps, in whatever epoch. */
  readonly maxSteps?: number | undefined;
  /** Decides initial parameters, sample order and dropout. Default 0. */
  readonly seed?: number | undefined;
  /** See `ReplicaOptions.sparseUpdates`. Default 'exact'. */
  readonly sparseUpdates?: 'exact' | 'lazy' | undefined;
  /** Folder for checkpoints. Default: none are written. */
  readonly checkpointDirectory?: string | undefined;
  /** Default: at the end of every epoch only. */
  readonly checkpointEverySteps?: number | undefined;
  /** Go on from the newest good checkpoint of the folder, if there is one. Default false. */
  readonly resume?: boolean | undefined;
  /** Stops after the current step, with a checkpoint. */
  readonly signal?: AbortSignal | undefined;
  /** Threads and execution provider. Default one thread on the CPU. */
  readonly session?: SessionOptions | undefined;
  /** Milliseconds between two `progress` events. Default 100. */
  readonly progressIntervalMs?: number | undefined;
  readonly onEvent?: (event: FitEvent) => void;
}

export type FitEvent =
  | {
      readonly type: 'started';
      readonly step: number;
      readonly totalSteps: number;
      readonly parameters: number;
    }
  | { readonly type: 'resumed'; readonly path: string; readonly step: number }
  | { readonly type: 'checkpoint-skipped'; readonly path: string; readonly reason: string }
  | {
      readonly type: 'progress';
      readonly step: number;
      readonly totalSteps: number;
      readonly epoch: number;
      /** Mean over the last steps. */
      readonly loss: number;
      readonly samplesPerSec: number;
      readonly remainingMs: number;
    }
  | {
      readonly type: 'epoch';
      readonly epoch: number;
      readonly step: number;
      readonly loss: number;
      readonly evaluation?: Evaluation;
    }
  | { readonly type: 'checkpoint'; readonly path: string; readonly step: number }
  | { readonly type: 'stopped'; readonly step: number };

export interface FitResult {
  /** Holds the trained parameters; close it when done. */
  readonly replica: Replica;
  readonly steps: number;
  /** False if the signal stopped it. */
  readonly finished: boolean;
  readonly evaluation: Evaluation | undefined;
  readonly samplesPerSec: number;
  readonly checkpointPath: string | undefined;
  close(): Promise<void>;
}

export async function fit(model: Model, options: FitOptions): Promise<FitResult> {
  const {
    train,
    test,
    batchSize = 32,
    epochs = 1,
    seed = 0,
    checkpointEverySteps,
    onEvent = () => undefined,
  } = options;
  const stepsPerEpoch = Math.ceil(train.length / batchSize);
  const totalSteps = Math.min(epochs * stepsPerEpoch, options.maxSteps ?? Infinity);
  const compute: Compute = new OnnxCompute(options.session);
  const run = new Run(model, options, compute, batchSize, seed);
  try {
    run.resume();
    const { replica, loader } = run;
    const parameters = [...model.graph.parameters.values()].reduce(
      (sum, p) => sum + p.shape.reduce((a, b) => a * b, 1),
      0,
    );
    onEvent({ type: 'started', step: replica.step, totalSteps, parameters });
    const pace = new Pace(options.progressIntervalMs ?? 100);
    let evaluation: Evaluation | undefined;
    while (replica.step < totalSteps && !options.signal?.aborted) {
      const batch = loader.next(run.targets);
      const loss = replica.computeGradients(batch.samples);
      if (!Number.isFinite(loss)) throw run.notANumber(loss);
      replica.update(options.schedule ? learningRateAt(options.schedule, replica.step) : undefined);
      pace.add(loss, batch.size);
      if (pace.due()) {
        const remainingMs = pace.remainingMs(totalSteps - replica.step);
        onEvent({
          type: 'progress',
          step: replica.step,
          totalSteps,
          epoch: batch.epoch,
          loss: pace.recentLoss(),
          samplesPerSec: pace.samplesPerSec(),
          remainingMs,
        });
        await yieldToEvents();
      }
      if (batch.last || replica.step === totalSteps) {
        evaluation = test ? evaluate(replica, test) : undefined;
        onEvent({
          type: 'epoch',
          epoch: batch.epoch,
          step: replica.step,
          loss: pace.epochLoss(),
          ...(evaluation ? { evaluation } : {}),
        });
        run.save(evaluation);
        await yieldToEvents();
        pace.pause();
      } else if (checkpointEverySteps !== undefined && replica.step % checkpointEverySteps === 0) {
        run.save(evaluation);
      }
    }
    const finished = replica.step >= totalSteps;
    if (!finished) {
      run.save(evaluation);
      onEvent({ type: 'stopped', step: replica.step });
    }
    const { checkpointPath } = run;
    const close = () => run.close();
    return {
      replica,
      steps: replica.step,
      finished,
      evaluation,
      samplesPerSec: pace.samplesPerSec(),
      checkpointPath,
      close,
    };
  } catch (error) {
    await run.close();
    throw error;
  }
}

/** What lives as long as a run. */
class Run {
  readonly replica: Replica;
  loader: BatchLoader;
  checkpointPath: string | undefined;
  readonly #options: FitOptions;
  readonly #store: CheckpointStore | undefined;
  readonly #compute: Compute;
  readonly #batchSize: number;
  readonly #seed: number;
  #savedStep = -1;

  constructor(model: Model, options: FitOptions, compute: Compute, batchSize: number, seed: number) {
    this.#options = options;
    this.#compute = compute;
    this.#batchSize = batchSize;
    this.#seed = seed;
    this.replica = new Replica(model, {
      compute,
      space: SharedSpace.create(),
      optimizer: options.optimizer,
      maxBatch: batchSize,
      seed,
      sparseUpdates: options.sparseUpdates ?? 'exact',
    });
    this.#store =
      options.checkpointDirectory === undefined
        ? undefined
        : new CheckpointStore(options.checkpointDirectory);
    this.loader = this.#open(new SampleOrder(options.train.length, { seed }));
  }

  /** The model's inputs that the dataset fills. */
  get targets(): Record<string, Float32Array | Int32Array> {
    return this.replica.inputs;
  }

  resume(): void {
    const { resume = false, onEvent = () => undefined } = this.#options;
    if (!resume || !this.#store) return;
    const { checkpoint, path, skipped } = this.#store.latest();
    for (const { path: bad, reason } of skipped) onEvent({ type: 'checkpoint-skipped', path: bad, reason });
    if (!checkpoint || path === undefined) return;
    const state = checkpoint.state as { seed?: JsonValue; optimizer?: JsonValue; order?: JsonValue };
    const mine = JSON.stringify({ seed: this.#seed, optimizer: this.replica.optimizer.spec });
    const theirs = JSON.stringify({
      seed: state.seed,
      optimizer: sortedLike(state.optimizer, this.replica.optimizer.spec),
    });
    if (mine !== theirs) {
      throw new UsageError(
        'CHECKPOINT_MISMATCH',
        `${path} was made with ${theirs}, this run has ${mine}. Use the same seed and optimizer, or start in another folder.`,
      );
    }
    this.replica.restore(checkpoint, checkpoint.step);
    this.loader = this.#open(SampleOrder.restore(this.#options.train.length, state.order));
    this.checkpointPath = path;
    this.#savedStep = checkpoint.step;
    onEvent({ type: 'resumed', path, step: checkpoint.step });
  }

  /** Writes a checkpoint, unless this step has one or the parameters are broken. */
  save(evaluation: Evaluation | undefined): void {
    const { replica } = this;
    if (!this.#store || this.#savedStep === replica.step) return;
    if (!replica.isFinite()) throw this.notANumber(NaN);
    const { tensors, optimizer } = replica.snapshot();
    const state = {
      seed: this.#seed,
      optimizer: replica.optimizer.spec as unknown as JsonValue,
      schedule: (this.#options.schedule ?? null) as JsonValue,
      order: this.loader.state as unknown as JsonValue,
      metrics: (evaluation ? { ...evaluation } : null) as JsonValue,
    };
    this.checkpointPath = this.#store.save({
      step: replica.step,
      epoch: this.loader.state.epoch,
      tensors,
      optimizer,
      state,
    });
    this.#savedStep = replica.step;
    this.#options.onEvent?.({ type: 'checkpoint', path: this.checkpointPath, step: replica.step });
  }

  notANumber(loss: number): UsageError {
    const kept =
      this.checkpointPath === undefined
        ? 'No checkpoint was written yet'
        : `The last good checkpoint is ${this.checkpointPath}`;
    return new UsageError(
      'NOT_A_NUMBER',
      `The loss is ${loss} at step ${this.replica.step}. ${kept}. Lower the learning rate, clip gradients, or look for broken values in the data.`,
      { step: this.replica.step, checkpoint: this.checkpointPath },
    );
  }

  async close(): Promise<void> {
    await this.loader.close();
    this.replica.close();
    this.#compute.close();
  }

  #open(order: SampleOrder): BatchLoader {
    const { train } = this.#options;
    for (const name of this.replica.memory.inputs.keys()) train.column(name);
    const columns = [...this.replica.memory.inputs.keys()];
    return openLoader({ dataset: train, order, batchSize: this.#batchSize, columns });
  }
}

/** The stored specification with the keys in our order, so that texts compare. */
function sortedLike(stored: JsonValue | undefined, like: object): unknown {
  if (typeof stored !== 'object' || stored === null) return stored;
  return Object.fromEntries(
    Object.keys(like).map((key) => [key, (stored as Record<string, JsonValue>)[key]]),
  );
}
