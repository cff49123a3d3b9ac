/**
 * The checkpoints of a run of learners: which batches of the epoch the weights contain, beside weights and optimizer. Written
 * while learners go on changing the weights. Decides nothing about when. Invariants: weights that are not finite are
 * never kept; a checkpoint of another task is refused, never trained on.
 */
import { rmSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import { UsageError } from '../base/index.ts';
import { CheckpointStore } from '../runtime/index.ts';
import type {
  CheckpointStoreOptions,
  JsonValue,
  LatestCheckpoint,
  Replica,
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

/** What a checkpoint must agree on with a run that goes on from it. */
export interface TaskFacts {
  readonly seed: number;
  /** Of an epoch. */
  readonly samples: number;
  readonly batchSize: number;
}

interface StoredState extends Partial<TaskFacts> {
  readonly optimizer?: JsonValue;
  /** `position`: how far one that goes through the samples in order was in the epoch; 0 with learners. */
  readonly order?: { readonly position?: number };
  readonly done?: readonly number[];
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
  save({ step, epoch, done }: Position): string | undefined {
    this.#checkFinite(step);
    if (!this.#store) return undefined;
    const { tensors, optimizer } = this.#replica.snapshot();
    const { seed, samples, batchSize } = this.#facts;
    const state = {
      ...{ seed, samples, batchSize, optimizer: this.#optimizer },
      ...{ order: { seed, epoch, position: 0 }, done: [...done] },
    };
    const path = this.#store.save({ step, epoch, tensors, optimizer, state });
    try {
      // Learners went on while it was written, and what is not finite once stays so: if it is finite now, so is what was written.
      this.#checkFinite(step);
    } catch (error) {
      rmSync(path, { recursive: true, force: true });
      throw error;
    }
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
    this.#check(checkpoint, path);
    this.#paths.push(path);
    return this.#restore(checkpoint);
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
    const { step, epoch } = checkpoint;
    this.#replica.restore(checkpoint, step);
    return { step, epoch, done: (checkpoint.state as StoredState).done ?? [] };
  }

  get #optimizer(): JsonValue {
    return this.#replica.optimizer.spec;
  }

  /** Shapes are compared when the weights are put in place. */
  #check({ state, epoch }: Stored, path: string): void {
    const { seed, samples, batchSize, optimizer, order, done = [] } = state as StoredState;
    if ((order?.position ?? 0) > 0) {
      throw mismatch(
        path,
        `was made in the middle of epoch ${epoch + 1} by one that goes through the samples in order; learners go on from the end of an epoch, or from a checkpoint of learners. Finish the epoch with the one that made it, or start in another folder.`,
      );
    }
    const mine: StoredState = { ...this.#facts, optimizer: this.#optimizer };
    const theirs: StoredState = { seed, samples, batchSize, optimizer };
    // Which batches are done means something only while batches are the same; between epochs they may change.
    const names: (keyof TaskFacts | 'optimizer')[] = ['seed', 'optimizer'];
    if (samples !== undefined) names.push('samples');
    if (done.length > 0) names.push('batchSize');
    const differing = names.filter((name) => !isDeepStrictEqual(plain(theirs[name]), plain(mine[name])));
    if (differing.length === 0) return;
    const what = (from: StoredState) =>
      differing.map((name) => `${name} ${JSON.stringify(from[name]) ?? 'unknown'}`).join(', ');
    throw mismatch(
      path,
      `was made with ${what(theirs)}; this run has ${what(mine)}. Use the task that it was made with, or start in another folder.`,
    );
  }
}

/** As it would come back from a file. */
function plain(value: unknown): unknown {
  return value === undefined ? undefined : (JSON.parse(JSON.stringify(value)) as unknown);
}

function mismatch(path: string, fault: string): UsageError {
  return new UsageError('CHECKPOINT_MISMATCH', `The checkpoint ${path} ${fault}`, { path });
}
