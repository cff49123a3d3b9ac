/**
 * Trains a replica step by step over a dataset, alone or with other workers: a share of each batch is computed here, the exchange
 * makes one gradient of all shares, and every worker applies it. It owns no processes and prints nothing.
 * Invariant: with the same seed and batch size, losses and parameters are those of one device up to rounding.
 */
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import { learningRateAt, UsageError, type ScheduleSpec } from '../base/index.ts';
import type { Compute, SessionOptions } from '../compute/index.ts';
import { openLoader, SampleOrder, type Batch, type Dataset } from '../data/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import type { ExchangePlan, Merging } from '../plan/index.ts';
import type { Replica } from '../runtime/index.ts';
import { evaluate, type EvaluateOptions, type Evaluation } from './evaluate.ts';
import type { PlanOptions } from './plan-run.ts';
import { Shard } from './shard.ts';
import type { SharedGradients, SharedStep } from './shared-step.ts';

export interface RunnerConfig extends PlanOptions {
  readonly optimizer: OptimizerSpec;
  /** Changes the learning rate by step. Default: the optimizer's own rate throughout. */
  readonly schedule?: ScheduleSpec | undefined;
  /** Samples in a batch, over all workers. Default 32. */
  readonly batchSize?: number | undefined;
  /** Decides initial parameters, sample order and dropout. Default 0. */
  readonly seed?: number | undefined;
  /** See `ReplicaOptions.sparseUpdates`. Default 'exact'. */
  readonly sparseUpdates?: 'exact' | 'lazy' | undefined;
  /** Threads and execution provider of each worker. Default one thread on the CPU. */
  readonly session?: SessionOptions | undefined;
  /** What becomes of trainable parameters that the loss does not depend on, with several workers. Default 'refuse'. */
  readonly unusedParameters?: 'refuse' | 'skip' | undefined;
  /** Between two comparisons of the workers' replicas; a difference is an error. Default 1,000. */
  readonly compareEverySteps?: number | undefined;
  /** File for a Chrome trace of the run, with the lanes of all workers; it opens in Perfetto. Default: none. */
  readonly trace?: string | undefined;
  /** Takes lines for people about how the run goes, on the first worker. Default: to the error output. */
  readonly log?: ((line: string) => void) | undefined;
}

export interface RunOptions {
  /** Default 1. */
  readonly epochs?: number | undefined;
  /** Stop after this many steps, in whatever epoch. Default: none. */
  readonly maxSteps?: number | undefined;
  /** Ends the run after the current step; on all workers, as all must stop at the same one, so give it to all. */
  readonly signal?: AbortSignal | undefined;
}

export interface StepReport {
  /** Finished steps of the replica. */
  readonly step: number;
  readonly epoch: number;
  /** Mean over the whole batch, of all workers. */
  readonly loss: number;
  /** In the whole batch. */
  readonly samples: number;
  /** Whether it was the last of its epoch. */
  readonly last: boolean;
  /** Milliseconds of forward and backward pass here. */
  readonly computeMs: number;
  /** Milliseconds of waiting for gradients of others, behind the backward pass. */
  readonly waitMs: number;
}

export interface RunnerParts {
  readonly replica: Replica;
  readonly compute: Compute;
  readonly config: RunnerConfig;
  readonly rank: number;
  readonly workers: number;
  /** How gradients are computed with the others. Absent for one device. */
  readonly shared?: SharedStep | undefined;
  /** Ends what the runner was made with. */
  readonly onClose?: (() => Promise<void>) | undefined;
  /** Turns an error of a step into one that says more, if it can. */
  readonly explain?: ((error: unknown) => Promise<unknown>) | undefined;
}

/** How long the event loop may have to wait for its turn. */
const YIELD_EVERY_MS = 20;

export class Runner {
  readonly #parts: RunnerParts;
  #isClosed = false;

  /** Use `oneDevice` or `getRunner`. */
  constructor(parts: RunnerParts) {
    this.#parts = parts;
  }

  /** This worker's number, from 0. */
  get rank(): number {
    return this.#parts.rank;
  }

  get workers(): number {
    return this.#parts.workers;
  }

  /** This worker's copy of the model. */
  get replica(): Replica {
    return this.#parts.replica;
  }

  /** How gradients travel; from the first step on, and undefined for one device. */
  get plan(): ExchangePlan | undefined {
    return this.#parts.shared?.plan;
  }

  /** Merges gradients otherwise from the next step on; all workers call it between the same steps. For comparing. */
  regroup(merging: Merging): ExchangePlan | undefined {
    return this.#parts.shared?.regroup(merging);
  }

  /** Trains on a dataset, of which every worker takes its share if it is a `shard`; one report for each step. */
  async *run(data: Dataset | Shard, options: RunOptions = {}): AsyncGenerator<StepReport> {
    const { replica, config, rank, workers } = this.#parts;
    const { batchSize = 32, seed = 0 } = config;
    const { epochs = 1, maxSteps = Infinity, signal } = options;
    const isShared = data instanceof Shard;
    const dataset = isShared ? data.dataset : data;
    const columns = [...replica.memory.inputs.keys()];
    for (const name of columns) dataset.column(name);
    const part = isShared ? { index: rank, count: workers } : { index: 0, count: 1 };
    const order = new SampleOrder(dataset.length, { seed });
    const size = isShared ? batchSize : replica.memory.sampleIds.length;
    const loader = openLoader({ dataset, order, batchSize: size, columns, part });
    const lastStep = replica.step + Math.min(maxSteps, epochs * Math.ceil(dataset.length / size));
    let yieldedMs = performance.now();
    try {
      while (replica.step < lastStep && !signal?.aborted) {
        const batch = loader.next(replica.inputs);
        const done = await this.#step(batch);
        const { epoch, batchSize: samples, last } = batch;
        yield { step: replica.step, epoch, samples, last, ...done };
        if (performance.now() - yieldedMs < YIELD_EVERY_MS) continue;
        await yieldToEvents();
        yieldedMs = performance.now();
      }
    } finally {
      await loader.close();
    }
  }

  /** Every worker evaluates for itself, the first alone if only that one asks. */
  async evaluate(dataset: Dataset, options?: EvaluateOptions): Promise<Evaluation> {
    await this.#parts.shared?.fetchAll();
    return evaluate(this.#parts.replica, dataset, options);
  }

  /** Ends the run. Processes that were started as further workers end here too: what follows runs in the first one only. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    await this.#parts.shared?.close();
    this.#parts.replica.close();
    this.#parts.compute.close();
    await this.#parts.onClose?.();
  }

  async #step({ samples }: Batch): Promise<Pick<StepReport, 'loss' | 'computeMs' | 'waitMs'>> {
    const { replica, config, shared, explain } = this.#parts;
    try {
      const { loss, elsewhere, computeMs, waitMs } = shared
        ? await shared.compute(samples)
        : this.#computeAlone(samples);
      if (!Number.isFinite(loss)) throw notANumber(loss, replica.step);
      const lr = config.schedule ? learningRateAt(config.schedule, replica.step) : undefined;
      const scale = replica.update(lr, elsewhere);
      await shared?.apply({ scale, lr });
      return { loss, computeMs, waitMs };
    } catch (error) {
      throw explain ? await explain(error) : error;
    }
  }

  #computeAlone(samples: ArrayLike<number>): Omit<SharedGradients, 'elsewhere'> & { elsewhere: undefined } {
    const startedMs = performance.now();
    const loss = this.#parts.replica.computeGradients(samples);
    return { loss, elsewhere: undefined, computeMs: performance.now() - startedMs, waitMs: 0 };
  }
}

function notANumber(loss: number, step: number): UsageError {
  return new UsageError(
    'NOT_A_NUMBER',
    `The loss is ${loss} at step ${step}; the parameters are those of the step before. Lower the learning rate, clip gradients, or look for broken values in the data.`,
    { step },
  );
}
