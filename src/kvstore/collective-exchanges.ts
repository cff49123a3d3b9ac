/**
 * The calls of one worker on a store whose workers meet in collectives, as operations of a dependency engine (MXNET-MPI,
 * section 4.2). A call on a key mutates that key's variable, so calls on one key run one after the other, in the
 * order in which they were made, and those on different keys overlap. Knows nothing of what the calls do.
 *
 * Why it cannot deadlock: each key has a tag of its own, and collectives with different tags are matched in any order. So
 * the i-th call on a key waits for the other ranks' i-th call on that key and for its own (i-1)-th, and for no call on
 * another key; by induction each ends if every rank makes the same calls on each key, in whatever order it goes through
 * the keys. This needs as many operations under way as there are keys: with a limit one rank could give its last place
 * to one key and another rank to another, so there is none. Calls that concern all keys (init, setOptimizer, barrier)
 * share one tag: all ranks make them in the same order, and setOptimizer at the same place between pushes.
 */
import { createHash } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { PeerError, UsageError } from '../base/index.ts';
import type { Group } from '../cluster/index.ts';
import { DependencyEngine } from '../engine/index.ts';
import { Channel, RowPlanPool } from './collective-channel.ts';
import type { Keys, KnownKey } from './collective-keys.ts';
import type { KeyInit } from './kv-store.ts';

export interface ExchangeOptions {
  /** The workers who meet. All must give the same `firstTag`. */
  readonly group: Group;
  /**
   * Of keys that are handed over in one call, those with a higher number begin first. Default: in the order of their init,
   * which is that of the layers.
   */
  readonly priority?: ((key: string) => number) | undefined;
  /** Tags of the group from this one on are the store's, one and one more for each key. Default 2^30. */
  readonly firstTag?: number | undefined;
  /** Longest time of one collective, in milliseconds, waits for the servers included. Default: that of the cluster. */
  readonly deadlineMs?: number | undefined;
}

const OPTIMIZER = 'optimizer';
const TURN = 'turn of all keys';

export class Exchanges {
  readonly #options: ExchangeOptions;
  readonly #worker: number;
  readonly #keys: Keys;
  readonly #engine = new DependencyEngine();
  readonly #plans: RowPlanPool;
  readonly #end = new AbortController();

  constructor(options: ExchangeOptions, worker: number, keys: Keys) {
    this.#options = options;
    this.#worker = worker;
    this.#keys = keys;
    this.#plans = new RowPlanPool(options.group.space);
    // One for each collective under way.
    setMaxListeners(0, this.#end.signal);
  }

  get isClosed(): boolean {
    return this.#end.signal.aborted;
  }

  /** A call on one key that all ranks make. */
  onKey<T>(name: string, what: string, act: (channel: Channel) => Promise<T>): Promise<T> {
    return this.#push(
      { title: `${what} of '${name}'`, reads: [OPTIMIZER], mutates: [variableOf(name)] },
      () => {
        const { number } = this.#keys.get(name);
        return this.#onChannel(1 + number, `${what} of '${name}'`, act);
      },
    );
  }

  /** A call on one key that needs no other rank. */
  alone<T>(name: string, what: string, act: (key: KnownKey) => Promise<T>): Promise<T> {
    const title = `${what} of '${name}'`;
    return this.#push({ title, reads: [variableOf(name)] }, () => act(this.#keys.get(name)));
  }

  /** One call on each of several keys; answers in the order of the list. */
  each<K extends { readonly key: string }, T>(
    list: readonly K[],
    call: (one: K) => Promise<T>,
  ): Promise<readonly T[]> {
    const { priority = (key: string) => -(this.#keys.find(key)?.number ?? Number.MAX_SAFE_INTEGER) } =
      this.#options;
    const byPriority = list.map((one, i) => ({ one, i, priority: priority(one.key) }));
    byPriority.sort((a, b) => b.priority - a.priority || a.i - b.i);
    const answers = new Array<Promise<T>>(list.length);
    for (const { one, i } of byPriority) answers[i] = call(one);
    return Promise.all(answers);
  }

  /** Makes keys known when `act` has succeeded. */
  init(list: readonly KeyInit[], act: (channel: Channel) => Promise<void>): Promise<void> {
    const title = titleOf(list);
    const mutates = [TURN, ...list.map(({ key }) => variableOf(key))];
    return this.#push({ title, mutates }, async () => {
      this.#keys.checkNew(list);
      await this.#onChannel(0, title, act);
      this.#keys.add(list);
    });
  }

  setOptimizer(act: (channel: Channel) => Promise<void>): Promise<void> {
    const title = 'setOptimizer';
    return this.#push({ title, mutates: [TURN, OPTIMIZER] }, () => this.#onChannel(0, title, act));
  }

  barrier(act: (channel: Channel) => Promise<void>): Promise<void> {
    const title = 'barrier';
    return this.#push({ title, mutates: [TURN] }, () => this.#onChannel(0, title, act));
  }

  /** Cancels what is under way; the other ranks of those calls get an error that names this one. */
  async close(): Promise<void> {
    this.#end.abort();
    await this.#engine.close();
    this.#plans.close();
  }

  async #push<T>(
    sets: {
      readonly title: string;
      readonly reads?: readonly string[];
      readonly mutates?: readonly string[];
    },
    act: () => Promise<T>,
  ): Promise<T> {
    if (this.isClosed) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `the store of worker ${this.#worker} is closed; create new ones`,
        { worker: this.#worker },
      );
    }
    const { title: name, reads, mutates } = sets;
    // A call that fails leaves its key as it was, so those behind it run; the engine would keep them from it.
    const ended = await this.#engine.push({ name, reads, mutates, run: () => settle(act) });
    if ('error' in ended) throw this.isClosed ? this.#cancelled(name, ended.error) : ended.error;
    return ended.value;
  }

  /** Whatever stopped first when the store was closed, the close was the reason. */
  #cancelled(call: string, cause: unknown): PeerError {
    const message = `worker ${this.#worker} closed its store during ${call}; await calls before closing`;
    return new PeerError('CANCELLED', message, { worker: this.#worker, call }, cause);
  }

  async #onChannel<T>(tag: number, name: string, act: (channel: Channel) => Promise<T>): Promise<T> {
    const { group, firstTag = 2 ** 30, deadlineMs } = this.#options;
    const options = { tag: firstTag + tag, name, deadlineMs, signal: this.#end.signal };
    const channel = new Channel(group, options, this.#plans);
    try {
      return await act(channel);
    } finally {
      channel.end();
    }
  }
}

function variableOf(key: string): string {
  return `key ${key}`;
}

/** Differs if keys or lengths do, so that ranks which init something else are told so. */
function titleOf(list: readonly KeyInit[]): string {
  const keys = list.map(({ key, value, rowLength }) => [key, value.length, rowLength]);
  const digest = createHash('sha256').update(JSON.stringify(keys)).digest('hex').slice(0, 8);
  const more = list.length > 1 ? ` and ${list.length - 1} more` : '';
  return `init of '${list[0]?.key ?? ''}'${more} (${digest})`;
}

type Ended<T> = { readonly value: T } | { readonly error: unknown };

function settle<T>(act: () => Promise<T>): Promise<Ended<T>> {
  return new Promise<T>((resolve) => resolve(act())).then(
    (value) => ({ value }),
    (error: unknown) => ({ error }),
  );
}
