/**
 * The store of one worker of a client: workers that reduce their gradients by collective, so that servers see one worker
 * instead of many (MXNET-MPI, section 4). Rank 0 of the client pushes and pulls for all, and the result is
 * broadcast inside. Which servers there are, if any, is the business of the store behind rank 0.
 *
 * Every call is one of the whole client: each of its workers must make it, for each key the same calls in the same order.
 * Gradients are reduced to rank 0, not to all as in the paper: only rank 0 uses the sum, and an allreduce would move about
 * twice the bytes. Invariant: whatever fails on rank 0 fails on all workers of the client with the same error.
 */
import { UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import { barrier, broadcast, reduce } from '../collectives/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Combine } from '../server/index.ts';
import { shareOutcome } from './client-outcome.ts';
import type { Channel } from './collective-channel.ts';
import { Exchanges } from './collective-exchanges.ts';
import type { ExchangeOptions } from './collective-exchanges.ts';
import { roomOf } from './collective-key-memory.ts';
import { Keys } from './collective-keys.ts';
import type { KnownKey, NonFinite } from './collective-keys.ts';
import { gather, gatherRows, ownRows, planIndices, scatter, spreadRows, tellAll } from './collective-rows.ts';
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
import { elementsOf, listOf } from './remote/tensors.ts';

export interface ClientStoreOptions extends ExchangeOptions {
  /** What the client's pushes go to, a store whose workers are the clients. On rank 0 of the group only; closed with this. */
  readonly store?: KVStore | undefined;
  /** This worker's number among the workers of all clients, from 0. */
  readonly worker: number;
  /** Workers of all clients. */
  readonly workers: number;
  /** As the servers have it: 'mean' weighs by samples, inside the client as between clients. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /**
   * Whether the servers are in elastic mode (section 5): the client's workers hold the same weights, and those of rank 0
   * are pushed, not a sum. Default false.
   */
  readonly elastic?: boolean | undefined;
  /** As the servers have it. Default 'refuse'. */
  readonly nonFinite?: NonFinite | undefined;
}

export function createClientStore(options: ClientStoreOptions): KVStore {
  const { group, store, worker, workers } = options;
  const isNumbered = Number.isInteger(worker) && worker >= 0 && worker < workers && Number.isInteger(workers);
  if (!isNumbered) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker is ${worker} of ${workers}; give its number among the workers of all clients, from 0`,
      { worker, workers },
    );
  }
  if ((group.rank === 0) !== (store !== undefined)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} is rank ${group.rank} of its client and was given ${store ? 'a' : 'no'} store; give the store behind the client to rank 0 and to no other`,
      { worker, rank: group.rank },
    );
  }
  return new ClientStore(options);
}

/** What rank 0 hands over for the whole client. */
interface ClientPush {
  readonly gradient: Tensor;
  readonly samples: number;
}

class ClientStore implements KVStore {
  readonly rank: number;
  readonly workers: number;
  readonly #options: ClientStoreOptions;
  readonly #store: KVStore | undefined;
  readonly #combine: Combine;
  readonly #nonFinite: NonFinite;
  readonly #keys: Keys;
  readonly #exchanges: Exchanges;

  constructor(options: ClientStoreOptions) {
    this.rank = options.worker;
    this.workers = options.workers;
    this.#options = options;
    this.#store = options.store;
    this.#combine = options.combine ?? 'sum';
    this.#nonFinite = options.nonFinite ?? 'refuse';
    this.#keys = new Keys(options.worker, roomOf(options.group));
    this.#exchanges = new Exchanges(options, options.worker, this.#keys);
  }

  init(keys: OneOrMany<KeyInit>): Promise<void> {
    const list = listOf(keys);
    return this.#exchanges.init(list, (channel) => this.#forAll(channel, (store) => store.init(list)));
  }

  push(keys: OneOrMany<KeyPush>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#exchanges.each(listOf(keys), ({ key, gradient }) =>
      this.#exchanges.onKey(key, 'push', (channel) => this.#push(channel, key, gradient, options)),
    );
  }

  pull(keys: OneOrMany<KeyPull>): Promise<readonly KeyStatus[]> {
    return this.#exchanges.each(listOf(keys), ({ key, into }) =>
      this.#exchanges.onKey(key, 'pull', (channel) => this.#pull(channel, key, listOf(into))),
    );
  }

  pushpull(keys: OneOrMany<KeyPushPull>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#exchanges.each(listOf(keys), ({ key, gradient, into }) =>
      this.#exchanges.onKey(key, 'pushpull', (channel) =>
        this.#push(channel, key, gradient, options, listOf(into)),
      ),
    );
  }

  pushRows(key: StoreKey, indices: Int32Array, rows: Tensor, options: PushOptions = {}): Promise<KeyStatus> {
    return this.#exchanges.onKey(key, 'pushRows', (channel) =>
      this.#pushRows(channel, key, indices, rows, options),
    );
  }

  pullRows(key: StoreKey, indices: Int32Array, into: Tensor): Promise<KeyStatus> {
    return this.#exchanges.onKey(key, 'pullRows', (channel) => this.#pullRows(channel, key, indices, into));
  }

  pushpullRows(...call: Parameters<KVStore['pushpullRows']>): Promise<KeyStatus> {
    return pushThenPullRows(this, ...call);
  }

  setOptimizer(spec: OptimizerSpec): Promise<void> {
    return this.#exchanges.onOptimizer('setOptimizer', (channel) =>
      this.#forAll(channel, (store) => store.setOptimizer(spec)),
    );
  }

  setLearningRate(lr: number): Promise<void> {
    return this.#exchanges.onOptimizer('setLearningRate', (channel) =>
      this.#forAll(channel, (store) => store.setLearningRate(lr)),
    );
  }

  barrier(): Promise<void> {
    return this.#exchanges.barrier(async (channel) => {
      await barrier(channel.group, channel.options);
      await this.#forAll(channel, (store) => store.barrier());
    });
  }

  /** Calls under way are cancelled, on the client's other workers too. */
  async close(): Promise<void> {
    if (this.#exchanges.isClosed) return;
    // Both at once: what waits for the servers ends when the store behind is closed.
    await Promise.all([this.#exchanges.close(), this.#store?.close()]);
    this.#keys.close();
  }

  async #push(
    channel: Channel,
    key: StoreKey,
    gradient: OneOrMany<Tensor>,
    options: PushOptions,
    into?: readonly Tensor[],
  ): Promise<KeyStatus> {
    const { group } = channel;
    const store = this.#store;
    const known = this.#keys.get(key);
    const tensors = listOf(gradient);
    const samples = options.samples ?? 1;
    this.#keys.checkGradient(known, tensors);
    this.#keys.checkSamples(known, samples);
    if (into) this.#keys.checkInto(known, into);
    const push = this.#options.elastic
      ? this.#weights(channel, known, tensors, samples)
      : await this.#reduce(channel, known, tensors, samples);
    const answer = into && channel.landing(into, known.value);
    const { version, staleness } = await shareOutcome(
      channel,
      store &&
        (async () => {
          const of = { samples: push.samples };
          const [status] = answer
            ? await store.pushpull({ key, gradient: push.gradient, into: answer }, of)
            : await store.push({ key, gradient: push.gradient }, of);
          return status;
        }),
      answer && (() => broadcast(group, answer, channel.options)),
    );
    if (answer) for (const target of into) hand(answer, target);
    return { key, version, staleness };
  }

  /** The gradients of the client's workers together; right on rank 0 only. */
  async #reduce(
    channel: Channel,
    known: KnownKey,
    tensors: readonly Tensor[],
    samples: number,
  ): Promise<ClientPush> {
    const { group, options } = channel;
    // Rank 0's becomes the sum, so it must not be the caller's.
    const own = channel.stage(tensors, group.size === 1 || group.rank > 0, known.sum);
    const isUsable = this.#keys.isUsable(known, own, group.kernels, this.#nonFinite);
    if (group.size === 1) return { gradient: own, samples };
    const used = isUsable ? own : channel.take('float32', known.length);
    if (!isUsable) group.kernels.fill(used, 0);
    const share = channel.take('float64', 2);
    const weight = isUsable ? samples : 0;
    share.view.set([weight, Number(isUsable)]);
    await Promise.all([
      reduce(group, share, options),
      reduce(group, used, { ...options, op: this.#combine, weight }),
    ]);
    const [all = 0, users = 0] = share.view;
    // If nobody's can be used, the servers get what is not finite and leave it out themselves: the push still counts.
    return users > 0 ? { gradient: used, samples: all } : { gradient: own, samples };
  }

  #weights(channel: Channel, known: KnownKey, tensors: readonly Tensor[], samples: number): ClientPush {
    const { group } = channel;
    // Rank 0 gives a copy: servers move the weights that they are given, but those of all workers must change alike.
    const gradient = channel.stage(tensors, group.rank > 0, known.sum);
    this.#keys.isUsable(known, gradient, group.kernels, this.#nonFinite);
    return { gradient, samples };
  }

  async #pull(channel: Channel, key: StoreKey, into: readonly Tensor[]): Promise<KeyStatus> {
    const store = this.#store;
    const known = this.#keys.get(key);
    this.#keys.checkInto(known, into);
    const value = channel.landing(into, known.value);
    const { version, staleness } = await shareOutcome(
      channel,
      store && (async () => (await store.pull({ key, into: value }))[0]),
      () => broadcast(channel.group, value, channel.options),
    );
    for (const target of into) hand(value, target);
    return { key, version, staleness };
  }

  async #pushRows(
    channel: Channel,
    key: StoreKey,
    indices: Int32Array,
    rows: Tensor,
    options: PushOptions,
  ): Promise<KeyStatus> {
    const store = this.#store;
    const table = this.#keys.getTable(key);
    const push = { indices, rows, samples: options.samples ?? 1 };
    const { own, share } = ownRows(channel, table, push, this.#keys, this.#nonFinite);
    const all = await gatherRows(channel, own, share, table, { combine: this.#combine, to: 'first' });
    const { version, staleness } = await shareOutcome(
      channel,
      store &&
        (() =>
          all!.used > 0
            ? store.pushRows(key, all!.indices.view, all!.rows, { samples: all!.samples })
            : store.pushRows(key, indices, rows, options)),
    );
    return { key, version, staleness };
  }

  /** Each worker's indices go to rank 0 once and only its own rows come back, so no rank gets what it did not ask for. */
  async #pullRows(channel: Channel, key: StoreKey, indices: Int32Array, into: Tensor): Promise<KeyStatus> {
    const store = this.#store;
    const table = this.#keys.getTable(key);
    const { rowLength } = table;
    this.#keys.checkRows(table, indices, into);
    const given = channel.take('int32', indices.length);
    given.view.set(indices);
    const own = planIndices(channel, given, table);
    const rows = channel.take('float32', own.unique.length * rowLength);
    const counts = (await tellAll(channel, [own.unique.length])).map(([count]) => count!);
    const asked = await gather(channel, own.unique, counts);
    const answer = asked && channel.take('float32', asked.length * rowLength);
    const { version, staleness } = await shareOutcome(
      channel,
      store &&
        (async () => {
          const union = planIndices(channel, asked!, table);
          const pulled = channel.take('float32', union.unique.length * rowLength);
          const status = await store.pullRows(key, union.unique.view, pulled);
          spreadRows(union, pulled.view, answer!.view, rowLength);
          return status;
        }),
      () =>
        scatter(
          channel,
          answer,
          rows,
          counts.map((count) => count * rowLength),
        ),
    );
    spreadRows(own, rows.view, elementsOf(into), rowLength);
    return { key, version, staleness };
  }

  async #forAll(channel: Channel, act: (store: KVStore) => Promise<void>): Promise<void> {
    const store = this.#store;
    await shareOutcome(channel, store && (() => act(store)));
  }
}

function hand(value: Region<'float32'>, target: Tensor): void {
  if (target instanceof Float32Array) target.set(value.view);
  else if (target !== value) target.view.set(value.view);
}
