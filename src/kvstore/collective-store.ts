/**
 * The store without servers: every worker keeps all values and optimizer slots, and all of them make the same updates
 * from the same combined gradients (MXNET-MPI, section 4.2.4: pure MPI). A push is an allreduce and an update, a pull a
 * copy. Only synchronous: there is nobody to be asynchronous to. A call that changes a key must be made by all workers.
 * Invariant: all workers hold the same bits after the same pushes.
 */
import type { StoreKey } from '../base/index.ts';
import { allReduce, barrier, broadcast, chooseAlgorithm } from '../collectives/index.ts';
import type { AllReduceAlgorithm } from '../collectives/index.ts';
import type { Group } from '../cluster/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import type { Combine, RowsMode, Updater } from '../server/index.ts';
import type { Channel } from './collective-channel.ts';
import { Exchanges } from './collective-exchanges.ts';
import type { ExchangeOptions } from './collective-exchanges.ts';
import { roomOf } from './collective-key-memory.ts';
import { Keys } from './collective-keys.ts';
import type { NonFinite } from './collective-keys.ts';
import { gatherRows, ownRows } from './collective-rows.ts';
import { pushThenPullRows } from './kv-store.ts';
import type {
  KeyInit,
  KeyPull,
  KeyPush,
  KeyPushPull,
  KeyStatus,
  KVStore,
  OneOrMany,
  PushOptions,
  StoreTensor as Tensor,
} from './kv-store.ts';
import { createLocalStores } from './local-store.ts';
import { listOf } from './remote/tensors.ts';

export interface CollectiveStoreOptions extends ExchangeOptions {
  /** Whether gradients are added or averaged by their samples. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /** What becomes of a gradient that is not finite. Default 'refuse'. */
  readonly nonFinite?: NonFinite | undefined;
  /** Whether rows without a gradient are left alone or get what dense updates would give them. Default 'lazy'. */
  readonly rows?: RowsMode | undefined;
  /** What becomes of pushes before `setOptimizer`: the value is the combined push, or the sum of all. Default 'assign'. */
  readonly updater?: Updater | undefined;
  /** Longest piece that is updated at once, in bytes, a multiple of 64. Default 32 KB. */
  readonly chunkBytes?: number | undefined;
}

export function createCollectiveStore(options: CollectiveStoreOptions): KVStore {
  return new CollectiveStore(options);
}

class CollectiveStore implements KVStore {
  readonly rank: number;
  readonly workers: number;
  /** This worker's copy: a store with one worker, which is given what all have brought. */
  readonly #copy: KVStore;
  readonly #combine: Combine;
  readonly #nonFinite: NonFinite;
  readonly #keys: Keys;
  readonly #exchanges: Exchanges;

  constructor(options: CollectiveStoreOptions) {
    const { group, chunkBytes } = options;
    this.rank = group.rank;
    this.workers = group.size;
    this.#combine = options.combine ?? 'sum';
    this.#nonFinite = options.nonFinite ?? 'refuse';
    // Gradients are looked at before they meet. Only a step without any that can be used is left to the copy to skip.
    const nonFinite = this.#nonFinite === 'skip' ? 'skip' : 'accept';
    this.#copy = createLocalStores({
      workers: 1,
      space: group.space,
      nonFinite,
      chunkBytes,
      rows: options.rows,
      updater: options.updater,
    })[0]!;
    this.#keys = new Keys(this.rank, roomOf(group));
    this.#exchanges = new Exchanges(options, this.rank, this.#keys);
  }

  init(keys: OneOrMany<KeyInit>): Promise<void> {
    const list = listOf(keys);
    return this.#exchanges.init(list, async (channel) => {
      const values = list.map(({ value }) => channel.stage([value], false));
      await Promise.all(values.map((value) => broadcast(channel.group, value, channel.options)));
      await this.#copy.init(list.map((one, i) => ({ ...one, value: values[i]! })));
    });
  }

  push(keys: OneOrMany<KeyPush>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#exchanges.each(listOf(keys), ({ key, gradient }) =>
      this.#exchanges.onKey(key, 'push', async (channel) => {
        const [status] = await this.#copy.push({
          key,
          gradient: await this.#sum(channel, key, gradient, options),
        });
        return status!;
      }),
    );
  }

  pull(keys: OneOrMany<KeyPull>): Promise<readonly KeyStatus[]> {
    return this.#exchanges.each(listOf(keys), ({ key, into }) =>
      this.#exchanges.alone(key, 'pull', async (known) => {
        this.#keys.checkInto(known, listOf(into));
        const [status] = await this.#copy.pull({ key, into });
        return status!;
      }),
    );
  }

  pushpull(keys: OneOrMany<KeyPushPull>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#exchanges.each(listOf(keys), ({ key, gradient, into }) =>
      this.#exchanges.onKey(key, 'pushpull', async (channel) => {
        this.#keys.checkInto(this.#keys.get(key), listOf(into));
        const sum = await this.#sum(channel, key, gradient, options);
        const [status] = await this.#copy.pushpull({ key, gradient: sum, into });
        return status!;
      }),
    );
  }

  pushRows(key: StoreKey, indices: Int32Array, rows: Tensor, options: PushOptions = {}): Promise<KeyStatus> {
    return this.#exchanges.onKey(key, 'pushRows', (channel) =>
      this.#pushRows(channel, key, indices, rows, options),
    );
  }

  pullRows(key: StoreKey, indices: Int32Array, into: Tensor): Promise<KeyStatus> {
    return this.#exchanges.alone(key, 'pullRows', () => {
      this.#keys.checkRows(this.#keys.getTable(key), indices, into);
      return this.#copy.pullRows(key, indices, into);
    });
  }

  pushpullRows(...call: Parameters<KVStore['pushpullRows']>): Promise<KeyStatus> {
    return pushThenPullRows(this, ...call);
  }

  setOptimizer(spec: OptimizerSpec): Promise<void> {
    return this.#exchanges.onOptimizer('setOptimizer', async (channel) => {
      // The first worker's counts; the others may have been given another, or none.
      const text = Buffer.from(JSON.stringify(spec ?? null));
      const length = channel.take('int32', 1);
      length.view[0] = text.length;
      await broadcast(channel.group, length, channel.options);
      const bytes = channel.take('uint8', length.view[0]);
      if (this.rank === 0) bytes.view.set(text);
      await broadcast(channel.group, bytes, channel.options);
      await this.#copy.setOptimizer(JSON.parse(Buffer.from(bytes.view).toString()) as OptimizerSpec);
    });
  }

  setLearningRate(lr: number): Promise<void> {
    return this.#exchanges.onOptimizer('setLearningRate', async (channel) => {
      const first = channel.take('float64', 1);
      first.view[0] = typeof lr === 'number' ? lr : NaN;
      await broadcast(channel.group, first, channel.options);
      await this.#copy.setLearningRate(first.view[0]);
    });
  }

  barrier(): Promise<void> {
    return this.#exchanges.barrier(async (channel) => barrier(channel.group, channel.options));
  }

  /** Calls under way are cancelled, on the other workers too. */
  async close(): Promise<void> {
    if (this.#exchanges.isClosed) return;
    await this.#exchanges.close();
    await this.#copy.close();
    this.#keys.close();
  }

  /** What all workers pushed, combined. */
  async #sum(
    channel: Channel,
    key: StoreKey,
    gradient: OneOrMany<Tensor>,
    { samples = 1 }: PushOptions,
  ): Promise<Tensor> {
    const { group, options } = channel;
    const known = this.#keys.get(key);
    const tensors = listOf(gradient);
    this.#keys.checkGradient(known, tensors);
    this.#keys.checkSamples(known, samples);
    const own = channel.stage(tensors, group.size === 1, known.sum);
    const isUsable = this.#keys.isUsable(known, own, group.kernels, this.#nonFinite);
    if (group.size === 1) return own;
    const sum = isUsable ? own : channel.take('float32', known.length);
    if (!isUsable) group.kernels.fill(sum, 0);
    const users = channel.take('float64', 1);
    users.view[0] = Number(isUsable);
    const isCounted = this.#nonFinite === 'skip';
    await Promise.all([
      isCounted ? allReduce(group, users, { ...options, algorithm: algorithmFor(group, 8) }) : undefined,
      allReduce(group, sum, {
        ...options,
        op: this.#combine,
        weight: isUsable ? samples : 0,
        algorithm: algorithmFor(group, sum.byteLength),
      }),
    ]);
    // If nobody's can be used, each copy skips the step by what is not finite in its own.
    return isCounted && users.view[0] === 0 ? own : sum;
  }

  async #pushRows(
    channel: Channel,
    key: StoreKey,
    indices: Int32Array,
    rows: Tensor,
    options: PushOptions,
  ): Promise<KeyStatus> {
    const table = this.#keys.getTable(key);
    const push = { indices, rows, samples: options.samples ?? 1 };
    const { own, share } = ownRows(channel, table, push, this.#keys, this.#nonFinite);
    const all = await gatherRows(channel, own, share, table, { combine: this.#combine, to: 'all' });
    return all!.used > 0
      ? this.#copy.pushRows(key, all!.indices.view, all!.rows)
      : this.#copy.pushRows(key, indices, rows);
  }
}

/**
 * MPI's own allreduce is called in the order in which ranks agree on it, which with several keys under way may differ by
 * rank; ours are matched by their tags.
 */
function algorithmFor(group: Group, bytes: number): AllReduceAlgorithm {
  const best = chooseAlgorithm(group, bytes);
  if (best !== 'native') return best;
  return bytes <= 16 * 1024 ? 'halving-doubling' : 'rings';
}
