/**
 * The store of parameters that workers share, whatever framework they train with: push gradients, pull values
 * (MXNET-MPI, section 4.2). A contract; implementations differ in where the servers are. Invariant: calls of one
 * worker on one key take effect in the order in which they were made.
 */
import type { SeededInitialiser, StoreKey } from '../base/index.ts';
import type { KeyOperations, OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';

/** Plain memory is copied; a region of the store's space is used where it lies. */
export type StoreTensor = Float32Array | Region<'float32'>;
export type OneOrMany<T> = T | readonly T[];

export interface KeyInit {
  readonly key: StoreKey;
  readonly value: StoreTensor;
  /** For a table: elements of a row, so that rows can be pushed and pulled. Default: not a table. */
  readonly rowLength?: number | undefined;
  /**
   * What the servers do to the combined gradient before the rule, and moving averages behind it.
   * Not in elastic mode, where nothing is updated. Default: nothing.
   */
  readonly operations?: KeyOperations | undefined;
}

/**
 * A key whose first values the servers make: those that `fillInitial` gives with the same
 * initialiser and seed.
 */
export interface SeededKeyInit {
  readonly key: StoreKey;
  /** Elements. */
  readonly length: number;
  readonly initialiser: SeededInitialiser;
  /** Of this key alone, a whole number below 2^32; for a parameter of a model `parameterSeed`. */
  readonly seed: number;
  /** See `KeyInit`. */
  readonly rowLength?: number | undefined;
  /** See `KeyInit`. */
  readonly operations?: KeyOperations | undefined;
}

/** One key with a gradient, or with one for each local device: those are added first. */
export interface KeyPush {
  readonly key: StoreKey;
  readonly gradient: OneOrMany<StoreTensor>;
}

export interface KeyPull {
  readonly key: StoreKey;
  /** Receives the value; several, one for each local device, all receive it. */
  readonly into: OneOrMany<StoreTensor>;
}

export interface KeyPushPull extends KeyPush, KeyPull {}

export interface PushOptions {
  /** Samples behind the gradients, which weigh in an average. Default 1. */
  readonly samples?: number | undefined;
}

export interface KeyStatus {
  readonly key: StoreKey;
  /** Updates that the key has seen. */
  readonly version: number;
  /** Updates by others between this worker's last pull and its push. */
  readonly staleness: number;
}

export interface KVStore {
  /** This worker's number, from 0. */
  readonly rank: number;
  readonly workers: number;
  /**
   * Whether the workers of this worker's client face the servers by themselves, because they all share memory with them:
   * the same sums without a pass more. Default false.
   */
  readonly isFused?: boolean | undefined;
  /** Gives keys their first values: the first worker's count, the others' are ignored. Done when the keys are there. */
  init(keys: OneOrMany<KeyInit>): Promise<void>;
  /** Hands gradients over; done when they have taken effect. */
  push(keys: OneOrMany<KeyPush>, options?: PushOptions): Promise<readonly KeyStatus[]>;
  pull(keys: OneOrMany<KeyPull>): Promise<readonly KeyStatus[]>;
  /** Push and pull in one round trip. In elastic mode the answer is not the centre but this worker's own new weights. */
  pushpull(keys: OneOrMany<KeyPushPull>, options?: PushOptions): Promise<readonly KeyStatus[]>;
  /** Only these rows travel and are updated; an index may repeat. */
  pushRows(key: StoreKey, indices: Int32Array, rows: StoreTensor, options?: PushOptions): Promise<KeyStatus>;
  /** Rows in the order of the indices. */
  pullRows(key: StoreKey, indices: Int32Array, into: StoreTensor): Promise<KeyStatus>;
  /** Push and pull of the same rows, in one round trip where the store can. */
  pushpullRows(
    key: StoreKey,
    indices: Int32Array,
    rows: StoreTensor,
    into: StoreTensor,
    options?: PushOptions,
  ): Promise<KeyStatus>;
  /**
   * The rule by which servers update, from the next update on; the first worker's counts. If only numbers of the same rule change,
   * momentum and averages are kept; another rule starts afresh. Default: what the option `updater` of the store says.
   */
  setOptimizer(spec: OptimizerSpec | OwnRuleSpec): Promise<void>;
  /**
   * The learning rate of the optimizer from now on; everything else stays. In synchronous training all workers call it between the
   * same two steps: the first worker's rate counts, updates before it have the old rate and those after it the new one, on
   * all servers. Otherwise one worker's call is enough: it counts for pushes that servers take from then on.
   */
  setLearningRate(lr: number): Promise<void>;
  /** Done when all workers have come. */
  barrier(): Promise<void>;
  close(): Promise<void>;
}

/**
 * A store whose servers keep checkpoints, to which all workers go back together when something was
 * lost.
 */
export interface RecoverableStore extends KVStore {
  /**
   * Keeps the parameters as they are after a step, in the background. In synchronous training all
   * workers call it between the same two steps. `isDurable`: done only when it is on the servers'
   * disks.
   */
  checkpoint(step: number, options?: { readonly isDurable?: boolean | undefined }): Promise<void>;
  /** Done when all checkpoints that this worker asked for are on the servers' disks. */
  checkpointsWritten(): Promise<void>;
  /**
   * Goes back, together with all other workers, to the newest checkpoint that all servers have;
   * returns its step, or 0 without any. To be called after `init` and `setOptimizer` by a worker
   * that was started again, and by all after an error with code REWOUND. In asynchronous training
   * nothing is taken back.
   */
  resume(): Promise<number>;
}

/** The same result in two calls. The status is that of the push, but for a version that others may have raised. */
export async function pushThenPullRows(
  store: Pick<KVStore, 'pushRows' | 'pullRows'>,
  ...[key, indices, rows, into, options]: Parameters<KVStore['pushpullRows']>
): Promise<KeyStatus> {
  const { staleness } = await store.pushRows(key, indices, rows, options);
  const { version } = await store.pullRows(key, indices, into);
  return { key, version, staleness };
}
