/**
 * The calls of one worker on a store, as operations of a dependency engine (MXNET-MPI, section 4.2). A call on keys mutates
 * the variable of each, so calls with a key in common run one after the other, in the order in which they were made, and
 * others overlap. Knows nothing of what the calls do or of how workers meet. Invariant: there is no limit to the
 * calls under way, since with one a worker could give its last place to one key and another worker to another.
 */
import { setMaxListeners } from 'node:events';
import { checkStoreKey, keyName, keyText, PeerError, UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import { DependencyEngine } from '../engine/index.ts';
import type { Keys, KnownKey } from './collective-keys.ts';
import type { KeyInit } from './kv-store.ts';

export interface OrderOptions {
  /**
   * Of keys that are handed over in one call, those with a higher number begin first. Default: in the order of their init,
   * which is that of the layers.
   */
  readonly priority?: ((key: StoreKey) => number) | undefined;
}

const OPTIMIZER = 'optimizer';
const TURN = 'turn of all keys';

export class OrderedCalls {
  readonly #options: OrderOptions;
  readonly #worker: number;
  readonly #keys: Keys;
  readonly #engine = new DependencyEngine();
  readonly #end = new AbortController();

  constructor(options: OrderOptions, worker: number, keys: Keys) {
    this.#options = options;
    this.#worker = worker;
    this.#keys = keys;
    // One for each wait under way.
    setMaxListeners(0, this.#end.signal);
  }

  get isClosed(): boolean {
    return this.#end.signal.aborted;
  }

  /** Aborted when the store is closed. */
  get signal(): AbortSignal {
    return this.#end.signal;
  }

  /** A call on one key that all workers make. */
  onKey<T>(name: StoreKey, what: string, act: (key: KnownKey) => Promise<T>): Promise<T> {
    const title = `${what} of ${keyText(name)}`;
    return this.#push({ title, reads: [OPTIMIZER], mutates: [variableOf(name)] }, () =>
      act(this.#keys.get(name)),
    );
  }

  /** A call on several different keys that all workers make, which are given in the order of their numbers. */
  onKeys<T>(
    names: readonly StoreKey[],
    what: string,
    act: (keys: readonly KnownKey[]) => Promise<T>,
  ): Promise<T> {
    const more = names.length > 1 ? ` and ${names.length - 1} more` : '';
    const title = `${what} of ${keyText(names[0]!)}${more}`;
    return this.#push({ title, reads: [OPTIMIZER], mutates: names.map(variableOf) }, () => {
      const keys = names.map((name) => this.#keys.get(name));
      return act(keys.sort((a, b) => a.number - b.number));
    });
  }

  /** A call on one key that needs no other worker. */
  alone<T>(name: StoreKey, what: string, act: (key: KnownKey) => Promise<T>): Promise<T> {
    const title = `${what} of ${keyText(name)}`;
    return this.#push({ title, reads: [variableOf(name)] }, () => act(this.#keys.get(name)));
  }

  /** One call on each of several keys; answers in the order of the list. */
  async each<K extends { readonly key: StoreKey }, T>(
    list: readonly K[],
    call: (one: K) => Promise<T>,
  ): Promise<readonly T[]> {
    this.check(list);
    const answers = new Array<Promise<T>>(list.length);
    for (const i of this.byPriority(list)) answers[i] = call(list[i]!);
    return Promise.all(answers);
  }

  /** Of all keys before the first call: a list is refused as a whole. */
  check(list: readonly { readonly key: StoreKey }[]): void {
    for (const { key } of list) checkStoreKey(this.#worker, key);
  }

  /** The places of the list, those of what begins first first. */
  byPriority(list: readonly { readonly key: StoreKey }[]): readonly number[] {
    const { priority = (key: StoreKey) => -(this.#keys.find(key)?.number ?? Number.MAX_SAFE_INTEGER) } =
      this.#options;
    const ranked = list.map(({ key }, i) => ({ i, priority: priority(key) }));
    return ranked.sort((a, b) => b.priority - a.priority || a.i - b.i).map(({ i }) => i);
  }

  /** Makes keys known when `act` has succeeded. */
  init(list: readonly KeyInit[], title: string, act: () => Promise<void>): Promise<void> {
    const mutates = [TURN, ...list.map(({ key }) => variableOf(key))];
    return this.#push({ title, mutates }, async () => {
      this.#keys.checkNew(list);
      await act();
      this.#keys.add(list);
    });
  }

  /** A call that changes how all keys are updated. */
  onOptimizer<T>(title: string, act: () => Promise<T>): Promise<T> {
    return this.#push({ title, mutates: [TURN, OPTIMIZER] }, act);
  }

  barrier(act: () => Promise<void>): Promise<void> {
    return this.#push({ title: 'barrier', mutates: [TURN] }, act);
  }

  /** Tells calls under way by the signal, and waits for their end. */
  async close(): Promise<void> {
    this.#end.abort();
    await this.#engine.close();
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
}

function variableOf(key: StoreKey): string {
  return `key ${keyName(key)}`;
}

type Ended<T> = { readonly value: T } | { readonly error: unknown };

function settle<T>(act: () => Promise<T>): Promise<Ended<T>> {
  return new Promise<T>((resolve) => resolve(act())).then(
    (value) => ({ value }),
    (error: unknown) => ({ error }),
  );
}
