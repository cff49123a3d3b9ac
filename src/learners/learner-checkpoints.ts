/**
 * The checkpoints of a run of learners, in the form of all runs: which batches of the epoch the
 * weights contain is a place in the samples with batches ahead of it. Written while learners go on
 * changing the weights. Decides nothing about when. Invariants: weights that are not finite never
 * get the name of a checkpoint; a checkpoint of another task is refused, never trained on.
 */
import { UsageError, type ScheduleSpec } from '../base/index.ts';
import {
  carriedOver,
  checkRunState,
  CheckpointStore,
  doneBatches,
  isWithinEpoch,
  placeOf,
  readRunState,
  stepOffsetOf,
  writeRunState,
} from '../runtime/index.ts';
import type {
  CheckpointStoreOptions,
  Evaluation,
  LatestCheckpoint,
  Replica,
  RunState,
  UsedFolderOptions,
} from '../runtime/index.ts';

/** What the weights contain. */
export interface Position {
  /** Batches applied since the first epoch. */
  readonly step: number;
  /** Finished epochs. */
  readonly epoch: number;
  /** Batches of the epoch that are applied. */
  readonly done: readonly number[];
}

/** What a checkpoint says of the task and of who trained. */
export interface TaskFacts {
  readonly seed: number;
  /** Of an epoch. */
  readonly samples: number;
  readonly batchSize: number;
  readonly schedule?: ScheduleSpec | undefined;
  /** For people: '2 learners'. */
  readonly trainedBy: string;
}

type Stored = NonNullable<LatestCheckpoint['checkpoint']>;

export class LearnerCheckpoints {
  readonly #store: CheckpointStore | undefined;
  readonly #replica: Replica;
  readonly #facts: TaskFacts;
  /** Those of this run, newest last; the folder may hold others. */
  readonly #paths: string[] = [];
  /** Newer ones that `resume` found and could not use. */
  skipped: LatestCheckpoint['skipped'] = [];
  /** See `RunState`. */
  stepOffset = 0;
  /** What is carried over from others, for people, if others made the one to go on from. */
  carried: string | undefined;

  /** Without a folder nothing is kept, and there is nothing to go on from. */
  constructor(
    directory: string | undefined,
    replica: Replica,
    facts: TaskFacts,
    onNotRemoved?: CheckpointStoreOptions['onNotRemoved'],
  ) {
    this.#store = directory === undefined ? undefined : new CheckpointStore(directory, { onNotRemoved });
    this.#replica = replica;
    this.#facts = facts;
  }

  /** The newest of this run. */
  get path(): string | undefined {
    return this.#paths.at(-1);
  }

  /** For the end of an error message. */
  get kept(): string {
    return this.path === undefined
      ? 'no checkpoint was written yet'
      : `the last good checkpoint is ${this.path}`;
  }

  /** Gives its folder; undefined if none are kept. */
  save({ step, epoch, done }: Position, evaluation?: Evaluation): string | undefined {
    this.#checkFinite(step);
    if (!this.#store) return undefined;
    const { tensors, optimizer } = this.#replica.snapshot();
    const { seed, samples: datasetLength, batchSize, schedule, trainedBy } = this.#facts;
    const state = writeRunState({
      ...{ seed, batchSize, datasetLength, schedule, trainedBy, evaluation, stepOffset: this.stepOffset },
      ...{
        optimizer: this.#replica.optimizer.spec,
        order: { seed, epoch, ...placeOf(done, batchSize, datasetLength) },
      },
    });
    // Learners go on while it is written, and what is not finite once stays so: if it is finite then, so is what was written.
    const path = this.#store.save({ step, epoch, tensors, optimizer, state }, () => this.#checkFinite(step));
    this.#paths.push(path);
    return path;
  }

  #checkFinite(step: number): void {
    if (this.#replica.isFinite()) return;
    throw new UsageError(
      'NOT_A_NUMBER',
      `The parameters or states are not finite at step ${step}; ${this.kept}. Lower the learning rate or clip gradients.`,
      { step, checkpoint: this.path },
    );
  }

  /**
   * Puts the newest good checkpoint of the folder into the weights, if the run is to go on from one; undefined if there is none.
   * Refuses a folder of an earlier run unless the options say what becomes of it.
   */
  begin(options: UsedFolderOptions): Position | undefined {
    const { checkpoint, path, skipped = [] } = this.#store?.begin(options) ?? {};
    this.skipped = skipped;
    if (!checkpoint || path === undefined) return undefined;
    const state = readRunState(checkpoint.state);
    this.#check(state, path);
    this.#paths.push(path);
    const position = this.#restore(checkpoint);
    const { trainedBy, batchSize: stepSamples } = this.#facts;
    this.stepOffset = stepOffsetOf(state, position.step, stepSamples);
    const done = position.step - this.stepOffset;
    this.carried = carriedOver(path, state, { trainedBy, stepSamples, done });
    return position;
  }

  /** Puts the newest good checkpoint of this run into the weights; undefined if there is none. */
  rewind(): Position | undefined {
    while (this.path !== undefined) {
      const checkpoint = this.#read(this.path);
      if (checkpoint) return this.#restore(checkpoint);
      this.#paths.pop();
    }
    return undefined;
  }

  #read(path: string): Stored | undefined {
    try {
      return this.#store!.load(path);
    } catch {
      // Damaged, or removed in favour of newer ones which are damaged: an older one may be whole.
      return undefined;
    }
  }

  #restore(checkpoint: Stored): Position {
    const { batchSize, samples } = this.#facts;
    const { step } = checkpoint;
    this.#replica.restore(checkpoint, step);
    const { order } = readRunState(checkpoint.state);
    return { step, epoch: order.epoch, done: doneBatches(order, batchSize, samples) ?? [] };
  }

  /** Shapes are compared when the weights are put in place. */
  #check(state: RunState, path: string): void {
    const { seed, samples: datasetLength, batchSize } = this.#facts;
    const isWithin = isWithinEpoch(state);
    const wanted = { seed, optimizer: this.#replica.optimizer.spec, datasetLength };
    // Which batches are done means something only while batches are the same; between epochs they may change.
    checkRunState(path, state, isWithin ? { ...wanted, batchSize } : wanted);
    if (doneBatches(state.order, batchSize, datasetLength)) return;
    throw new UsageError(
      'CHECKPOINT_MISMATCH',
      `${path} is ${state.order.position} samples into an epoch, which is no number of batches of ${batchSize}. Use the batch size that it was made with, or start in another folder.`,
      { path, position: state.order.position, batchSize },
    );
  }
}
