/** Clients of workers for tests, over a store within the process or over one that a test watches. */
import { afterEach } from 'vitest';
import { createClientStore } from '../../src/kvstore/client-store.ts';
import type { ClientStoreOptions } from '../../src/kvstore/client-store.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';
import { openRanks } from './collective-ranks.ts';
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
    setOptimizer: (spec) => inner.setOptimizer(spec),
    barrier: () => inner.barrier(),
    close: () => inner.close(),
    ...calls,
  };
}
