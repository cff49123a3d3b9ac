/** Stores of clusters whose workers say which rack they are in: when racks are used, and that all workers agree. */
import { afterEach, describe, expect, it } from 'vitest';
import { Scheduler } from '../../src/cluster/index.ts';
import type { Cluster } from '../../src/cluster/index.ts';
import { createStore } from '../../src/kvstore/index.ts';
import type { CreateStoreOptions, KVStore, StoreType } from '../../src/kvstore/index.ts';
import { joinCluster } from '../../src/launcher/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { ReductionChoice } from '../../src/plan/index.ts';
import { each } from './client-setup.ts';
import { filled, valueOf } from './collective-ranks.ts';
import { SECRET } from '../support/secrets.ts';

/** A core that makes racks pay, and one that does not. */
const NARROW = { boxBytesPerSecond: 40e9, workerBytesPerSecond: 10e9, coreBytesPerSecond: 1e9 };
const WIDE = { ...NARROW, coreBytesPerSecond: 40e9 };

describe.skipIf(!hasSharedMemory())('clusters in racks', () => {
  let scheduler: Scheduler | undefined;
  let clusters: Cluster[] = [];
  let stores: KVStore[] = [];
  let plans: ReductionChoice[] = [];

  afterEach(async () => {
    await Promise.all(stores.map((store) => store.close()));
    await Promise.all(clusters.map((cluster) => cluster.close()));
    await scheduler?.close();
    [stores, clusters, plans, scheduler] = [[], [], [], undefined];
  });

  const start = async (
    workers: number,
    options: Partial<CreateStoreOptions>,
    type: StoreType = 'dist-sgd',
  ) => {
    scheduler = await Scheduler.start({ size: workers, secret: SECRET });
    const { address } = scheduler;
    clusters = await Promise.all(
      Array.from({ length: workers }, (_, wantedRank) =>
        joinCluster({ scheduler: address, secret: SECRET, transport: 'tcp', wantedRank, measure: false }),
      ),
    );
    const onPlan = (choice: ReductionChoice) => void plans.push(choice);
    stores = await Promise.all(
      clusters.map((cluster) =>
        createStore(type, {
          ...{ cluster, secret: SECRET, onPlan, updater: 'accumulate' },
          ...options,
        }),
      ),
    );
  };
  /** Each worker pushes its number and one, with as many samples. */
  const meanOfPushes = async () => {
    await each(stores, (store) => store.init({ key: 'w', value: filled(100, 0) }));
    await each(stores, (store, worker) =>
      store.push({ key: 'w', gradient: filled(100, worker + 1) }, { samples: worker + 1 }),
    );
    return each(stores, async (store) => (await valueOf(store, 'w', 100))[99]!);
  };

  it.each([
    // Racks may lie anywhere among the ranks and be of any size.
    { racks: [7, 3, 3, 7, 3], bandwidths: NARROW, betweenRacks: 'ring', choice: 'hierarchical' },
    { racks: [0, 0, 1, 1], bandwidths: NARROW, betweenRacks: 'shards', choice: 'hierarchical' },
    { racks: [0, 0, 1, 1], bandwidths: WIDE, betweenRacks: 'ring', choice: 'flat' },
    { racks: 'hosts', bandwidths: NARROW, betweenRacks: 'ring', choice: 'flat' },
  ] as const)('of $racks by $betweenRacks are $choice, and say why', async ({ choice, ...options }) => {
    const workers = options.racks === 'hosts' ? 3 : options.racks.length;
    await start(workers, { ...options, combine: 'mean' });
    expect(plans.map((plan) => plan.choice)).toEqual(Array(workers).fill(choice));
    expect(new Set(plans.map(({ reason }) => reason)).size).toBe(1);
    expect(plans[0]!.reason).toMatch(/gigabyte of the model takes .* between racks by/);
    const numbers = Array.from({ length: workers }, (_, worker) => worker + 1);
    const mean =
      numbers.reduce((sum, one) => sum + one * one, 0) / numbers.reduce((sum, one) => sum + one, 0);
    for (const value of await meanOfPushes()) expect(value).toBeCloseTo(mean, 5);
  });

  it('measure the network if nobody has, and agree on the plan', async () => {
    await start(3, { racks: [0, 0, 1] });
    expect(plans).toHaveLength(3);
    expect(new Set(plans.map((plan) => JSON.stringify(plan))).size).toBe(1);
    expect(plans[0]!.flatCost).toBeGreaterThan(0);
    expect(plans[0]!.hierarchicalCost).toBeGreaterThan(0);
    expect(await meanOfPushes()).toEqual([6, 6, 6]);
  });

  it.each([
    ['too few racks', { racks: [] }, 'dist-sgd' as const, /racks are \[\] for 1 workers/],
    ['half a rack', { racks: [0.5] }, 'dist-sgd' as const, /racks are \[0.5\]/],
    ['another type', { racks: [0] }, 'dist-asgd' as const, /racks are for 'dist-sgd'.*this is 'dist-asgd'/],
    ['servers', { racks: [0], servers: 1 }, 'dist-sgd' as const, /with the option servers/],
  ])('refuse %s', async (_what, options, type, message) => {
    await expect(start(1, options, type)).rejects.toThrow(message);
  });
});
