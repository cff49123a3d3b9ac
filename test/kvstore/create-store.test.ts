/** Stores by type: the arithmetic that others fixed, for every mode, with several servers and clients. */
import { afterEach, describe, expect, it } from 'vitest';
import { Scheduler } from '../../src/cluster/index.ts';
import type { Cluster } from '../../src/cluster/index.ts';
import { createStore, STORE_TYPES } from '../../src/kvstore/index.ts';
import type { CreateStoreOptions, KVStore, StoreType } from '../../src/kvstore/index.ts';
import { joinCluster } from '../../src/launcher/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { Servers } from './servers.ts';
import { SECRET } from '../support/secrets.ts';

const LENGTH = 100;
const filled = (value: number) => new Float32Array(LENGTH).fill(value);

describe.skipIf(!hasSharedMemory())('stores by type', () => {
  let scheduler: Scheduler | undefined;
  let clusters: Cluster[] = [];
  let stores: KVStore[] = [];
  let separate: Servers | undefined;

  afterEach(async () => {
    await Promise.all(stores.map((store) => store.close()));
    await Promise.all(clusters.map((cluster) => cluster.close()));
    await scheduler?.close();
    await separate?.close();
    [stores, clusters, scheduler, separate] = [[], [], undefined, undefined];
  });

  const start = async (type: StoreType, workers: number, options: Partial<CreateStoreOptions> = {}) => {
    scheduler = await Scheduler.start({ size: workers, secret: SECRET });
    const { address } = scheduler;
    clusters = await Promise.all(
      Array.from({ length: workers }, (_, wantedRank) =>
        joinCluster({ scheduler: address, secret: SECRET, transport: 'tcp', wantedRank, measure: false }),
      ),
    );
    stores = await Promise.all(
      clusters.map((cluster) =>
        createStore(type, {
          ...{ cluster, secret: SECRET, chunkBytes: 64, updater: 'accumulate' },
          ...options,
        }),
      ),
    );
    return stores;
  };
  const each = <T>(act: (store: KVStore, rank: number) => Promise<T>) => Promise.all(stores.map(act));
  const values = () =>
    each(async (store) => {
      const into = filled(NaN);
      await store.pull({ key: 'w', into });
      expect(new Set(into).size).toBe(1);
      return into[0]!;
    });

  const layouts = [
    { workers: 2, servers: 1, clients: 1 },
    { workers: 2, servers: 2, clients: 2 },
    { workers: 3, servers: 2, clients: 2 },
    { workers: 4, servers: 4, clients: 3 },
    { workers: 8, servers: 3, clients: 4 },
  ];

  describe.each(['dist-sgd', 'mpi-sgd', 'collective'] as const)('%s', (type) => {
    it.each(layouts)(
      'adds the pushes of $workers workers once a step, on $servers servers by $clients clients',
      async ({ workers, servers, clients }) => {
        for (const sharedMemory of [true, false]) {
          await start(type, workers, { servers, clients, sharedMemory });
          await each((store) => store.init({ key: 'w', value: filled(1) }));
          for (let i = 1; i <= 3; i++) {
            await each((store, rank) => store.push({ key: 'w', gradient: filled(rank + 1) }));
            const wanted = ((workers + 1) * workers * i) / 2 + 1;
            expect(await values()).toEqual(stores.map(() => wanted));
          }
          await Promise.all(stores.map((store) => store.close()));
          await Promise.all(clusters.map((cluster) => cluster.close()));
          await scheduler!.close();
          [stores, clusters, scheduler] = [[], [], undefined];
        }
      },
    );
  });

  describe('workers of clients', () => {
    it.each([
      ['face servers in their own memory by themselves', 'mpi-sgd', {}, true],
      ['reduce first if that is wanted', 'mpi-sgd', { fuseClients: false }, false],
      ['reduce first where memory is not shared', 'mpi-sgd', { sharedMemory: false }, false],
      ['reduce first where pushes take effect at once', 'mpi-asgd', {}, false],
      ['are one where weights are pushed', 'mpi-esgd', {}, false],
    ] as const)('%s', async (_, type, options, isFused) => {
      await start(type, 2, options);
      expect(stores.map((store) => store.isFused)).toEqual([isFused, isFused]);
    });

    it('get the same sums, averages and answers whether they face the servers or reduce first', async () => {
      const results = [];
      for (const fuseClients of [true, false]) {
        for (const clients of [1, 2]) {
          await start('mpi-sgd', 4, { servers: 2, clients, fuseClients, combine: 'mean', nonFinite: 'skip' });
          const keys = ['w', 'v', 'u'];
          await each((store) => store.init(keys.map((key) => ({ key, value: filled(0) }))));
          await each((store) => store.setOptimizer({ name: 'sgd', lr: 0.5, momentum: 0.5 }));
          const into = stores.map(() => keys.map(() => filled(NaN)));
          // Of the last key nobody's can be used.
          const gradientOf = (rank: number, i: number) =>
            filled(i === 2 || (i === 1 && rank === 3) ? NaN : (rank + 1) * (i + 1));
          for (let step = 0; step < 3; step++)
            await each((store, rank) =>
              store.pushpull(
                keys.map((key, i) => ({ key, gradient: gradientOf(rank, i), into: into[rank]![i]! })),
                { samples: 2 ** rank },
              ),
            );
          results.push(into.map((tensors) => tensors.map((tensor) => tensor[LENGTH - 1]!.toFixed(5))));
          await Promise.all(stores.map((store) => store.close()));
          await Promise.all(clusters.map((cluster) => cluster.close()));
          await scheduler!.close();
          [stores, clusters, scheduler] = [[], [], undefined];
        }
      }
      const [first] = results;
      expect(first!.flat()).not.toContain('NaN');
      expect(first![0]![2]).toBe('0.00000');
      for (const one of results) expect(one).toEqual(first);
    });
  });

  it.each(['dist-asgd', 'mpi-asgd'] as const)(
    '%s: 50 pushes and 50 push-pulls count 100 times',
    async (type) => {
      await start(type, 4, { servers: 2, clients: 2 });
      await each((store) => store.init({ key: 'w', value: filled(0) }));
      const into = stores.map(() => filled(0));
      for (let i = 0; i < 50; i++) await each((store) => store.push({ key: 'w', gradient: filled(1) }));
      for (let i = 0; i < 50; i++) {
        await each((store, rank) => store.pushpull({ key: 'w', gradient: filled(1), into: into[rank]! }));
      }
      await each((store) => store.barrier());
      expect(await values()).toEqual([400, 400, 400, 400]);
    },
  );

  it.each(['dist-esgd', 'mpi-esgd'] as const)(
    '%s: centre and workers move towards each other',
    async (type) => {
      await start(type, 2, { servers: 1, clients: 1, alpha: 0.25 });
      await each((store) => store.init({ key: 'w', value: filled(0) }));
      const into = stores.map(() => filled(0));
      // One after the other, so that the order is known; workers of one client come together.
      const exchange = (rank: number) =>
        stores[rank]!.pushpull({ key: 'w', gradient: filled(8), into: into[rank]! });
      if (type === 'mpi-esgd') {
        await Promise.all([exchange(0), exchange(1)]);
        expect(into.map((values) => values[0])).toEqual([6, 6]);
        expect(await values()).toEqual([2, 2]);
      } else {
        await exchange(0);
        await exchange(1);
        // 8 - (8 - 0) / 4, centre 2; 8 - (8 - 2) / 4, centre 3.5.
        expect(into.map((values) => values[0])).toEqual([6, 6.5]);
        expect(await values()).toEqual([3.5, 3.5]);
      }
    },
  );

  it('uses servers of their own', async () => {
    separate = await Servers.start(2, { cores: 2 });
    const access = separate.createService();
    await start('dist-sgd', 2, { servers: separate.addresses, access });
    await each((store) => store.init({ key: 'w', value: filled(1) }));
    await each((store) => store.push({ key: 'w', gradient: filled(1) }));
    expect(await values()).toEqual([3, 3]);
  });

  it.each([
    ['another type', 'sgd' as StoreType, {}, /no store of type 'sgd'.*dist-sgd/],
    ['too many servers', 'dist-sgd' as const, { servers: 3 }, /3 servers in the processes of 1 workers/],
    ['addresses without access', 'dist-sgd' as const, { servers: ['127.0.0.1:1'] }, /addresses and access/],
    ['too many clients', 'mpi-sgd' as const, { clients: 2 }, /2 clients of 1 workers/],
  ])('refuses %s', async (_what, type, options, message) => {
    await expect(start(type, 1, options)).rejects.toThrow(message);
  });

  it('knows the seven types', () => {
    expect(STORE_TYPES).toHaveLength(7);
  });
});
