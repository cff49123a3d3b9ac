/** Stores in racks: the contract, and what leaders and servers of racks add up, against a store within the process. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { createLocalStores, createRackStore, RemoteStore } from '../../src/kvstore/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { each, spied, withMates } from './client-setup.ts';
import { filled, inGroupsOf, valueOf } from './collective-ranks.ts';
import { storeConformance } from './conformance.ts';
import type { StoreSettings } from './conformance.ts';
import { openRacks } from './rack-setup.ts';
import type { Racks, RacksOptions } from './rack-setup.ts';
import { Servers } from './servers.ts';

describe.skipIf(!hasSharedMemory())('stores in racks', () => {
  let ground: Servers;
  const opened: Racks[] = [];
  beforeAll(async () => {
    ground = await Servers.start(4);
  });
  afterAll(() => ground.close());
  afterEach(async () => {
    for (const racks of opened.splice(0)) await racks.close();
  });
  const open = async (options: RacksOptions, settings: Partial<StoreSettings> = {}) => {
    const racks = await openRacks(ground, options, { chunkBytes: 64, ...settings });
    opened.push(racks);
    return racks;
  };

  /** Racks are synchronous, and leaders stay. */
  const ELSEWHERE = [
    'holds 50 times what was pushed 50 times, and 100 times after 50 push-pulls more',
    'keeps everybody within the bound of staleness, and reports it',
    'without an optimizer takes the last push for the value where nobody waits',
    'changes the learning rate of the pushes that follow where nobody waits',
    'moves centre and weights towards each other, and answers with the weights',
    'lets centre and weights change places where alpha is 1',
  ];
  describe.each([
    { size: 2, between: 'ring', sharedMemory: true },
    { size: 3, between: 'shards', sharedMemory: false },
  ] as const)('of $size, by $between, shared memory: $sharedMemory', ({ size, ...options }) => {
    beforeEach(({ task, skip }) => {
      if (ELSEWHERE.includes(task.name)) skip('racks are synchronous');
    });
    storeConformance('the contract', async ({ workers, ...settings }) => {
      const { stores, rackOf } = await open({ ...options, sizes: inGroupsOf(size, workers) }, settings);
      return stores.map((store, worker) =>
        withMates(
          store,
          stores.filter((_, other) => rackOf[other] === rackOf[worker]),
        ),
      );
    });
  });

  const layouts = [
    { sizes: [2, 2], between: 'ring', combine: 'sum' },
    { sizes: [2, 2], between: 'ring', combine: 'mean' },
    { sizes: [2, 2], between: 'shards', combine: 'sum' },
    { sizes: [2, 2], between: 'shards', combine: 'mean' },
    { sizes: [2, 1], between: 'ring', combine: 'mean' },
    { sizes: [2, 1], between: 'shards', combine: 'sum' },
    { sizes: [1, 3], between: 'shards', combine: 'mean' },
  ] as const;
  it.each(layouts)(
    'of $sizes workers by $between hold what one store holds of the same pushes ($combine)',
    async ({ sizes, between, combine }) => {
      const seed = 11;
      const random = new Random(seed);
      const numbers = (length: number) => Float32Array.from({ length }, () => random.uniform() - 0.5);
      const { stores } = await open({ sizes, between, seed, sharedMemory: sizes[0] === 2 }, { combine });
      const local = createLocalStores({ workers: stores.length, combine, updater: 'accumulate' });
      const [dense, table] = [numbers(300), numbers(40)];
      const keys = [
        { key: 'w', value: dense },
        { key: 't', value: table, rowLength: 4 },
      ];
      const both = [stores, local] as const;
      for (const all of both) {
        // Only the first worker's values count.
        await each(all, (store, worker) =>
          store.init(keys.map((one) => ({ ...one, value: one.value.map((value) => value + worker) }))),
        );
        await each(all, (store) => store.setOptimizer({ name: 'adam', lr: 0.01 }));
      }
      for (const values of await each(stores, (store) => valueOf(store, 'w', 300)))
        expect(values).toEqual([...dense]);
      for (let step = 0; step < 4; step++) {
        const pushes = stores.map((_, worker) => ({
          samples: 1 + ((worker * 7 + step) % 5),
          gradient: numbers(300),
          // Some rows of their own, some of all, some twice, and none now and then.
          indices: step === 1 && worker === 0 ? new Int32Array(0) : Int32Array.of(9, worker, 9),
          rows: numbers(12),
        }));
        const answers = both.map(() => pushes.map(() => filled(300, NaN)));
        const statuses = await Promise.all(
          both.map((all, i) =>
            each(all, async (store, worker) => {
              const { samples, gradient, indices, rows } = pushes[worker]!;
              const into = answers[i]![worker]!;
              const [[status], row] = await Promise.all([
                store.pushpull({ key: 'w', gradient, into }, { samples }),
                store.pushRows('t', indices, rows.subarray(0, 4 * indices.length), { samples }),
              ]);
              return [status, row];
            }),
          ),
        );
        expect(statuses[0]).toEqual(statuses[1]);
        answers[0]!.forEach((values) => expectClose(values, answers[1]![0]!));
      }
      const tables = await Promise.all(both.map((all) => each(all, (store) => valueOf(store, 't', 40))));
      for (const values of tables[0]!) expectClose(values, tables[1]![0]!);
      const wanted = Int32Array.of(9, 3, 9, 0);
      const rows = await Promise.all(
        both.map((all) =>
          each(all, async (store) => {
            const into = filled(16, NaN);
            await store.pullRows('t', wanted, into);
            return into;
          }),
        ),
      );
      for (const values of rows[0]!) expectClose(values, rows[1]![0]!);
    },
  );

  it('weigh a mean by the samples of all racks', async () => {
    const { stores } = await open({ sizes: [1, 2], between: 'ring' }, { combine: 'mean' });
    await each(stores, (store) => store.init({ key: 'w', value: filled(20, 0) }));
    const samples = [10, 10, 60];
    await each(stores, (store, worker) =>
      store.push({ key: 'w', gradient: filled(20, worker) }, { samples: samples[worker] }),
    );
    for (const values of await each(stores, (store) => valueOf(store, 'w', 20)))
      expectClose(values, filled(20, 130 / 80));
  });

  it.each([1, 2])('exchange many keys at once, in another order on every worker (seed %i)', async (seed) => {
    const keys = Array.from({ length: 16 }, (_, i) => ({ key: `w${i}`, length: 1 + 7 * i }));
    const between = seed === 1 ? 'ring' : 'shards';
    const { stores } = await open(
      { sizes: [2, 2], between, seed, sharedMemory: seed === 1 },
      { updater: 'accumulate' },
    );
    const random = new Random(seed);
    await each(stores, (store) =>
      store.init(keys.map(({ key, length }) => ({ key, value: filled(length, 0) }))),
    );
    const results = await each(stores, async (store) => {
      const into = new Map(keys.map(({ key, length }) => [key, filled(length, NaN)]));
      const order = [1, 2, 3].flatMap(() =>
        keys.map((one) => ({ one, at: random.uniform() })).sort((a, b) => a.at - b.at),
      );
      await Promise.all(
        order.map(({ one: { key, length } }) =>
          store.pushpull({ key, gradient: filled(length, 1), into: into.get(key)! }),
        ),
      );
      return into;
    });
    for (const into of results)
      for (const { key, length } of keys) expect([...into.get(key)!]).toEqual([...filled(length, 12)]);
  });

  it('keep the order of calls that nobody awaited', async () => {
    const { stores } = await open({ sizes: [2, 1], between: 'ring' });
    const into = stores.map(() => [filled(2, NaN), filled(2, NaN)] as const);
    await each(stores, (store, worker) =>
      Promise.all([
        store.init({ key: 't', value: filled(2, 0), rowLength: 1 }),
        store.pushRows('t', Int32Array.of(worker % 2), filled(1, 1)),
        store.pull({ key: 't', into: into[worker]![0] }),
        store.setOptimizer({ name: 'sgd', lr: 0.5 }),
        store.push({ key: 't', gradient: filled(2, 2) }),
        store.pull({ key: 't', into: into[worker]![1] }),
      ]),
    );
    for (const [first, second] of into) {
      expect([...first]).toEqual([2, 1]);
      expect([...second]).toEqual([-1, -2]);
    }
  });

  it('take one gradient for each rack to the other racks', async () => {
    const seen: unknown[] = [];
    const around = (between: KVStore, rack: number) =>
      spied(between, {
        ...{ rank: between.rank, workers: between.workers },
        pushpull(keys, options) {
          seen.push([rack, options?.samples]);
          return between.pushpull(keys, options);
        },
      });
    const { stores } = await open({ sizes: [2, 2], between: 'ring', around }, { combine: 'mean' });
    await each(stores, (store) => store.init({ key: 'w', value: filled(5, 0) }));
    await each(stores, (store, worker) =>
      store.push({ key: 'w', gradient: filled(5, 1) }, { samples: worker + 1 }),
    );
    expect(seen.sort()).toEqual([
      [0, 3],
      [1, 7],
    ]);
  });

  it('name more rows than fit in one message', async () => {
    const rows = 2 ** 16 + 5;
    const { stores } = await open(
      { sizes: [2, 1], between: 'shards' },
      { combine: 'mean', chunkBytes: 32_768 },
    );
    await each(stores, (store) => store.init({ key: 't', value: filled(rows, 0), rowLength: 1 }));
    const indices = Int32Array.from({ length: rows }, (_, i) => i);
    await each(stores, (store, worker) =>
      worker === 1
        ? store.pushRows('t', indices, Float32Array.from(indices), { samples: 2 })
        : store.pushRows('t', Int32Array.of(7), filled(1, 4)),
    );
    for (const values of await each(stores, (store) => valueOf(store, 't', rows))) {
      expect(values[rows - 1]).toBeCloseTo((rows - 1) / 2, 1);
      expect(values[7]).toBeCloseTo((7 * 2 + 4 + 4) / 4, 5);
    }
  });

  it.each(['ring', 'shards'] as const)(
    'leave out what is not finite, of one worker, a rack or all (%s)',
    async (between) => {
      const { stores } = await open(
        { sizes: [2, 1], between },
        { nonFinite: 'skip', combine: 'mean', updater: 'accumulate' },
      );
      await each(stores, (store) =>
        store.init([
          { key: 'w', value: filled(3, 0) },
          { key: 't', value: filled(4, 0), rowLength: 2 },
        ]),
      );
      const push = async (values: readonly number[]) => {
        const versions = await each(stores, async (store, worker) => {
          const [w, t] = await Promise.all([
            store.push({ key: 'w', gradient: filled(3, values[worker]!) }),
            store.pushRows('t', Int32Array.of(1), filled(2, values[worker]!)),
          ]);
          return [w[0]!.version, t.version];
        });
        expect(new Set(versions.flat()).size).toBe(1);
        const w = await each(stores, (store) => valueOf(store, 'w', 3));
        const t = await each(stores, (store) => valueOf(store, 't', 4));
        return [...w.map((one) => one[0]), ...t.map((one) => one[3])];
      };
      expect(await push([NaN, 1, 3])).toEqual(filledList(6, 2));
      expect(await push([NaN, NaN, 3])).toEqual(filledList(6, 5));
      expect(await push([NaN, NaN, NaN])).toEqual(filledList(6, 5));
      expect(await push([1, 2, 3])).toEqual(filledList(6, 7));
    },
  );

  it('fail on all workers of a rack with the error of its leader, and go on', async () => {
    let isBroken = false;
    const around = (between: KVStore) =>
      spied(between, {
        ...{ rank: between.rank, workers: between.workers },
        pushpull(keys, options) {
          if (isBroken) return Promise.reject(new RangeError('the core of the network is on fire'));
          return between.pushpull(keys, options);
        },
      });
    const { stores } = await open({ sizes: [3], between: 'ring', around }, { updater: 'accumulate' });
    await each(stores, (store) => store.init({ key: 'w', value: filled(4, 1) }));
    const push = () =>
      Promise.allSettled(stores.map((one) => one.push({ key: 'w', gradient: filled(4, 1) })));
    isBroken = true;
    for (const result of await push()) {
      expect(result).toMatchObject({ status: 'rejected' });
      expect(String((result as PromiseRejectedResult).reason)).toContain(
        'the core of the network is on fire',
      );
    }
    isBroken = false;
    await push();
    expect(await each(stores, (store) => valueOf(store, 'w', 4))).toEqual(stores.map(() => [4, 4, 4, 4]));
  });

  it('tell a rack by name that its leader has left', async () => {
    const { stores } = await open({ sizes: [2], between: 'ring' });
    await each(stores, (store) => store.init({ key: 'w', value: filled(4, 1) }));
    const left = expect(stores[1]!.push({ key: 'w', gradient: filled(4, 1) })).rejects.toThrow(
      /leader of worker 1's rack left during call 1 of key 'w'/,
    );
    await stores[0]!.close();
    await left;
  });

  it('do not wait for ever', async () => {
    const { stores } = await open({ sizes: [2], between: 'ring', deadlineMs: 50 });
    await expect(stores[1]!.barrier()).rejects.toThrow(
      /worker 1 waited 0.05 s for the other workers of its rack in call 1 of all keys/,
    );
  });

  describe('refuse', () => {
    const rackOf = (worker: number, sharedMemory = true) =>
      RemoteStore.connect({
        ...{ servers: [ground.addresses[0]!], access: ground.createService(), sharedMemory },
        ...{ worker, workers: worker + 1, updater: 'accumulate' },
      });
    const alone = () => createLocalStores()[0]!;
    it.each([
      ['a worker outside', 0, true, { worker: 2, workers: 2 }, /worker 2 of 2 in racks/],
      ['a leader without a store', 0, false, { worker: 0, workers: 1 }, /given no store between racks/],
      ['a store for another', 1, true, { worker: 1, workers: 2 }, /given a store between racks/],
      ['a first worker that does not lead', 1, false, { worker: 0, workers: 2 }, /first values are its own/],
      [
        'asynchronous pushes',
        0,
        true,
        { worker: 0, workers: 1, consistency: { kind: 'asynchronous' } },
        /consistency is asynchronous.*use synchronous/,
      ],
    ] as const)('%s', async (_what, rackWorker, leads, options, message) => {
      const rack = await rackOf(rackWorker);
      const between = leads ? alone() : undefined;
      await expect(createRackStore({ rack, between, ...options })).rejects.toThrow(message);
    });

    it('a store of the rack whose pushes replace values', async () => {
      const rack = await RemoteStore.connect({
        ...{ servers: [ground.addresses[0]!], access: ground.createService(), worker: 0, workers: 1 },
      });
      await expect(createRackStore({ rack, between: alone(), worker: 0, workers: 1 })).rejects.toThrow(
        /connect it with updater: 'accumulate'/,
      );
    });

    it('a leader that does not share memory with its server', async () => {
      const rack = await rackOf(0, false);
      await expect(createRackStore({ rack, between: alone(), worker: 0, workers: 1 })).rejects.toThrow(
        /does not share memory with the one server of the rack/,
      );
    });
  });
});

function filledList(length: number, value: number): number[] {
  return new Array<number>(length).fill(value);
}

function expectClose(actual: ArrayLike<number>, wanted: ArrayLike<number>): void {
  expect(actual.length).toBe(wanted.length);
  for (let i = 0; i < wanted.length; i++) expect(actual[i]).toBeCloseTo(wanted[i]!, 4);
}
