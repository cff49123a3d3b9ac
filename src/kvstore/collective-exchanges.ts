/**
 * The calls of one worker on a store whose workers meet in collectives (MXNET-MPI, section 4.2): in the order of
 * `OrderedCalls`, each on a channel of its own. Knows nothing of what the calls do.
 *
 * Why it cannot deadlock: each key has a tag of its own, and collectives with different tags are matched in any order. So
 * the i-th call on a key waits for the other ranks' i-th call on that key and for its own (i-1)-th, and for no call on
 * another key; by induction each ends if every rank makes the same calls on each key, in whatever order it goes through
 * the keys. This needs as many operations under way as there are keys: with a limit one rank could give its last place
 * to one key and another rank to another, so there is none. Calls that concern all keys (init, setOptimizer,
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

  /** Makes keys known when `act` has succeeded. */
  async init(list: readonly KeyInit[], act: (channel: Channel) => Promise<void>): Promise<void> {
    for (const { key } of list) checkStoreKey(this.#worker, key);
    const title = titleOf(list);
    return this.#calls.init(list, title, () => this.#onChannel(0, title, act));
  }

  /** A call that changes how all keys are updated. */
  onOptimizer(title: string, act: (channel: Channel) => Promise<void>): Promise<void> {
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

/** Differs if keys or lengths do, so that ranks which init something else get an error. */
function titleOf(list: readonly KeyInit[]): string {
  const keys = list.map(({ key, value, rowLength }) => [key, value.length, rowLength]);
  const digest = createHash('sha256').update(JSON.stringify(keys)).digest('hex').slice(0, 8);
  const more = list.length > 1 ? ` and ${list.length - 1} more` : '';
  return `init of ${list[0] ? keyText(list[0].key) : 'nothing'}${more} (${digest})`;
}
