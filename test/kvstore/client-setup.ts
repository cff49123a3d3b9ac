/** Clients of workers for tests, over a store within the process or over one that a test watches. */
import { afterEach } from 'vitest';
import { createClientStore } from '../../src/kvstore/client-store.ts';
import type { ClientStoreOptions } from '../../src/kvstore/client-store.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KeyPull, KVStore, OneOrMany } from '../../src/kvstore/index.ts';
import { filled, openRanks } from './collective-ranks.ts';
import type { Ranks, RanksOptions } from './collective-ranks.ts';
import type { StoreSettings } from './conformance.ts';

export interface Clients {
  readonly ranks: Ranks;
  readonly stores: readonly KVStore[];
}

/** Closed after each test. */
export const opened: Clients[] = [];
afterEach(async () => {
  for (const { ranks, stores } of opened.splice(0)) {
    await Promise.all(stores.map((store) => store.close()));
    ranks.close();
  }
});

type Settings = Partial<StoreSettings> & Pick<Partial<ClientStoreOptions>, 'elastic'>;

/** `behind` gives the store of each client. Default: stores within the process. */
export function openClients(
  ranks: RanksOptions,
  settings: Settings = {},
  behind?: (client: number) => KVStore,
): Clients {
  const { sizes } = ranks;
  const { combine, nonFinite, elastic } = settings;
  const inner = createLocalStores({ ...settings, workers: sizes.length });
  const open = openRanks(ranks);
  const workers = open.groups.length;
  const stores = open.groups.map((group, worker) => {
    const store = group.rank > 0 ? undefined : (behind?.(group.id - 1) ?? inner[group.id - 1]!);
    return createClientStore({ group, store, worker, workers, combine, nonFinite, elastic });
  });
  const clients = { ranks: open, stores };
  opened.push(clients);
  return clients;
}

export const each = <T>(stores: readonly KVStore[], act: (store: KVStore, worker: number) => Promise<T>) =>
  Promise.all(stores.map(act));

/** A store of which a test sees or changes some calls. */
export function spied(inner: KVStore, calls: Partial<KVStore>): KVStore {
  return {
    rank: 0,
    workers: 1,
    init: (keys) => inner.init(keys),
    push: (keys, options) => inner.push(keys, options),
    pull: (keys) => inner.pull(keys),
    pushpull: (keys, options) => inner.pushpull(keys, options),
    pushRows: (key, indices, rows, options) => inner.pushRows(key, indices, rows, options),
    pullRows: (key, indices, into) => inner.pullRows(key, indices, into),
    pushpullRows: (...call) => inner.pushpullRows(...call),
    setOptimizer: (spec) => inner.setOptimizer(spec),
    setLearningRate: (lr) => inner.setLearningRate(lr),
    barrier: () => inner.barrier(),
    close: () => inner.close(),
    ...calls,
  };
}

/** Where a pull is one of the whole client or rack: whoever pulls alone in the suite takes its mates along. */
export function withMates(store: KVStore, mates: readonly KVStore[]): KVStore {
  const others = mates.filter((mate) => mate !== store);
  const together = <T>(own: Promise<T>, rest: Promise<unknown>[]) =>
    Promise.all([own, Promise.allSettled(rest)]).then(([answer]) => answer);
  return {
    rank: store.rank,
    workers: store.workers,
    init: (keys) => store.init(keys),
    push: (keys, options) => store.push(keys, options),
    pull(keys: OneOrMany<KeyPull>) {
      const list = (Array.isArray(keys) ? keys : [keys]) as KeyPull[];
      const aside = () => list.map(({ key, into }) => ({ key, into: filled([into].flat()[0]!.length, 0) }));
      return together(
        store.pull(keys),
        others.map((mate) => mate.pull(aside())),
      );
    },
    pushpull: (keys, options) => store.pushpull(keys, options),
    pushRows: (key, indices, rows, options) => store.pushRows(key, indices, rows, options),
    pushpullRows: (...call) => store.pushpullRows(...call),
    pullRows: (key, indices, into) =>
      together(
        store.pullRows(key, indices, into),
        others.map((mate) => mate.pullRows(key, Int32Array.of(0), filled(into.length, 0))),
      ),
    setOptimizer: (spec) => store.setOptimizer(spec),
    setLearningRate: (lr) => store.setLearningRate(lr),
    barrier: () => store.barrier(),
    close: () => store.close(),
  };
}
