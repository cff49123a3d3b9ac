/** Racks of workers for tests: one real server for each rack, and leaders who meet by ring or by shards on the same servers. */
import { createCollectiveStore, createRackStore, RemoteStore } from '../../src/kvstore/index.ts';
import type { KVStore, RackStoreOptions } from '../../src/kvstore/index.ts';
import { openRanks } from './collective-ranks.ts';
import type { Ranks } from './collective-ranks.ts';
import type { StoreSettings } from './conformance.ts';
import type { Servers } from './servers.ts';

export interface RacksOptions {
  /** Workers of each rack. */
  readonly sizes: readonly number[];
  readonly between: 'ring' | 'shards';
  /** Whether workers other than the leader use the server's memory in place. Default true. */
  readonly sharedMemory?: boolean;
  /** Decides in which order messages between leaders arrive. Default: as they were sent. */
  readonly seed?: number;
  readonly deadlineMs?: number;
  /** Puts something of a test between the leader of a rack and the others. */
  readonly around?: (between: KVStore, rack: number) => KVStore;
}

export interface Racks {
  readonly stores: readonly KVStore[];
  /** Of each worker. */
  readonly rackOf: readonly number[];
  close(): Promise<void>;
}

export async function openRacks(
  ground: Servers,
  options: RacksOptions,
  settings: Partial<StoreSettings> = {},
): Promise<Racks> {
  const { sizes, around = (between: KVStore) => between } = options;
  const { combine, consistency, chunkBytes, nonFinite, updater } = settings;
  const inner = nonFinite === 'skip' ? 'skip' : 'accept';
  const common = { combine, chunkBytes, nonFinite: inner } as const;
  const ranks: Ranks | undefined =
    options.between === 'ring' ? openRanks({ sizes: [sizes.length], seed: options.seed! }) : undefined;
  const leaders = ranks
    ? ranks.groups.map((group) => createCollectiveStore({ ...common, updater, group }))
    : await ground.connect(sizes.length, { ...common, updater, access: ground.createService() });
  const rackOf = sizes.flatMap((size, rack) => Array.from({ length: size }, () => rack));
  const accesses = sizes.map(() => ground.createService());
  const stores = await Promise.all(
    rackOf.map(async (number, worker) => {
      const rackWorker = worker - rackOf.indexOf(number);
      const rack = await RemoteStore.connect({
        ...{ ...common, servers: [ground.addresses[number]!], access: accesses[number]! },
        ...{ worker: rackWorker, workers: sizes[number]!, consistency, updater: 'accumulate' },
        sharedMemory: rackWorker === 0 || options.sharedMemory !== false,
      });
      const between = rackWorker === 0 ? around(leaders[number]!, number) : undefined;
      const of: RackStoreOptions = { rack, between, worker, workers: rackOf.length };
      return createRackStore({ ...of, consistency, nonFinite, deadlineMs: options.deadlineMs });
    }),
  );
  const close = async () => {
    await Promise.all(stores.map((store) => store.close()));
    ranks?.close();
  };
  return { stores, rackOf, close };
}
