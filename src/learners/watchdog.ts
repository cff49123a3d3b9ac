/**
 * Trains one model by several learner processes on one machine (GaDei), and watches over them: hands out epochs, evaluates and
 * keeps checkpoints between them and, without a stop, within them; starts all processes again from the last checkpoint when
 * those that are left cannot finish. The processes are looked after in `crew.ts`; while they train they need nobody.
 * Invariants: every sample of an epoch is counted exactly once, whoever dies when; weights that are not finite are never kept.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { PeerError, TributaryError, UsageError } from '../base/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { createOptimizer, Kernels } from '../kernels/index.ts';
import { elementCount, gradients } from '../graph/index.ts';
import { claimFurtherProcesses } from '../launcher/index.ts';
import { currentProcess, defaultSegmentDirectory, SharedSpace } from '../memory/index.ts';
import { beyondEnd, evaluate, Replica, weightBytes, workBytes } from '../runtime/index.ts';
import type { Evaluation } from '../runtime/index.ts';
import { Crew } from './crew.ts';
import type { Collapse } from './crew.ts';
import { LearnerCheckpoints } from './learner-checkpoints.ts';
import type { Position } from './learner-checkpoints.ts';
import type { LearnerMemory } from './learner-memory.ts';
import { createLearnerSegments } from './learner-segments.ts';
import type { LearnerSegments } from './learner-segments.ts';
import { identityOf } from './task-check.ts';
import type { LearnerTask } from './task.ts';
import type { Progress, TrainOptions, TrainResult } from './train-options.ts';
import { hasServer, SLOTS } from './update-mode.ts';

const LOOK_EVERY_MS = 5;
const PROGRESS_EVERY_MS = 100;
const BEGINNING: Position = { step: 0, epoch: 0, done: [] };

/** Of the process that the user has started; the learners come to `learnIfAssigned`. */
export async function trainByLearners(task: LearnerTask, options: TrainOptions): Promise<TrainResult> {
  checkSteps(options);
  const watchdog = new Watchdog(options, task);
  try {
    return await watchdog.run();
  } catch (error) {
    await watchdog.end();
    watchdog.close();
    throw watchdog.explained(error);
  }
}

function checkSteps({ checkpointEverySteps: steps }: TrainOptions): void {
  if (steps === undefined || (Number.isInteger(steps) && steps >= 1)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `checkpointEverySteps is ${steps}; give a whole number of 1 or more`,
    { checkpointEverySteps: steps },
  );
}

class Watchdog {
  readonly #options: TrainOptions;
  readonly #task: LearnerTask;
  readonly #epochs: number;
  /** Of the run, if it is not stopped; without those of another way to train. */
  readonly #ownSteps: number;
  readonly #batchSize: number;
  readonly #segments: LearnerSegments;
  readonly #memory: LearnerMemory;
  readonly #compute: OnnxCompute;
  readonly #replica: Replica;
  readonly #checkpoints: LearnerCheckpoints;
  readonly #crew: Crew;
  /** Where this call began: what came before is not of its doing. */
  #origin = BEGINNING;
  /** Finished epochs. */
  #epoch = 0;
  /** Whether it has all steps that it is limited to. */
  #hasEnough = false;
  /** Whether the board is that of the next epoch; after the last one it says what that one did. */
  #isWithinEpoch = false;
  /** Batches applied before this epoch. */
  #stepsBefore = 0;
  #restarts = 0;
  /** When the first learner was ready, or the epoch began. */
  #startedMs = 0;
  #hasBegun = false;
  /**
   * Where it was then; processes take a while to start, which says nothing about the time that is
   * left.
   */
  #begun: { readonly step: number; readonly atMs: number } | undefined;
  /** In earlier epochs, and before restarts. */
  #trainedMs = 0;
  #loss = NaN;
  #toldMs = 0;
  /** Of the last checkpoint. */
  #keptStep = 0;
  #evaluation: Evaluation | undefined;

  constructor(options: TrainOptions, task: LearnerTask) {
    const { model, optimizer, train, schedule, batchSize = 32, seed = 0 } = task;
    const { mode = 'direct lock-free', learners, command, segmentDirectory: directory } = options;
    this.#options = options;
    this.#task = task;
    this.#epochs = options.epochs ?? 1;
    this.#batchSize = batchSize;
    const space = SharedSpace.create();
    const identity = identityOf(task);
    if (!command) claimFurtherProcesses('learners', JSON.stringify(identity));
    const wanted = gradients(model.loss);
    const batches = Math.ceil(train.length / batchSize);
    this.#ownSteps = Math.min(this.#epochs * batches, options.maxSteps ?? Infinity);
    const layout = {
      board: {
        ...{ batches, learners },
        slots: hasServer(mode) ? SLOTS : 0,
      },
      parameters: wanted.length,
      weightBytes: weightBytes(model, createOptimizer(Kernels.create(space), optimizer).slots),
    };
    const name = `learners-${process.pid}-${randomBytes(6).toString('hex')}`;
    // Fixed for the run: what others do to the default folder's name must not lead a later process elsewhere.
    const segments = { directory: directory ?? defaultSegmentDirectory() };
    const slotBytes = workBytes(model, wanted, batchSize);
    this.#segments = createLearnerSegments(space, { name, layout, slotBytes, segments });
    this.#memory = this.#segments.memory;
    this.#compute = new OnnxCompute(task.session);
    try {
      this.#replica = this.#firstWeights(space);
    } catch (error) {
      this.#compute.close();
      this.#segments.close();
      throw error;
    }
    const trainedBy = learners === 1 ? '1 learner' : `${learners} learners`;
    const facts = { seed, samples: train.length, batchSize, schedule, trainedBy };
    this.#checkpoints = new LearnerCheckpoints(
      options.checkpointDirectory,
      this.#replica,
      facts,
      (path, reason) => options.onEvent?.({ type: 'checkpoint-not-removed', path, reason }),
    );
    const { pid, startTicks, pidNamespace } = currentProcess();
    const watchdog = { pid, startTicks: String(startTicks), pidNamespace: String(pidNamespace) };
    this.#crew = new Crew({
      ...{ memory: this.#memory, learners, hasServer: hasServer(mode), command },
      maxReplacements: options.maxReplacements ?? 8,
      stallMs: options.stallMs ?? 60_000,
      startMs: options.startMs ?? 600_000,
      assign: (self) => {
        const { stepOffset } = this.#checkpoints;
        return { self, task: identity, mode, name, layout, segments, watchdog, stepOffset };
      },
      onLost: (event) => options.onEvent?.(event),
    });
  }

  async run(): Promise<TrainResult> {
    const { signal, onEvent } = this.#options;
    this.#begin();
    while (!this.#isOver && !signal?.aborted) {
      await pause(LOOK_EVERY_MS);
      const collapse = this.#crew.look();
      if (collapse) {
        await this.#restart(collapse);
        continue;
      }
      this.#tellProgress();
      if (this.#memory.board.isDone) this.#endEpoch();
      else if (this.#isCheckpointDue()) this.#save();
    }
    const progress = this.#progress();
    await this.end();
    // What was under way when the signal came is in the weights.
    if (!this.#isOver && this.#memory.board.isDone) this.#endEpoch();
    else if (!this.#isOver) this.#save();
    // A checkpoint of the end left nothing to do.
    else if (!this.#evaluation) this.#evaluate();
    const { step } = this.#position;
    if (!this.#isOver) onEvent?.({ type: 'stopped', step });
    return {
      ...{ ...progress, steps: step, samples: this.#samples, finished: this.#isOver },
      ...{ evaluation: this.#evaluation, replacements: this.#crew.replacements, restarts: this.#restarts },
      ...{ checkpointPath: this.#checkpoints.path, replica: this.#replica, close: () => this.close() },
    };
  }

  #begin(): void {
    const { onEvent, log = (line: string) => process.stderr.write(`${line}\n`) } = this.#options;
    const found = this.#checkpoints.begin(this.#options);
    this.#origin = found ?? BEGINNING;
    const { path, skipped, carried } = this.#checkpoints;
    for (const one of skipped) onEvent?.({ type: 'checkpoint-skipped', ...one });
    if (carried !== undefined) log(carried);
    if (found && path !== undefined) onEvent?.({ type: 'resumed', path, step: found.step });
    const note = beyondEnd(path, this.#origin.step, this.#totalSteps);
    if (note !== undefined) log(note);
    this.#goOnFrom(this.#origin);
    if (!this.#isOver) this.#crew.start();
    const { parameters } = this.#task.model.graph;
    onEvent?.({
      ...{ type: 'started', ...this.#crew.processes },
      ...{ epoch: this.#epoch, step: this.#origin.step, totalSteps: this.#totalSteps },
      parameters: [...parameters.values()].reduce((sum, { shape }) => sum + elementCount(shape), 0),
    });
  }

  /** A learner does not know of checkpoints. */
  explained(error: unknown): unknown {
    if (!(error instanceof TributaryError) || error.code !== 'NOT_A_NUMBER') return error;
    if ('checkpoint' in error.facts) return error;
    const { kept, path: checkpoint } = this.#checkpoints;
    const message = `${error.message} ${kept[0]!.toUpperCase()}${kept.slice(1)}.`;
    return new UsageError('NOT_A_NUMBER', message, { ...error.facts, checkpoint }, error);
  }

  end(): Promise<void> {
    return this.#crew.stop();
  }

  close(): void {
    this.#replica.close();
    this.#compute.close();
    this.#segments.close();
  }

  get #totalSteps(): number {
    return this.#checkpoints.stepOffset + this.#ownSteps;
  }

  get #isOver(): boolean {
    return this.#epoch >= this.#epochs || this.#hasEnough;
  }

  /** Whether it ends by its steps, maybe within an epoch. */
  get #isCut(): boolean {
    return this.#options.maxSteps !== undefined;
  }

  /** What the weights contain. While learners train they may contain a little more. */
  get #position(): Position {
    const done = this.#isWithinEpoch ? this.#memory.board.doneBatches() : [];
    return { step: this.#stepsBefore + done.length, epoch: this.#epoch, done };
  }

  /** Puts first values into the shared weights. */
  #firstWeights(space: SharedSpace): Replica {
    const { model, optimizer, batchSize: maxBatch = 32, seed = 0, sparseUpdates = 'exact' } = this.#task;
    return new Replica(model, {
      ...{ compute: this.#compute, space, optimizer, maxBatch, seed, sparseUpdates },
      weights: this.#memory.weights(),
    });
  }

  /** The weights contain this; everything else is open. Nobody may be at work. */
  #goOnFrom({ step, epoch, done }: Position): void {
    this.#epoch = epoch;
    this.#stepsBefore = step - done.length;
    this.#memory.version = step;
    this.#hasEnough = this.#isCut && step >= this.#totalSteps;
    this.#open(done);
    this.#hasBegun = false;
    this.#begun = undefined;
    this.#startedMs = performance.now();
    this.#keptStep = step;
  }

  /** An epoch, of which the weights contain so much; as far as the run goes. */
  #open(done: readonly number[] = []): void {
    const most = this.#totalSteps - this.#stepsBefore - done.length;
    this.#memory.open(this.#epoch, done, this.#isCut ? most : Infinity);
    this.#isWithinEpoch = true;
  }

  async #restart({ code, why, cause }: Collapse): Promise<void> {
    const { maxRestarts = 1, onEvent } = this.#options;
    if (this.#restarts >= maxRestarts) {
      throw new PeerError(
        code,
        `${why} and ${this.#restarts} restart(s); ${this.#checkpoints.kept}. Look at what ended or keeps the processes, or allow more replacements or restarts.`,
        {
          ...{ replacements: this.#crew.replacements, restarts: this.#restarts },
          checkpoint: this.#checkpoints.path,
        },
        cause,
      );
    }
    this.#restarts++;
    this.#trainedMs += performance.now() - this.#startedMs;
    await this.#crew.kill();
    this.#memory.clear();
    const position = this.#checkpoints.rewind() ?? this.#beginAgain();
    this.#goOnFrom(position);
    this.#crew.start();
    onEvent?.({
      ...{ type: 'restarted', restart: this.#restarts, why, checkpoint: this.#checkpoints.path },
      ...{ step: position.step, ...this.#crew.processes },
    });
  }

  #beginAgain(): Position {
    this.#firstWeights(this.#replica.kernels.space).close();
    this.#origin = BEGINNING;
    return BEGINNING;
  }

  /** Or the run within it. */
  #endEpoch(): void {
    this.#trainedMs += performance.now() - this.#startedMs;
    this.#startedMs = performance.now();
    const { loss } = this.#progress();
    const { step, done } = this.#position;
    const epoch = this.#epoch;
    this.#hasEnough = this.#isCut && step >= this.#totalSteps;
    // A learner that died when it had begun to apply a batch may not have counted it. Now nobody counts.
    this.#memory.version = step;
    this.#evaluate();
    const evaluation = this.#evaluation;
    this.#options.onEvent?.({ type: 'epoch', epoch, step, loss, ...(evaluation ? { evaluation } : {}) });
    if (done.length === this.#memory.board.shape.batches) {
      this.#stepsBefore = step;
      this.#epoch++;
      this.#isWithinEpoch = false;
    }
    this.#save();
    this.#startedMs = performance.now();
    if (this.#isOver) return;
    this.#open();
    this.#memory.ring();
  }

  #evaluate(): void {
    const { test } = this.#task;
    this.#replica.step = this.#memory.version;
    this.#evaluation = test ? evaluate(this.#replica, test) : undefined;
  }

  #isCheckpointDue(): boolean {
    const { checkpointEverySteps = Infinity } = this.#options;
    return this.#memory.version - this.#keptStep >= checkpointEverySteps;
  }

  /** Without a stop: learners go on changing the weights while they are copied. */
  #save(): void {
    const { step, epoch, done } = this.#position;
    // The epoch has ended meanwhile, which makes a checkpoint of its own.
    if (done.length === this.#memory.board.shape.batches) return;
    const path = this.#checkpoints.save({ step, epoch, done }, this.#evaluation);
    this.#keptStep = step;
    if (path !== undefined) this.#options.onEvent?.({ type: 'checkpoint', path, step });
  }

  #tellProgress(): void {
    const nowMs = performance.now();
    const { ready } = this.#crew;
    const { progressIntervalMs = PROGRESS_EVERY_MS, onEvent } = this.#options;
    if (!this.#hasBegun) this.#startedMs = nowMs;
    this.#hasBegun ||= ready > 0;
    if (nowMs - this.#toldMs <= progressIntervalMs) return;
    this.#toldMs = nowMs;
    const [step, totalSteps] = [this.#memory.version, this.#totalSteps];
    if (step > this.#origin.step) this.#begun ??= { step, atMs: nowMs };
    const begun = this.#begun;
    const msPerStep = begun && step > begun.step ? (nowMs - begun.atMs) / (step - begun.step) : NaN;
    onEvent?.({
      ...{ type: 'progress', epoch: this.#epoch, step, totalSteps, ready },
      remainingMs: msPerStep * (totalSteps - step),
      ...this.#progress(),
    });
  }

  #progress(): Progress {
    const { board, meanStaleness } = this.#memory;
    // Batches that a checkpoint contained have no loss here.
    const known = board.doneBatches().filter((batch) => !Number.isNaN(this.#memory.lossOf(batch)));
    const sum = known.reduce(
      (total, batch) => total + this.#memory.lossOf(batch) * this.#samplesOf(batch),
      0,
    );
    // Until the first batch of an epoch is there, the last one's is the newest.
    if (known.length > 0) this.#loss = sum / this.#samplesIn(known);
    const seconds = Math.max(1e-3, (this.#trainedMs + (performance.now() - this.#startedMs)) / 1000);
    return { samplesPerSec: this.#samples / seconds, loss: this.#loss, meanStaleness };
  }

  /** Of the batches that this call trained, each once. */
  get #samples(): number {
    const { origin, position } = { origin: this.#origin, position: this.#position };
    const epochs = position.epoch - origin.epoch;
    return epochs * this.#task.train.length + this.#samplesIn(position.done) - this.#samplesIn(origin.done);
  }

  #samplesIn(batches: readonly number[]): number {
    return batches.reduce((total, batch) => total + this.#samplesOf(batch), 0);
  }

  /** The last batch of an epoch may be smaller. */
  #samplesOf(batch: number): number {
    return Math.min(this.#batchSize, this.#task.train.length - batch * this.#batchSize);
  }
}
