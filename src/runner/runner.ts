/**
 * Trains a replica step by step over a dataset, alone or with other workers: a share of each batch is computed here,
 * the exchange makes one gradient of all shares, and every worker applies it. It owns no processes and prints
 * nothing. Invariant: with the same seed and batch size, losses and parameters are those of one device up to
 * rounding.
 */
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import {
  learningRateAt,
  PeerError,
  refuseUnknownOptions,
  UsageError,
  type ScheduleSpec,
} from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import type { Compute, SessionOptions } from '../compute/index.ts';
import { openLoader, SampleOrder, type Batch, type Dataset } from '../data/index.ts';
import { NO_TABLES, tellAll, type RemoteTables } from '../exchange/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import type { ExchangePlan, Merging, StepProgram } from '../plan/index.ts';
import {
  checkColumns,
  evaluate,
  evaluateRemotely,
  evaluationOf,
  NOTHING_EVALUATED,
  replicaOperations,
  StepContext,
  StepWalk,
  type EvaluateOptions,
  type Evaluation,
  type Replica,
} from '../runtime/index.ts';
import { compareData } from './dataset-check.ts';
import { attemptTogether } from './joint-attempt.ts';
import type { Asked, JointStep, StepOutcome, StepShare } from './joint-step.ts';
import { RUN_OPTIONS } from './option-names.ts';
import { checkDataset, checkRunLength } from './option-values.ts';
import type { PlanOptions } from './plan-run.ts';
import { programOf } from './run-program.ts';
import {
  RunCheckpoints,
  type CheckpointEvent,
  type CheckpointOptions,
  type PlaceInSamples,
} from './run-checkpoints.ts';
import { Shard } from './shard.ts';
import type { Trace } from './trace.ts';

export interface RunnerConfig extends PlanOptions, CheckpointOptions {
  readonly optimizer: OptimizerSpec;
  /** Changes the learning rate by step. Default: the optimizer's own rate throughout. */
  readonly schedule?: ScheduleSpec | undefined;
  /** Samples in a batch, over all workers. Default 32. */
  readonly batchSize?: number | undefined;
  /** Decides initial parameters, sample order and dropout. Default 0. */
  readonly seed?: number | undefined;
  /** See `ReplicaOptions.sparseUpdates`. Default 'exact'. */
  readonly sparseUpdates?: 'exact' | 'lazy' | undefined;
  /**
   * Tables that live on servers only, by the names of their parameters: a worker has the rows of
   * its batch. With several workers and a checkpointDirectory, for tables that are trained and only
   * looked up, by inputs of the model. 'auto': all such tables of more than 256 MiB. Default
   * 'auto'.
   */
  readonly serverTables?: 'auto' | readonly string[] | undefined;
  /** Threads and execution provider of each worker. Default one thread on the CPU. */
  readonly session?: SessionOptions | undefined;
  /** What becomes of trainable parameters that the loss does not depend on, with several workers. Default 'refuse'. */
  readonly unusedParameters?: 'refuse' | 'skip' | undefined;
  /** Between two comparisons of the workers' replicas; a difference is an error. Default 1,000. */
  readonly compareEverySteps?: number | undefined;
  /**
   * File for a Chrome trace of the run, with the lanes of all workers or of the one device; it opens in Perfetto.
   * Written when the runner leaves or closes. The forward pass runs apart from the backward pass meanwhile, which
   * takes a little longer. Default: none.
   */
  readonly trace?: string | undefined;
  /** Takes lines for people about how the run goes, on the first worker. Default: to the error output. */
  readonly log?: ((line: string) => void) | undefined;
  /** Receives checkpoint events, on the first worker only. Default: none. */
  readonly onEvent?: ((event: CheckpointEvent) => void) | undefined;
}

export interface RunOptions {
  /** Default 1. */
  readonly epochs?: number | undefined;
  /** Stop after this many steps, in whatever epoch. Default: none. */
  readonly maxSteps?: number | undefined;
  /**
   * Ends the run after the current step, with a checkpoint where there is a folder for it. Give one to all workers or
   * to none: any of them stops all, after the same step.
   */
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
  readonly shared?: JointStep | undefined;
  /** To the other workers. Absent for one device. */
  readonly thread?: CommunicationThread | undefined;
  /** Collects what happens when. Default: none. */
  readonly trace?: Trace | undefined;
  /** Ends what the runner was made with. */
  readonly onClose?: (() => Promise<void>) | undefined;
  /**
   * What could not be written when the others left. Only `close` throws it, so that the result of a run is not lost
   * with it.
   */
  readonly lateFailure?: (() => Error | undefined) | undefined;
  /** Gives up what the runner was made with; the other workers see this one as lost. */
  readonly onAbort?: ((error: Error) => Promise<void>) | undefined;
  /** Turns an error of a step into one that says more, if it can. */
  readonly explain?: ((error: unknown) => Promise<unknown>) | undefined;
}

/** How long the event loop may have to wait for its turn. */
const YIELD_EVERY_MS = 20;

export class Runner {
  readonly #parts: RunnerParts;
  readonly #checkpoints: RunCheckpoints;
  /** Where parameters were at first; some may move to servers. */
  readonly #home: Replica['memory']['parameters'];
  #order: PlaceInSamples | undefined;
  /** Steps of the checkpoint resumed from that runs have yet to pass over. */
  #stepsAhead = 0;
  #evaluation: Evaluation | undefined;
  /** Of one device. */
  readonly #alone: { readonly walk: StepWalk; readonly program: StepProgram } | undefined;
  readonly #step = new StepContext();
  /** Brings the batch of the next step. */
  #load: (() => Batch) | undefined;
  /** Set when the other workers are left, or given up; each is done once. */
  #leaving: Promise<void> | undefined;
  #aborting: Promise<void> | undefined;
  /** Nothing is in common with other workers any more. */
  #hasLeft = false;
  #isClosed = false;
  /** Something with the others went wrong, and nothing more is asked of them. */
  #hasFailed = false;

  /** Use `oneDevice` or `getRunner`. Resumes if it is to. */
  constructor(parts: RunnerParts) {
    this.#parts = parts;
    const { replica, config, thread, shared, trace } = parts;
    const { seed = 0, batchSize = 32, schedule, onEvent } = config;
    const stepSamples = shared?.stepSamples ?? batchSize;
    this.#checkpoints = new RunCheckpoints({
      ...{ replica, options: config, seed, batchSize, stepSamples, schedule, thread, onEvent },
    });
    this.#home = new Map(replica.memory.parameters);
    this.#order = this.#checkpoints.begin();
    if (this.#order) this.#stepsAhead = replica.step - this.#checkpoints.stepOffset;
    if (this.#checkpoints.note !== undefined && parts.rank === 0) this.#log(this.#checkpoints.note);
    if (shared) return;
    const program = programOf(replica, config);
    this.#alone = { program, walk: this.#bind(program) };
    if (trace) replica.cutForward();
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

  /** Samples that all workers together go through in a step. */
  get stepSamples(): number {
    return this.#parts.shared?.stepSamples ?? this.#parts.config.batchSize ?? 32;
  }

  /**
   * Steps of the replica that were made before, in another way to train, beyond those that this run
   * would have made.
   */
  get stepOffset(): number {
    return this.#checkpoints.stepOffset;
  }

  /** How gradients travel; from the first step on, and undefined for one device. */
  get plan(): ExchangePlan | undefined {
    return this.#parts.shared?.plan;
  }

  /** What a step does, as a list of operations; with other workers from the first step on. */
  get program(): StepProgram | undefined {
    return (this.#alone ?? this.#parts.shared)?.program;
  }

  /** Merges gradients otherwise from the next step on; all workers call it between the same steps. For comparing. */
  regroup(merging: Merging): ExchangePlan | undefined {
    return this.#parts.shared?.regroup(merging);
  }

  /** The newest checkpoint that was written or resumed from, as the first worker knows it. */
  get checkpointPath(): string | undefined {
    return this.#checkpoints.path;
  }

  /** Trains on a dataset, of which every worker takes its share if it is a `shard`; one report for each step. */
  async *run(data: Dataset | Shard, options: RunOptions = {}): AsyncGenerator<StepReport> {
    const { replica, rank, shared, thread, trace } = this.#parts;
    refuseUnknownOptions('runner.run', options, RUN_OPTIONS);
    checkRunLength(options);
    const { epochs = 1, maxSteps = Infinity, signal } = options;
    const isShared = data instanceof Shard;
    const dataset = isShared ? data.dataset : data;
    checkDataset('data', dataset);
    const columns = [...replica.memory.inputs.keys()];
    // A run that was left early has ended on all workers now.
    await this.#explained(async () => shared?.end());
    await this.#checkData(dataset, thread);
    replica.numberOf = (sample) => dataset.numberOf(sample);
    const part = (isShared ? shared?.part : undefined) ?? { index: 0, count: 1 };
    const size = isShared ? this.stepSamples : replica.memory.sampleIds.length;
    const steps = Math.min(maxSteps, epochs * Math.ceil(dataset.length / size));
    // A script that resumes makes the same calls again: what they have done already is not done twice.
    const isDone = Math.min(this.#stepsAhead, steps);
    this.#stepsAhead -= isDone;
    const lastStep = replica.step + steps - isDone;
    if (thread) {
      const areAlike = await this.#explained(() =>
        compareData(thread, { dataset, columns, steps, isShared }),
      );
      if (areAlike && rank === 0) this.#log(sameSamples(size));
    }
    if (lastStep === replica.step) return;
    const loader = openLoader({ dataset, order: this.#nextOrder(dataset), batchSize: size, columns, part });
    let yieldedMs = performance.now();
    try {
      await this.#explained(async () => shared?.begin());
      while (replica.step < lastStep) {
        if (shared ? await this.#explained(() => shared.isStopped(signal)) : signal?.aborted) {
          await this.#explained(async () => shared?.end());
          if (this.#checkpoints.isOn) await this.save();
          return;
        }
        trace?.begin(replica.step + 1);
        let batch: Batch | undefined;
        this.#load = () => (batch = loader.next(replica.inputs));
        const done = shared
          ? await this.#explained(() => this.#stepTogether(shared, isShared))
          : this.#stepAlone();
        this.#order = { state: loader.state, length: dataset.length };
        // What is told and kept of the last step has the steps of all.
        if (replica.step === lastStep) await this.#explained(async () => shared?.end());
        const { epoch, last } = batch!;
        yield { step: replica.step, epoch, last, ...done };
        const isEnd = last || replica.step === lastStep;
        const isDue = (shared ?? this.#alone!.walk).isDue('checkpoint', isEnd);
        if (isDue && this.#checkpoints.isOn) await this.save();
        if (performance.now() - yieldedMs < YIELD_EVERY_MS) continue;
        await yieldToEvents();
        yieldedMs = performance.now();
      }
    } finally {
      await loader.close();
      if (!this.#hasFailed && !this.#aborting) await shared?.leaveRun();
    }
  }

  /**
   * Of a `shard` every worker evaluates its part, and all get the result: all must call it. Of a dataset every worker
   * evaluates the whole for itself, the first alone if only that one asks.
   */
  evaluate(data: Dataset | Shard, options: EvaluateOptions = {}): Promise<Evaluation> {
    const { replica, trace } = this.#parts;
    const { shared, thread } = this.#withOthers;
    trace?.begin(replica.step);
    const work = async (): Promise<Evaluation> => {
      const isShared = data instanceof Shard;
      const dataset = isShared ? data.dataset : data;
      if (!shared || !thread) return evaluate(replica, dataset, options);
      const { average } = options;
      const prepare = (samples: ArrayLike<number>) => shared.prepareRows(samples, average);
      if (!isShared) {
        const whole = () => evaluateRemotely(replica, dataset, options, prepare);
        return evaluationOf(await shared.withValues(whole, { alone: true, average }));
      }
      const { together } = shared;
      checkColumns(replica.model, dataset);
      // Before the first step only the first worker can read tables of the checkpoint that was
      // resumed from.
      const isAlone = [...replica.memory.rowBuffers.values()].some(({ stored }) => stored);
      const part = isAlone ? { index: 0, count: 1 } : { index: together.index, count: together.size };
      const isIdle = isAlone && together.index > 0;
      return shared.withValues(
        async () => {
          const own = isIdle
            ? NOTHING_EVALUATED
            : await evaluateRemotely(replica, dataset, options, prepare, part);
          const words = [own.loss, own.samples, own.correct, own.counted];
          const all = together.size === 1 ? [words] : tellAll(thread, words, 'evaluations', together);
          const sum = (word: number) => all.reduce((total, numbers) => total + numbers[word]!, 0);
          return evaluationOf({ loss: sum(0), samples: sum(1), correct: sum(2), counted: sum(3) });
        },
        { average },
      );
    };
    return this.#explained(() => this.#call('evaluate', work)).then((evaluation) => {
      if (options.average === undefined) this.#evaluation = evaluation;
      return evaluation;
    });
  }

  /** Writes a checkpoint, with the last evaluation, unless this step has one. All workers call it at the same step. */
  async save(): Promise<void> {
    const { replica, config, rank, trace } = this.#parts;
    const { shared } = this.#withOthers;
    if (!this.#checkpoints.isOn) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `There is no folder for a checkpoint of step ${replica.step}; make the runner with checkpointDirectory.`,
      );
    }
    if (this.#checkpoints.isSaved) return;
    trace?.begin(replica.step);
    const { seed = 0 } = config;
    const place = this.#order ?? { state: { seed, epoch: 0, position: 0 } };
    await this.#explained(() =>
      this.#call('checkpoint', async () => {
        const write = () => this.#checkpoints.save(place, this.#evaluation, this.#tablesToSave());
        if (rank > 0 || !shared) return write();
        await shared.withValues(write, { alone: true, withState: true });
      }),
    );
  }

  /**
   * Ends the other workers: their processes end here, and what follows runs in the first one only, whose replica has
   * all parameters with the optimizer's state, and stays until `close`.
   */
  leave(): Promise<void> {
    const { shared, thread, rank } = this.#parts;
    return (this.#leaving ??= this.#orAbort(async () => {
      await shared?.end();
      if (rank === 0) {
        await shared?.fetchAll();
        this.#bringHome();
      }
      // Servers in the others' processes stay until the first worker has everything.
      await thread?.barrier({ name: 'the first worker has all parameters' });
      await this.#leaveOthers();
    }));
  }

  /**
   * Ends the run. Processes that were started as further workers end here too: what follows runs in the first one
   * only.
   */
  async close(): Promise<void> {
    if (this.#isClosed || this.#aborting) return this.#aborting;
    await (this.#leaving ??= this.#orAbort(() => this.#leaveOthers()));
    this.#closeReplica();
    const failure = this.#parts.lateFailure?.();
    if (failure) throw failure;
  }

  /** Ends this worker's part at once, as after an error; the others see it as lost. */
  abort(error: Error): Promise<void> {
    return (this.#aborting ??= this.#giveUp(error));
  }

  async #giveUp(error: Error): Promise<void> {
    const { shared, onAbort } = this.#parts;
    if (!this.#hasLeft) {
      await Promise.allSettled([shared?.abort()]);
      await onAbort?.(error);
      this.#hasLeft = true;
    }
    this.#closeReplica();
  }

  async #leaveOthers(): Promise<void> {
    const { shared, rank, onClose } = this.#parts;
    await shared?.close();
    // Further workers end in what follows.
    if (rank > 0) this.#closeReplica();
    await onClose?.();
    this.#hasLeft = true;
  }

  #tablesToSave(): RemoteTables {
    const { replica, shared } = this.#parts;
    const tables = shared?.remoteTables;
    const [table] = replica.memory.rowBuffers.keys();
    if (tables || table === undefined) return tables ?? NO_TABLES;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `There is no checkpoint of step ${replica.step} yet: ${table} is on servers only (serverTables), which have it from the first step on. Save after a step.`,
      { table },
    );
  }

  /** Does the work of an operation behind a step. */
  async #call<T>(kind: Asked, work: () => Promise<T>): Promise<T> {
    const { shared } = this.#withOthers;
    return (shared ?? this.#alone?.walk)?.call(kind, work) ?? work();
  }

  get #withOthers(): Pick<RunnerParts, 'shared' | 'thread'> {
    return this.#hasLeft ? {} : this.#parts;
  }

  /** Nothing stays open behind an end that failed. */
  async #orAbort(end: () => Promise<void>): Promise<void> {
    try {
      await this.#explained(end);
    } catch (error) {
      await this.abort(error as Error);
      throw error;
    }
  }

  /** Parameters that lie in the memory of servers get back to where they were. */
  #bringHome(): void {
    const { memory } = this.#parts.replica;
    for (const [name, region] of this.#home) {
      const now = memory.parameters.get(name)!;
      if (now.byteOffset === region.byteOffset) continue;
      region.view.set(now.view);
      memory.relocate(name, region);
    }
  }

  #closeReplica(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#parts.replica.close();
    this.#parts.compute.close();
  }

  /** With other workers: data that does not fit on one of them is an error on all, so that nobody waits for it. */
  async #checkData(dataset: Dataset, thread: CommunicationThread | undefined): Promise<void> {
    const check = () => checkColumns(this.replica.model, dataset);
    await this.#explained(() => (thread ? attemptTogether(thread, check) : check()));
  }

  /** Goes on where the last run stopped; in another dataset, with its next epoch. */
  #nextOrder({ length }: Dataset): SampleOrder {
    const { seed = 0 } = this.#parts.config;
    if (!this.#order) return new SampleOrder(length, { seed });
    const { state, length: before = length } = this.#order;
    if (before === length) return SampleOrder.restore(length, state);
    const { epoch, position, ahead = [] } = SampleOrder.restore(before, state).state;
    const isWithin = position > 0 || ahead.length > 0;
    return new SampleOrder(length, { seed }).seek(isWithin ? epoch + 1 : epoch, 0);
  }

  async #stepTogether(shared: JointStep, isShared: boolean): Promise<StepOutcome> {
    const load = (): StepShare => {
      const { samples, batchSize } = this.#load!();
      return { samples, batchSize, isShared, lr: this.#rate };
    };
    return shared.step(load, (loss) => this.#checkLoss(loss));
  }

  /** Without a promise: a small step takes no longer than a few of them. */
  #stepAlone(): StepOutcome {
    void this.#alone!.walk.step();
    const { startedMs, computedMs, samples } = this.#step;
    const loss = this.replica.memory.loss.view[0]!;
    return { loss, samples: samples.length, computeMs: computedMs - startedMs, waitMs: 0 };
  }

  #bind(program: StepProgram): StepWalk {
    const { replica, trace } = this.#parts;
    const step = this.#step;
    return StepWalk.bind(program, {
      parts: [
        ({ kind }) => (kind === 'load' ? () => step.begin(this.#load!().samples, this.#rate) : undefined),
        replicaOperations({
          ...{ replica, step, checkLoss: (loss) => this.#checkLoss(loss) },
          onCompiled: () => trace?.lap('compile'),
        }),
      ],
      finishedSteps: () => replica.step,
      onComputed: trace && (({ kind, name }) => trace.lap(kind, name)),
    });
  }

  /** Of the next step. */
  get #rate(): number | undefined {
    const { replica, config } = this.#parts;
    return config.schedule ? learningRateAt(config.schedule, replica.step - this.stepOffset) : undefined;
  }

  #checkLoss(loss: number): void {
    if (!Number.isFinite(loss)) throw this.#checkpoints.notANumber(loss);
  }

  #log(line: string): void {
    const { log = (text: string) => process.stderr.write(`${text}\n`) } = this.#parts.config;
    log(line);
  }

  async #explained<T>(work: () => T | Promise<T>): Promise<T> {
    const { explain } = this.#parts;
    try {
      return await work();
    } catch (error) {
      this.#hasFailed = true;
      throw explain && error instanceof PeerError ? await explain(error) : error;
    }
  }
}

function sameSamples(size: number): string {
  return `every worker trains on the same ${size} samples of each step, so that they do one's work several times: give run(shard(data)) to share them out, or each worker data of its own`;
}
