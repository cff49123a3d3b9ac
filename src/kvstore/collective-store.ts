/**
 * The store without servers: every worker keeps all values and optimizer slots, and all of them make the same updates
 * from the same combined gradients (MXNET-MPI, section 4.2.4: pure MPI). A push of any number of keys is one allreduce and an
 * update, a pull a copy. Only synchronous: there is nobody to be asynchronous to. A call that changes a key must be made by all workers.
 * Invariant: all workers hold the same bits after the same pushes.
 */
import type { StoreKey } from '../base/index.ts';
import { allReduce, barrier, broadcast, chooseAlgorithm } from '../collectives/index.ts';
import type { AllReduceAlgorithm } from '../collectives/index.ts';
import type { Group } from '../cluster/index.ts';
import type { OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Combine, RowsMode, Updater } from '../server/index.ts';
import type { Channel } from './collective-channel.ts';
import { Exchanges } from './collective-exchanges.ts';
import type { ExchangeOptions, Listed } from './collective-exchanges.ts';
import { roomOf, spanOf } from './collective-key-memory.ts';
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
    return this.#exchanges.onList(listOf(keys), 'push', async (channel, list) => {
      const sums = await this.#sums(channel, list, options);
      return this.#copy.push(list.map(({ given: { key } }, i) => ({ key, gradient: sums[i]! })));
    });
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
    return this.#exchanges.onList(listOf(keys), 'pushpull', async (channel, list) => {
      for (const { known, given } of list) this.#keys.checkInto(known, listOf(given.into));
      const sums = await this.#sums(channel, list, options);
      return this.#copy.pushpull(
        list.map(({ given: { key, into } }, i) => ({ key, gradient: sums[i]!, into })),
      );
    });
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

  setOptimizer(spec: OptimizerSpec | OwnRuleSpec): Promise<void> {
    return this.#exchanges.onOptimizer('setOptimizer', async (channel) => {
      // The first worker's counts; the others may have been given another, or none.
      const text = Buffer.from(JSON.stringify(spec ?? null));
      const length = channel.take('int32', 1);
      length.view[0] = text.length;
      await broadcast(channel.group, length, channel.options);
      const bytes = channel.take('uint8', length.view[0]);
      if (this.rank === 0) bytes.view.set(text);
      await broadcast(channel.group, bytes, channel.options);
      await this.#copy.setOptimizer(
        JSON.parse(Buffer.from(bytes.view).toString()) as OptimizerSpec | OwnRuleSpec,
      );
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

  /** What all workers pushed, combined, of each key. The list is one vector, in one allreduce. */
  async #sums(
    channel: Channel,
    list: readonly Listed<KeyPush>[],
    { samples = 1 }: PushOptions,
  ): Promise<readonly Tensor[]> {
    const { group, options } = channel;
    const { kernels } = group;
    for (const { known, given } of list) {
      this.#keys.checkGradient(known, listOf(given.gradient));
      this.#keys.checkSamples(known, samples);
    }
    const isAlone = group.size === 1;
    const room = isAlone ? undefined : roomFor(channel, list);
    const own = list.map(({ known, given }, i) =>
      channel.stage(listOf(given.gradient), isAlone, room ? () => room.regions[i]! : known.sum),
    );
    const isUsable = list.map(({ known }, i) =>
      this.#keys.isUsable(known, own[i]!, kernels, this.#nonFinite),
    );
    if (!room) return own;
    const kept = own.map((gradient, i) => (isUsable[i] ? undefined : setAside(channel, gradient)));
    const isCounted = this.#nonFinite === 'skip';
    // Where some keys of a worker may not count, each has a weight of its own, and the average is made here.
    const isWeighedHere = isCounted && this.#combine === 'mean';
    if (isWeighedHere && samples !== 1) for (const sum of own) kernels.scale(sum, samples);
    const shares = channel.take('float64', 2 * list.length);
    shares.view.set(isUsable.flatMap((usable) => [usable ? samples : 0, Number(usable)]));
    const byteLength = shares.byteLength;
    await Promise.all([
      isCounted
        ? allReduce(group, shares, { ...options, algorithm: algorithmFor(group, byteLength) })
        : undefined,
      allReduce(group, room.whole, {
        ...options,
        ...(isWeighedHere ? { op: 'sum' } : { op: this.#combine, weight: samples }),
        algorithm: algorithmFor(group, room.whole.byteLength),
      }),
    ]);
    return own.map((sum, i) => {
      const [all = 0, users = 0] = shares.view.subarray(2 * i);
      // If nobody's can be used, each copy skips the step by what is not finite in its own.
      if (isCounted && users === 0) return kept[i]!;
      if (isWeighedHere && all !== 1) kernels.divide(sum, all);
      return sum;
    });
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

/** Memory for the sums of a list in one piece: that of the keys themselves, if they lie side by side. */
function roomFor(
  channel: Channel,
  list: readonly Listed<KeyPush>[],
): { readonly whole: Region<'float32'>; readonly regions: readonly Region<'float32'>[] } {
  const regions = list.map(({ known }) => known.sum());
  const span = spanOf(channel.group.space, regions);
  if (span) return { whole: span, regions };
  const whole = channel.take(
    'float32',
    list.reduce((sum, { known }) => sum + known.length, 0),
  );
  let start = 0;
  return {
    whole,
    regions: list.map(({ known: { length } }) => whole.slice((start += length) - length, length)),
  };
}

/** Keeps what cannot be used, and leaves zeros in its place. */
function setAside(channel: Channel, gradient: Region<'float32'>): Region<'float32'> {
  const { kernels } = channel.group;
  const kept = channel.take('float32', gradient.length);
  kernels.copy(kept, gradient);
  kernels.fill(gradient, 0);
  return kept;
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
