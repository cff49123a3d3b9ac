/**
 * Trains one model by several learner processes on one machine (GaDei), and looks after them: hands out epochs, evaluates and
 * keeps checkpoints between them, gives the unfinished batch of a learner that died to another one and starts a process in
 * its place, and ends one that no longer moves. The learners themselves need nobody while they train.
 * Invariants: every sample of an epoch is counted exactly once, whoever dies when; weights that are not finite are never kept.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { PeerError, UsageError } from '../base/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { createOptimizer, Kernels } from '../kernels/index.ts';
import { gradients } from '../graph/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { Segment } from '../memory/index.ts';
import { CheckpointStore, Replica, weightBytes, workBytes } from '../runtime/index.ts';
import type { JsonValue } from '../runtime/index.ts';
import { evaluate } from '../runner/index.ts';
import type { Evaluation } from '../runner/index.ts';
import { MAX_LEARNERS, SERVER } from './board.ts';
import type { Identity } from './board.ts';
import { LearnerChild } from './learner-child.ts';
import { LearnerMemory } from './learner-memory.ts';
import type { LearnerLayout, LearnerTally } from './learner-memory.ts';
import { slotSegment } from './slots.ts';
import { loadTask } from './task.ts';
import type { LearnerTask, TaskSource } from './task.ts';
import { hasServer, SLOTS, UPDATE_MODES } from './update-mode.ts';
import type { UpdateMode } from './update-mode.ts';

export interface TrainOptions {
  readonly source: TaskSource;
  /** Processes that train at the same time; more than cores is allowed. */
  readonly learners: number;
  /** Who applies gradients, and how. Default 'direct lock-free'. */
  readonly mode?: UpdateMode | undefined;
  /** Default 1. */
  readonly epochs?: number | undefined;
  /** Processes started in place of ones that died, at most, over the whole run. Default 8. */
  readonly maxReplacements?: number | undefined;
  /** A learner that finishes no batch for so long is ended and replaced. Default 60,000 milliseconds. */
  readonly stallMs?: number | undefined;
  /** Folder for checkpoints. Default: none are written. */
  readonly checkpointDirectory?: string | undefined;
  /** Between two checkpoints within an epoch, in milliseconds. Default: at the end of epochs only. */
  readonly checkpointEveryMs?: number | undefined;
  /** Go on from the newest good checkpoint of the folder, if there is one. Default false. */
  readonly resume?: boolean | undefined;
  /** Stops after the batches under way, with a checkpoint. */
  readonly signal?: AbortSignal | undefined;
  readonly onEvent?: ((event: TrainEvent) => void) | undefined;
}

export type TrainEvent =
  | {
      readonly type: 'started';
      /** Process of each learner. */
      readonly learners: readonly number[];
      /** Process of the server, in the modes that have one. */
      readonly server: number | undefined;
      readonly batches: number;
      readonly epoch: number;
    }
  | ({ readonly type: 'progress'; readonly epoch: number; readonly step: number } & Progress)
  | {
      readonly type: 'learner-lost';
      /** Its number; undefined: it was the server. */
      readonly learner: number | undefined;
      readonly pid: number;
      /** How it ended, for people. */
      readonly how: string;
      /** Batches that others take instead. */
      readonly returned: readonly number[];
      /** Batches of which a part is in the weights; they count, and nobody repeats them. */
      readonly torn: readonly number[];
      /** The process in its place. */
      readonly replacement: number | undefined;
    }
  | {
      readonly type: 'epoch';
      readonly epoch: number;
      readonly step: number;
      readonly loss: number;
      readonly evaluation: Evaluation | undefined;
    }
  | { readonly type: 'checkpoint'; readonly path: string; readonly step: number };

export interface Progress {
  readonly samplesPerSec: number;
  /** Mean over the samples since the epoch began. */
  readonly loss: number;
  /** Updates by others between reading the weights and applying the gradient, mean over all batches. */
  readonly meanStaleness: number;
}

export interface TrainResult extends Progress {
  readonly steps: number;
  /** Of the epochs that this call finished. */
  readonly samples: number;
  /** False if the signal stopped it. */
  readonly finished: boolean;
  readonly evaluation: Evaluation | undefined;
  readonly replacements: number;
  readonly checkpointPath: string | undefined;
  /** Holds the trained parameters; `close` ends it. */
  readonly replica: Replica;
  close(): void;
}

const LOOK_EVERY_MS = 5;
const PROGRESS_EVERY_MS = 100;
const STOP_MS = 10_000;
const NOTHING: LearnerTally = { batches: 0, samples: 0, loss: 0, staleness: 0 };

export async function trainWithLearners(options: TrainOptions): Promise<TrainResult> {
  const { learners, epochs = 1 } = options;
  if (!(Number.isInteger(learners) && learners >= 1 && learners <= MAX_LEARNERS)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `learners is ${learners}; give a whole number from 1 to ${MAX_LEARNERS}`,
      { learners },
    );
  }
  if (options.mode !== undefined && !UPDATE_MODES.includes(options.mode)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `there is no mode '${String(options.mode)}'; give one of ${UPDATE_MODES.join(', ')}`,
      { mode: options.mode },
    );
  }
  const watchdog = new Watchdog(options, await loadTask(options.source));
  try {
    return await watchdog.run(epochs);
  } catch (error) {
    await watchdog.end();
    watchdog.close();
    throw error;
  }
}

class Watchdog {
  readonly #options: TrainOptions;
  readonly #task: LearnerTask;
  readonly #mode: UpdateMode;
  readonly #layout: LearnerLayout;
  readonly #slots: readonly Segment[];
  readonly #name = `learners-${process.pid}-${randomBytes(6).toString('hex')}`;
  readonly #memory: LearnerMemory;
  readonly #compute: OnnxCompute;
  readonly #replica: Replica;
  readonly #store: CheckpointStore | undefined;
  /** By number. */
  readonly #children = new Map<number, LearnerChild>();
  /** When each process was last seen to have done something, and how much. */
  readonly #seen = new Map<number, { readonly done: number; readonly atMs: number }>();
  #replacements = 0;
  #epoch = 0;
  #atEpochStart: LearnerTally = NOTHING;
  /** When the first learner was ready, or the epoch began. */
  #startedMs = 0;
  #hasBegun = false;
  #loss = NaN;
  #trainedMs = 0;
  #checkpointPath: string | undefined;
  #checkpointMs = 0;
  #finishedSamples = 0;
  #evaluation: Evaluation | undefined;

  constructor(options: TrainOptions, task: LearnerTask) {
    const { model, optimizer, train, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = task;
    this.#options = options;
    this.#task = task;
    const { mode = 'direct lock-free', learners } = options;
    this.#mode = mode;
    const space = SharedSpace.create();
    const { slots } = createOptimizer(Kernels.create(space), optimizer);
    const wanted = gradients(model.loss);
    const slotCount = hasServer(mode) ? SLOTS : 0;
    this.#layout = {
      board: { batches: Math.ceil(train.length / batchSize), learners, slots: slotCount },
      ...{ parameters: wanted.length, weightBytes: weightBytes(model, slots) },
    };
    this.#memory = LearnerMemory.create(space, this.#name, this.#layout);
    const bytes = workBytes(model, wanted, batchSize);
    this.#slots = Array.from({ length: learners * slotCount }, (_, i) =>
      space.createSegment(slotSegment(this.#name, Math.floor(i / slotCount), i % slotCount), bytes),
    );
    this.#compute = new OnnxCompute(task.session);
    this.#replica = new Replica(model, {
      ...{ compute: this.#compute, space, optimizer, maxBatch: batchSize, seed, sparseUpdates },
      weights: this.#memory.weights(),
    });
    const { checkpointDirectory } = options;
    this.#store = checkpointDirectory === undefined ? undefined : new CheckpointStore(checkpointDirectory);
  }

  async run(epochs: number): Promise<TrainResult> {
    const { board } = this.#memory;
    board.open(this.#epoch, this.#resume());
    const { learners, signal, onEvent } = this.#options;
    for (let number = 0; number < learners; number++) this.#start({ number, generation: 0 });
    if (hasServer(this.#mode)) this.#start({ number: SERVER, generation: 0 });
    onEvent?.({
      ...{ type: 'started', learners: this.#learners().map(({ pid }) => pid) },
      server: this.#children.get(SERVER)?.pid,
      ...{ batches: this.#layout.board.batches, epoch: this.#epoch },
    });
    this.#startedMs = this.#checkpointMs = performance.now();
    let toldMs = this.#startedMs;
    while (this.#epoch < epochs && !signal?.aborted) {
      await pause(LOOK_EVERY_MS);
      this.#lookAfterLearners();
      const nowMs = performance.now();
      if (!this.#hasBegun) this.#startedMs = nowMs;
      this.#hasBegun ||= this.#learners().some(({ isReady }) => isReady);
      if (nowMs - toldMs > PROGRESS_EVERY_MS) {
        toldMs = nowMs;
        const { epoch, step } = { epoch: this.#epoch, step: this.#memory.version };
        onEvent?.({ type: 'progress', epoch, step, ...this.#progress() });
      }
      if (board.isDone) this.#endEpoch(epochs);
      else if (nowMs - this.#checkpointMs > (this.#options.checkpointEveryMs ?? Infinity)) {
        this.#save(board.doneBatches());
      }
    }
    const finished = this.#epoch >= epochs;
    const progress = this.#progress();
    await this.end();
    // What was under way when the signal came is in the weights.
    const result = { ...progress, ...this.#counts() };
    if (!finished) this.#save(board.doneBatches());
    return {
      ...{ ...result, finished, evaluation: this.#evaluation, replacements: this.#replacements },
      ...{ checkpointPath: this.#checkpointPath, replica: this.#replica, close: () => this.close() },
    };
  }

  /** Learners stop after the batch that they are at; who does not is ended. */
  async end(): Promise<void> {
    this.#memory.stop();
    const children = [...this.#children.values()];
    const all = Promise.all(children.map(({ ended }) => ended));
    const timer = setTimeout(() => {
      for (const child of children) if (!child.end) child.kill();
    }, STOP_MS);
    await all;
    clearTimeout(timer);
  }

  close(): void {
    this.#replica.close();
    this.#compute.close();
    for (const slot of this.#slots) slot.close();
    this.#memory.close();
  }

  #learners(): LearnerChild[] {
    return [...this.#children.values()].filter(({ self }) => self.number !== SERVER);
  }

  #start(self: Identity): LearnerChild {
    const { source } = this.#options;
    const child = new LearnerChild({
      ...{ self, source, mode: this.#mode, name: this.#name, layout: this.#layout },
    });
    this.#children.set(self.number, child);
    this.#seen.set(self.number, { done: this.#doneBy(self), atMs: performance.now() });
    return child;
  }

  #doneBy({ number }: Identity): number {
    return number === SERVER ? this.#memory.version : this.#memory.tallyOf(number).batches;
  }

  #lookAfterLearners(): void {
    const nowMs = performance.now();
    for (const child of [...this.#children.values()]) {
      if (child.end) this.#lose(child);
      else if (this.#isStalled(child, nowMs)) child.kill();
    }
    const isGone = ({ end }: LearnerChild) => end !== undefined;
    const server = this.#children.get(SERVER);
    if (this.#learners().every(isGone) || (server && isGone(server))) {
      throw new PeerError(
        'PEER_LOST',
        `${server && isGone(server) ? 'the server has' : 'all learners have'} died, after ${this.#replacements} replacements; ${this.#kept()}. Look at what ended them, or allow more replacements.`,
        { replacements: this.#replacements, checkpoint: this.#checkpointPath },
      );
    }
  }

  /** A learner without a batch waits for others, and one that is starting has not begun. */
  #isStalled({ self, isReady }: LearnerChild, nowMs: number): boolean {
    const seen = this.#seen.get(self.number)!;
    const done = this.#doneBy(self);
    const isOverdue = nowMs - seen.atMs > (this.#options.stallMs ?? 60_000);
    if (done === seen.done && !isOverdue) return false;
    if (done === seen.done && isReady && this.#memory.board.isAtWork(self)) return true;
    this.#seen.set(self.number, { done, atMs: nowMs });
    return false;
  }

  #lose(child: LearnerChild): void {
    const { self, pid, end } = child;
    const { error, code, signal } = end!;
    if (error) throw error;
    if (this.#lost.has(child)) return;
    this.#lost.add(child);
    this.#memory.releaseLocks(self);
    const { returned, torn } = this.#memory.board.reclaim(self);
    this.#memory.ring();
    const { maxReplacements = 8 } = this.#options;
    const isReplaced = this.#replacements < maxReplacements;
    const replacement = isReplaced ? this.#start({ ...self, generation: self.generation + 1 }) : undefined;
    if (isReplaced) this.#replacements++;
    this.#options.onEvent?.({
      ...{ type: 'learner-lost', pid, returned, torn },
      learner: self.number === SERVER ? undefined : self.number,
      how: signal === null ? `ended with code ${code}` : `was ended by ${signal}`,
      replacement: replacement?.pid,
    });
  }

  readonly #lost = new Set<LearnerChild>();

  #endEpoch(epochs: number): void {
    const { test } = this.#task;
    this.#trainedMs += performance.now() - this.#startedMs;
    this.#replica.step = this.#memory.version;
    this.#evaluation = test ? evaluate(this.#replica, test) : undefined;
    this.#options.onEvent?.({
      ...{ type: 'epoch', epoch: this.#epoch, step: this.#memory.version },
      ...{ loss: this.#progress().loss, evaluation: this.#evaluation },
    });
    this.#finishedSamples += this.#task.train.length;
    this.#epoch++;
    this.#save([]);
    this.#atEpochStart = this.#memory.total();
    this.#startedMs = performance.now();
    if (this.#epoch >= epochs) return;
    this.#memory.board.open(this.#epoch);
    this.#memory.ring();
  }

  /** Without a stop: learners go on changing the weights while they are copied. `done`: batches of the epoch in them. */
  #save(done: readonly number[]): void {
    this.#checkpointMs = performance.now();
    if (!this.#store) return;
    const step = this.#memory.version;
    if (!this.#replica.isFinite()) {
      throw new UsageError(
        'NOT_A_NUMBER',
        `The parameters are not finite at step ${step}; ${this.#kept()}. Lower the learning rate or clip gradients.`,
        { step, checkpoint: this.#checkpointPath },
      );
    }
    const { tensors, optimizer } = this.#replica.snapshot();
    const { seed = 0 } = this.#task;
    const state = {
      ...{ seed, optimizer: this.#replica.optimizer.spec as unknown as JsonValue },
      ...{ order: { seed, epoch: this.#epoch, position: 0 }, done: [...done] },
    };
    this.#checkpointPath = this.#store.save({ step, epoch: this.#epoch, tensors, optimizer, state });
    this.#options.onEvent?.({ type: 'checkpoint', path: this.#checkpointPath, step });
  }

  /** The batches of the epoch that the weights contain. */
  #resume(): readonly number[] {
    if (!this.#options.resume || !this.#store) return [];
    const { checkpoint, path } = this.#store.latest();
    if (!checkpoint) return [];
    const state = checkpoint.state as { done?: number[] };
    this.#replica.restore(checkpoint, checkpoint.step);
    this.#memory.version = checkpoint.step;
    this.#epoch = checkpoint.epoch;
    this.#checkpointPath = path;
    return state.done ?? [];
  }

  #kept(): string {
    return this.#checkpointPath === undefined
      ? 'no checkpoint was written yet'
      : `the last good checkpoint is ${this.#checkpointPath}`;
  }

  #counts(): Pick<TrainResult, 'steps' | 'samples'> {
    return { steps: this.#memory.version, samples: this.#finishedSamples };
  }

  #progress(): Progress {
    const all = this.#memory.total();
    const before = this.#atEpochStart;
    const samples = all.samples - before.samples;
    // Until the first batch of an epoch is there, the last one's is the newest.
    if (samples > 0) this.#loss = (all.loss - before.loss) / samples;
    const seconds = Math.max(1e-3, (this.#trainedMs + (performance.now() - this.#startedMs)) / 1000);
    return {
      samplesPerSec: all.samples / seconds,
      loss: this.#loss,
      meanStaleness: all.staleness / Math.max(1, all.batches),
    };
  }
}
