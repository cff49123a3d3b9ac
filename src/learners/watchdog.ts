/**
 * Trains one model by several learner processes on one machine (GaDei), and watches over them: hands out epochs, evaluates and
 * keeps checkpoints between them and, without a stop, within them; starts all processes again from the last checkpoint when
 * those that are left cannot finish. The processes are looked after in `crew.ts`; while they train they need nobody.
 * Invariants: every sample of an epoch is counted exactly once, whoever dies when; weights that are not finite are never kept.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { PeerError } from '../base/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { createOptimizer, Kernels } from '../kernels/index.ts';
import { gradients } from '../graph/index.ts';
import { currentProcess, defaultSegmentDirectory, SharedSpace } from '../memory/index.ts';
import { Replica, weightBytes, workBytes } from '../runtime/index.ts';
import { beyondEnd, evaluate } from '../runner/index.ts';
import type { Evaluation } from '../runner/index.ts';
import { Crew } from './crew.ts';
import type { Collapse } from './crew.ts';
import { LearnerCheckpoints } from './learner-checkpoints.ts';
import type { Position } from './learner-checkpoints.ts';
import type { LearnerMemory } from './learner-memory.ts';
import { createLearnerSegments } from './learner-segments.ts';
import type { LearnerSegments } from './learner-segments.ts';
import { loadTask } from './task.ts';
import type { LearnerTask } from './task.ts';
import { identityOf } from './task-check.ts';
import { checkTrainOptions } from './train-options.ts';
import type { Progress, TrainOptions, TrainResult } from './train-options.ts';
import { hasServer, SLOTS } from './update-mode.ts';

const LOOK_EVERY_MS = 5;
const PROGRESS_EVERY_MS = 100;
const BEGINNING: Position = { step: 0, epoch: 0, done: [] };

export async function trainWithLearners(options: TrainOptions): Promise<TrainResult> {
  checkTrainOptions(options);
  const watchdog = new Watchdog(options, await loadTask(options.source));
  try {
    return await watchdog.run();
  } catch (error) {
    await watchdog.end();
    watchdog.close();
    throw error;
  }
}

class Watchdog {
  readonly #options: TrainOptions;
  readonly #task: LearnerTask;
  readonly #epochs: number;
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
  /** Batches applied before this epoch. */
  #stepsBefore = 0;
  #restarts = 0;
  /** When the first learner was ready, or the epoch began. */
  #startedMs = 0;
  #hasBegun = false;
  /** In earlier epochs, and before restarts. */
  #trainedMs = 0;
  #loss = NaN;
  #toldMs = 0;
  /** Of the last checkpoint. */
  #kept = { atMs: 0, step: 0 };
  #evaluation: Evaluation | undefined;

  constructor(options: TrainOptions, task: LearnerTask) {
    const { model, optimizer, train, batchSize = 32, seed = 0 } = task;
    const { mode = 'direct lock-free', learners, source, segmentDirectory: directory } = options;
    this.#options = options;
    this.#task = task;
    this.#epochs = options.epochs ?? 1;
    this.#batchSize = batchSize;
    const space = SharedSpace.create();
    const identity = identityOf(task);
    const wanted = gradients(model.loss);
    const layout = {
      board: {
        ...{ batches: Math.ceil(train.length / batchSize), learners },
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
    const facts = { seed, samples: train.length, batchSize };
    this.#checkpoints = new LearnerCheckpoints(
      options.checkpointDirectory,
      this.#replica,
      facts,
      (path, reason) => options.onEvent?.({ type: 'checkpoint-not-removed', path, reason }),
    );
    const { pid, startTicks, pidNamespace } = currentProcess();
    const watchdog = { pid, startTicks: String(startTicks), pidNamespace: String(pidNamespace) };
    this.#crew = new Crew({
      ...{ memory: this.#memory, learners, hasServer: hasServer(mode) },
      maxReplacements: options.maxReplacements ?? 8,
      stallMs: options.stallMs ?? 60_000,
      startMs: options.startMs ?? 600_000,
      assign: (self) => ({ self, source, task: identity, mode, name, layout, segments, watchdog }),
      onLost: (event) => options.onEvent?.(event),
    });
  }

  async run(): Promise<TrainResult> {
    const { signal, onEvent, log = (line: string) => process.stderr.write(`${line}\n`) } = this.#options;
    const { board } = this.#memory;
    this.#origin = this.#checkpoints.begin(this.#options) ?? BEGINNING;
    for (const skipped of this.#checkpoints.skipped) onEvent?.({ type: 'checkpoint-skipped', ...skipped });
    const totalSteps = this.#epochs * board.shape.batches;
    const note = beyondEnd(this.#checkpoints.path, this.#origin.step, totalSteps);
    if (note !== undefined) log(note);
    this.#goOnFrom(this.#origin);
    if (!this.#isOver) this.#crew.start();
    onEvent?.({
      ...{ type: 'started', ...this.#crew.processes, batches: board.shape.batches },
      ...{ epoch: this.#epoch, step: this.#origin.step },
    });
    while (!this.#isOver && !signal?.aborted) {
      await pause(LOOK_EVERY_MS);
      const collapse = this.#crew.look();
      if (collapse) {
        await this.#restart(collapse);
        continue;
      }
      this.#tellProgress();
      if (board.isDone) this.#endEpoch();
      else if (this.#isCheckpointDue()) this.#save();
    }
    const progress = this.#progress();
    await this.end();
    // What was under way when the signal came is in the weights.
    if (!this.#isOver) this.#save();
    // A checkpoint of the end left nothing to do.
    else if (!this.#evaluation) this.#evaluate();
    const { step } = this.#position;
    return {
      ...{ ...progress, steps: step, samples: this.#samples, finished: this.#isOver },
      ...{ evaluation: this.#evaluation, replacements: this.#crew.replacements, restarts: this.#restarts },
      ...{ checkpointPath: this.#checkpoints.path, replica: this.#replica, close: () => this.close() },
    };
  }

  end(): Promise<void> {
    return this.#crew.stop();
  }

  close(): void {
    this.#replica.close();
    this.#compute.close();
    this.#segments.close();
  }

  get #isOver(): boolean {
    return this.#epoch >= this.#epochs;
  }

  /** What the weights contain. While learners train they may contain a little more. */
  get #position(): Position {
    // After the last epoch the board is not opened again, and says what that one did.
    const done = this.#isOver ? [] : this.#memory.board.doneBatches();
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
    this.#memory.open(epoch, done);
    this.#hasBegun = false;
    this.#startedMs = performance.now();
    this.#kept = { atMs: performance.now(), step };
  }

  async #restart({ code, why }: Collapse): Promise<void> {
    const { maxRestarts = 1, onEvent } = this.#options;
    if (this.#restarts >= maxRestarts) {
      throw new PeerError(
        code,
        `${why} and ${this.#restarts} restart(s); ${this.#checkpoints.kept}. Look at what ended or keeps the processes, or allow more replacements or restarts.`,
        {
          ...{ replacements: this.#crew.replacements, restarts: this.#restarts },
          checkpoint: this.#checkpoints.path,
        },
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

  #endEpoch(): void {
    this.#trainedMs += performance.now() - this.#startedMs;
    this.#startedMs = performance.now();
    const { loss } = this.#progress();
    this.#stepsBefore += this.#memory.board.shape.batches;
    // A learner that died when it had begun to apply a batch may not have counted it. Now nobody counts.
    this.#memory.version = this.#stepsBefore;
    this.#evaluate();
    this.#options.onEvent?.({
      ...{ type: 'epoch', epoch: this.#epoch, step: this.#stepsBefore },
      ...{ loss, evaluation: this.#evaluation },
    });
    this.#epoch++;
    this.#save({ step: this.#stepsBefore, epoch: this.#epoch, done: [] });
    this.#startedMs = performance.now();
    if (this.#isOver) return;
    this.#memory.open(this.#epoch);
    this.#memory.ring();
  }

  #evaluate(): void {
    const { test } = this.#task;
    this.#replica.step = this.#memory.version;
    this.#evaluation = test ? evaluate(this.#replica, test) : undefined;
  }

  #isCheckpointDue(): boolean {
    const { checkpointEveryMs = Infinity, checkpointEverySteps = Infinity } = this.#options;
    return (
      performance.now() - this.#kept.atMs > checkpointEveryMs ||
      this.#memory.version - this.#kept.step >= checkpointEverySteps
    );
  }

  /** Without a stop: learners go on changing the weights while they are copied. */
  #save(position = this.#position): void {
    const path = this.#checkpoints.save(position);
    this.#kept = { atMs: performance.now(), step: position.step };
    if (path !== undefined) this.#options.onEvent?.({ type: 'checkpoint', path, step: position.step });
  }

  #tellProgress(): void {
    const nowMs = performance.now();
    const { ready } = this.#crew;
    if (!this.#hasBegun) this.#startedMs = nowMs;
    this.#hasBegun ||= ready > 0;
    if (nowMs - this.#toldMs <= PROGRESS_EVERY_MS) return;
    this.#toldMs = nowMs;
    this.#options.onEvent?.({
      ...{ type: 'progress', epoch: this.#epoch, step: this.#memory.version, ready },
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
