/**
 * The calls of one worker on a store whose workers meet in collectives (MXNET-MPI, section 4.2): in the order of
 * `OrderedCalls`, each on a channel of its own. Knows nothing of what the calls do.
 *
 * A list of keys is one call, whose collectives have the tag of the key that was initialized first.
 *
 * Why it cannot deadlock: each key has a tag of its own, and collectives with different tags are matched in any order. A
 * call waits for the same call of the other ranks and for this rank's earlier calls that have a key in common with it, which
 * all calls with its tag have. Every rank makes the same calls on each key in the same order, so 'earlier with a key in
 * common' is the same relation on all ranks, and has no cycle, being part of the order of one program; by induction each
 * call ends, in whatever order a rank makes calls without a key in common. This needs as many operations under way as
 * there are keys: with a limit one rank could give its last place to one key and another rank to another, so there is
 * none. Calls that concern all keys (init, setOptimizer,
 * setLearningRate, barrier) share one tag: all ranks make them in the same order, those of the optimizer at the same place
 * between pushes.
 */
import { checkStoreKey, keyText } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import { createHash } from 'node:crypto';
import type { Group } from '../cluster/index.ts';
import { Channel, RowPlanPool } from './collective-channel.ts';
import type { Keys, KnownKey } from './collective-keys.ts';
import type { KeyInit } from './kv-store.ts';
import { OrderedCalls } from './ordered-calls.ts';
import type { OrderOptions } from './ordered-calls.ts';

export interface ExchangeOptions extends OrderOptions {
  /** The workers who meet. All must give the same `firstTag`. */
  readonly group: Group;
  /** Tags of the group from this one on are the store's, one and one more for each key. Default 2^30. */
  readonly firstTag?: number | undefined;
  /** Longest time of one collective, in milliseconds, waits for the servers included. Default: that of the cluster. */
  readonly deadlineMs?: number | undefined;
}

/** A key of a list, and what the call was given for it. */
export interface Listed<K> {
  readonly known: KnownKey;
  readonly given: K;
}

export class Exchanges {
  readonly #options: ExchangeOptions;
  readonly #worker: number;
  readonly #calls: OrderedCalls;
  readonly #plans: RowPlanPool;

  constructor(options: ExchangeOptions, worker: number, keys: Keys) {
    this.#options = options;
    this.#worker = worker;
    this.#calls = new OrderedCalls(options, worker, keys);
    this.#plans = new RowPlanPool(options.group.space);
  }

  get isClosed(): boolean {
    return this.#calls.isClosed;
  }

  /** A call on one key that all ranks make. */
  onKey<T>(name: StoreKey, what: string, act: (channel: Channel) => Promise<T>): Promise<T> {
    return this.#calls.onKey(name, what, ({ number }) =>
      this.#onChannel(1 + number, `${what} of ${keyText(name)}`, act),
    );
  }

  /**
   * One call on all keys of a list that all ranks make, each with the same keys, in whatever order; answers in the order of
   * the list. `act` gets and answers them in the order of their init. A key that is named again is left to a further call.
   */
  async onList<K extends { readonly key: StoreKey }, T>(
    list: readonly K[],
    what: string,
    act: (channel: Channel, keys: readonly Listed<K>[]) => Promise<readonly T[]>,
  ): Promise<readonly T[]> {
    this.#calls.check(list);
    const answers = new Array<T>(list.length);
    const calls = withoutRepeats(list).map(async (places) => {
      const placeOf = new Map(places.map((place) => [list[place]!.key, place]));
      const names = [...placeOf.keys()];
      const call = (known: readonly KnownKey[]) =>
        this.#onChannel(1 + known[0]!.number, nameOf(what, known), async (channel) => {
          const given = known.map((key): Listed<K> => ({ known: key, given: list[placeOf.get(key.name)!]! }));
          const results = await act(channel, given);
          known.forEach(({ name }, i) => (answers[placeOf.get(name)!] = results[i]!));
        });
      await this.#calls.onKeys(names, what, call);
    });
    await Promise.all(calls);
    return answers;
  }

  /** A call on one key that needs no other rank. */
  alone<T>(name: StoreKey, what: string, act: (key: KnownKey) => Promise<T>): Promise<T> {
    return this.#calls.alone(name, what, act);
  }

  /** One call on each of several keys; answers in the order of the list. */
  each<K extends { readonly key: StoreKey }, T>(
    list: readonly K[],
    call: (one: K) => Promise<T>,
  ): Promise<readonly T[]> {
    return this.#calls.each(list, call);
  }

  /** The places of a list, those of what begins first first. */
  byPriority(list: readonly { readonly key: StoreKey }[]): readonly number[] {
    return this.#calls.byPriority(list);
  }

  /** Makes keys known when `act` has succeeded. */
  async init(list: readonly KeyInit[], act: (channel: Channel) => Promise<void>): Promise<void> {
    for (const { key } of list) checkStoreKey(this.#worker, key);
    const title = titleOf(list);
    return this.#calls.init(list, title, () => this.#onChannel(0, title, act));
  }

  /** A call that changes how all keys are updated. */
  onOptimizer<T>(title: string, act: (channel: Channel) => Promise<T>): Promise<T> {
    return this.#calls.onOptimizer(title, () => this.#onChannel(0, title, act));
  }

  barrier(act: (channel: Channel) => Promise<void>): Promise<void> {
    return this.#calls.barrier(() => this.#onChannel(0, 'barrier', act));
  }

  /** Cancels what is under way; the other ranks of those calls get an error that names this one. */
  async close(): Promise<void> {
    await this.#calls.close();
    this.#plans.close();
  }

  async #onChannel<T>(tag: number, name: string, act: (channel: Channel) => Promise<T>): Promise<T> {
    const { group, firstTag = 2 ** 30, deadlineMs } = this.#options;
    const options = { tag: firstTag + tag, name, deadlineMs, signal: this.#calls.signal };
    const channel = new Channel(group, options, this.#plans);
    try {
      return await act(channel);
    } finally {
      channel.end();
    }
  }
}

/** The places of a list in lists without a key twice: the i-th use of a key is in the i-th. */
function withoutRepeats(list: readonly { readonly key: StoreKey }[]): number[][] {
  const uses = new Map<StoreKey, number>();
  const lists: number[][] = [];
  list.forEach(({ key }, place) => {
    const before = uses.get(key) ?? 0;
    uses.set(key, before + 1);
    (lists[before] ??= []).push(place);
  });
  return lists;
}

/** Differs if the keys do, whatever their order, so that ranks which exchange others get an error. */
function nameOf(what: string, keys: readonly KnownKey[]): string {
  const first = `${what} of ${keyText(keys[0]!.name)}`;
  if (keys.length === 1) return first;
  return `${first} and ${keys.length - 1} more (${digestOf(keys.map(({ number }) => number))})`;
}

function digestOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('hex').slice(0, 8);
}

/** Differs if keys or lengths do, so that ranks which init something else get an error. */
function titleOf(list: readonly KeyInit[]): string {
  const keys = list.map(({ key, value, rowLength }) => [key, value.length, rowLength]);
  const more = list.length > 1 ? ` and ${list.length - 1} more` : '';
  return `init of ${list[0] ? keyText(list[0].key) : 'nothing'}${more} (${digestOf(keys)})`;
}
