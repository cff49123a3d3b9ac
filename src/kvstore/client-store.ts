/**
 * The store of one worker of a client: workers that reduce their gradients by collective, so that servers see one worker
 * instead of many (MXNET-MPI, section 4). Rank 0 of the client pushes and pulls for all, and the result is
 * broadcast inside. A list of keys is exchanged as a whole: one reduce, one call behind, one broadcast. Which servers there are, if any, is the business of the store behind rank 0.
 *
 * Every call is one of the whole client: each of its workers must make it, for each key the same calls in the same order.
 * Gradients are reduced to rank 0, not to all as in the paper: only rank 0 uses the sum, and an allreduce would move about
 * twice the bytes. Invariant: whatever fails on rank 0 fails on all workers of the client with the same error.
 */
import { UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import { barrier, broadcastList, reduce, reduceList } from '../collectives/index.ts';
import type { OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Combine } from '../server/index.ts';
import { shareOutcome, shareOutcomes } from './client-outcome.ts';
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
  RecoverableStore,
  StoreTensor as Tensor,
} from './kv-store.ts';
import { elementsOf, listOf } from './remote/tensors.ts';

export interface ClientStoreOptions extends ExchangeOptions {
  /**
   * What the client's pushes go to, a store whose workers are the clients. On rank 0 of the group
   * only; closed with this. Checkpoints are its business.
   */
  readonly store?: KVStore | RecoverableStore | undefined;
  /**
   * Memory in the group's space that the store behind uses where it lies and frees when it is closed, on rank 0. Default:
   * memory of the client's own, from which that store copies.
   */
  readonly allocate?: ((length: number) => Region<'float32'>) | undefined;
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

export function createClientStore(options: ClientStoreOptions): RecoverableStore {
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

interface PushedKey {
  readonly known: KnownKey;
  readonly gradient: readonly Tensor[];
  readonly into?: readonly Tensor[] | undefined;
}

/** What rank 0 hands over for the whole client. */
interface ClientPush {
  readonly gradient: Region<'float32'>;
  readonly samples: number;
}

interface ClientEntry {
  readonly key: StoreKey;
  readonly gradient: Region<'float32'> | undefined;
  readonly into: Region<'float32'> | undefined;
  readonly samples: number | undefined;
}

class ClientStore implements RecoverableStore {
  readonly rank: number;
  readonly workers: number;
  readonly #options: ClientStoreOptions;
  readonly #store: KVStore | RecoverableStore | undefined;
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
    this.#keys = new Keys(options.worker, { ...roomOf(options.group), allocate: options.allocate });
    this.#exchanges = new Exchanges(options, options.worker, this.#keys);
  }

  init(keys: OneOrMany<KeyInit>): Promise<void> {
    const list = listOf(keys);
    return this.#exchanges.init(list, (channel) => this.#forAll(channel, (store) => store.init(list)));
  }

  push(keys: OneOrMany<KeyPush>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#exchanges.onList(listOf(keys), 'push', (channel, list) =>
      this.#push(
        channel,
        list.map(({ known, given }) => ({ known, gradient: listOf(given.gradient) })),
        options,
      ),
    );
  }

  pull(keys: OneOrMany<KeyPull>): Promise<readonly KeyStatus[]> {
    return this.#exchanges.onList(listOf(keys), 'pull', (channel, list) => {
      const pulls = list.map(({ known, given }) => ({ known, into: listOf(given.into) }));
      for (const { known, into } of pulls) this.#keys.checkInto(known, into);
      return this.#exchange(channel, pulls, undefined);
    });
  }

  pushpull(keys: OneOrMany<KeyPushPull>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#exchanges.onList(listOf(keys), 'pushpull', (channel, list) =>
      this.#push(
        channel,
        list.map(({ known, given: { gradient, into } }) => ({
          ...{ known, gradient: listOf(gradient), into: listOf(into) },
        })),
        options,
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

  setOptimizer(spec: OptimizerSpec | OwnRuleSpec): Promise<void> {
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

  checkpoint(step: number, options?: Parameters<RecoverableStore['checkpoint']>[1]): Promise<void> {
    return this.#exchanges.onOptimizer('checkpoint', (channel) =>
      this.#forAll(channel, () => this.#recoverable().checkpoint(step, options)),
    );
  }

  checkpointsWritten(): Promise<void> {
    return this.#exchanges.onOptimizer('checkpointsWritten', (channel) =>
      this.#forAll(channel, () => this.#recoverable().checkpointsWritten()),
    );
  }

  /** All workers of the client learn the step from rank 0. */
  resume(): Promise<number> {
    return this.#exchanges.onOptimizer('resume', async (channel) => {
      const act = async () => ({ version: await this.#recoverable().resume(), staleness: 0 });
      return (await shareOutcome(channel, this.#store && act)).version;
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
    list: readonly PushedKey[],
    { samples = 1 }: PushOptions,
  ): Promise<readonly KeyStatus[]> {
    for (const { known, gradient, into } of list) {
      this.#keys.checkGradient(known, gradient);
      this.#keys.checkSamples(known, samples);
      if (into) this.#keys.checkInto(known, into);
    }
    const pushes = this.#options.elastic
      ? this.#weights(channel, list, samples)
      : await this.#reduce(channel, list, samples);
    return this.#exchange(channel, list, pushes);
  }

  /** Rank 0's exchange with the store behind, and what it brought, to all. */
  async #exchange(
    channel: Channel,
    list: readonly { readonly known: KnownKey; readonly into?: readonly Tensor[] | undefined }[],
    pushes: readonly ClientPush[] | undefined,
  ): Promise<readonly KeyStatus[]> {
    const store = this.#store;
    const answers = list.flatMap(({ known, into }) => (into ? [channel.landing(into, known.value)] : []));
    const entries = list.map(({ known }, i) => ({
      ...{ key: known.name, gradient: pushes?.[i]?.gradient, into: answers[i] },
      samples: pushes?.[i]?.samples,
    }));
    const outcomes = await shareOutcomes(
      channel,
      list.length,
      store && (() => this.#behind(store, entries)),
      answers.length > 0 ? () => broadcastList(channel.group, answers, channel.options) : undefined,
    );
    list.forEach(({ into = [] }, i) => {
      for (const target of into) hand(answers[i]!, target);
    });
    return list.map(({ known }, i) => ({ key: known.name, ...outcomes[i]! }));
  }

  /** One call with all keys, or one for each number of samples where workers' gradients were left out of some keys. */
  async #behind(store: KVStore, entries: readonly ClientEntry[]): Promise<readonly KeyStatus[]> {
    const bySamples = new Map<number | undefined, number[]>();
    for (const place of this.#exchanges.byPriority(entries)) {
      const { samples } = entries[place]!;
      bySamples.set(samples, [...(bySamples.get(samples) ?? []), place]);
    }
    const statuses = new Array<KeyStatus>(entries.length);
    const calls = Array.from(bySamples, async ([samples, places]) => {
      const found = await exchangeWith(
        store,
        places.map((place) => entries[place]!),
        samples,
      );
      places.forEach((place, i) => (statuses[place] = found[i]!));
    });
    // All have to end before the memory is used again.
    const failed = (await Promise.allSettled(calls)).find((one) => one.status === 'rejected');
    if (failed) throw failed.reason;
    return statuses;
  }

  /** The gradients of the client's workers together; right on rank 0 only. */
  async #reduce(
    channel: Channel,
    list: readonly PushedKey[],
    samples: number,
  ): Promise<readonly ClientPush[]> {
    const { group, options } = channel;
    const { kernels } = group;
    const own = list.map(({ known, gradient }) => channel.stage(gradient, true, known.sum));
    const isUsable = list.map(({ known }, i) =>
      this.#keys.isUsable(known, own[i]!, kernels, this.#nonFinite),
    );
    if (group.size === 1) return own.map((gradient) => ({ gradient, samples }));
    // Where some keys of a worker may not count, each has a weight of its own, and the average is made here.
    const isWeighedHere = this.#combine === 'mean' && this.#nonFinite === 'skip';
    const sources = own.map((gradient, i) => {
      if (!isUsable[i]) {
        const zeros = channel.take('float32', gradient.length);
        kernels.fill(zeros, 0);
        return zeros;
      }
      if (!isWeighedHere || samples === 1) return gradient;
      const weighed = channel.take('float32', gradient.length);
      kernels.copy(weighed, gradient);
      kernels.scale(weighed, samples);
      return weighed;
    });
    // Rank 0's become the sums, so they must not be the caller's.
    const sums = group.rank > 0 ? [] : list.map(({ known }, i) => (isUsable[i] ? known.sum() : sources[i]!));
    const shares = channel.take('float64', 2 * list.length);
    shares.view.set(isUsable.flatMap((usable) => [usable ? samples : 0, Number(usable)]));
    await Promise.all([
      reduce(group, shares, options),
      reduceList(group, sources, sums, {
        ...options,
        ...(isWeighedHere ? { op: 'sum' } : { op: this.#combine, weight: samples }),
      }),
    ]);
    return sums.map((sum, i): ClientPush => {
      const [all = 0, users = 0] = shares.view.subarray(2 * i);
      // If nobody's can be used, the servers get what is not finite and leave it out themselves: the push still counts.
      if (users === 0) return { gradient: own[i]!, samples };
      if (isWeighedHere && all !== 1) kernels.divide(sum, all);
      return { gradient: sum, samples: all };
    });
  }

  #weights(channel: Channel, list: readonly PushedKey[], samples: number): readonly ClientPush[] {
    const { group } = channel;
    return list.map(({ known, gradient: given }) => {
      // Rank 0 gives a copy: servers move the weights that they are given, but those of all workers must change alike.
      const gradient = channel.stage(given, group.rank > 0, known.sum);
      this.#keys.isUsable(known, gradient, group.kernels, this.#nonFinite);
      return { gradient, samples };
    });
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

  /** The store behind, on rank 0. */
  #recoverable(): RecoverableStore {
    const store = this.#store;
    if (store && 'resume' in store) return store;
    throw new UsageError(
      'NO_CHECKPOINTS',
      `the store behind the client of worker ${this.rank} keeps no checkpoints; give the client a RemoteStore, or train without`,
      { worker: this.rank },
    );
  }

  async #forAll(channel: Channel, act: (store: KVStore) => Promise<void>): Promise<void> {
    const store = this.#store;
    await shareOutcomes(
      channel,
      0,
      store &&
        (async () => {
          await act(store);
          return [];
        }),
    );
  }
}

/** A call of the store behind with a list, whose entries are all of one kind. */
function exchangeWith(
  store: KVStore,
  entries: readonly ClientEntry[],
  samples: number | undefined,
): Promise<readonly KeyStatus[]> {
  const [first] = entries;
  if (first!.gradient === undefined)
    return store.pull(entries.map(({ key, into }) => ({ key, into: into! })));
  if (first!.into === undefined)
    return store.push(
      entries.map(({ key, gradient }) => ({ key, gradient: gradient! })),
      { samples },
    );
  return store.pushpull(
    entries.map(({ key, gradient, into }) => ({ key, gradient: gradient!, into: into! })),
    { samples },
  );
}

function hand(value: Region<'float32'>, target: Tensor): void {
  if (target instanceof Float32Array) target.set(value.view);
  else if (target !== value) target.view.set(value.view);
}
