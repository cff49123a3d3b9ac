/** Workers of clients over a store within the process. */
import { beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { createClientStore } from '../../src/kvstore/client-store.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';
import type { StoreKey } from '../../src/base/index.ts';
import { each, openClients, opened, spied, withMates } from './client-setup.ts';
import { filled, inGroupsOf, openRanks, valueOf } from './collective-ranks.ts';
import { storeConformance } from './conformance.ts';

/** What workers of one client cannot do: to the servers they are one. */
const ONLY_BETWEEN_CLIENTS = [
  'keeps everybody within the bound of staleness, and reports it',
  'goes on without a worker that closes, whose own push is cancelled',
];

describe.each([1, 2, 4])('clients of %i', (size) => {
  beforeEach(({ task, skip }) => {
    if (size > 1 && ONLY_BETWEEN_CLIENTS.includes(task.name)) skip('workers of one client do not part');
  });
  storeConformance('the client store', ({ workers, ...settings }) => {
    const { stores, ranks } = openClients({ sizes: inGroupsOf(size, workers), shared: size === 4 }, settings);
    const matesOf = (worker: number) =>
      stores.filter((_, other) => ranks.groups[other]!.id === ranks.groups[worker]!.id);
    return stores.map((store, worker) => withMates(store, matesOf(worker)));
  });
});

describe.each([1, 2, 3, 4])('%i clients', (clients) => {
  it.each([4, 5, 6, 7, 8])('with %i workers add (n + 1) n r / 2 a step', async (workers) => {
    const sizes = Array.from(
      { length: clients },
      (_, i) => Math.floor(workers / clients) + Number(i < workers % clients),
    );
    const { stores } = openClients({ sizes, seed: 7 });
    await each(stores, (store) => store.init({ key: 'w', value: filled(50, 1) }));
    await each(stores, (store) => store.setOptimizer({ name: 'sgd', lr: 0.5 }));
    for (let i = 1; i <= 3; i++) {
      const into = stores.map(() => filled(50, 0));
      // The optimizer goes against the gradient.
      await each(stores, (store, worker) =>
        store.pushpull({ key: 'w', gradient: filled(50, -(worker + 1)), into: into[worker]! }),
      );
      const wanted = ((workers + 1) * workers * 0.5 * i) / 2 + 1;
      for (const values of into) expect([...values]).toEqual([...filled(50, wanted)]);
    }
  });
});

it('averages by samples over all workers, however they are grouped', async () => {
  const samples = [30, 10, 5, 5, 50];
  const wanted = samples.reduce((sum, count, worker) => sum + count * (worker + 1), 0) / 100;
  for (const sizes of [[5], [2, 3], [1, 1, 3], [1, 1, 1, 1, 1]]) {
    const { stores } = openClients({ sizes, shared: true }, { combine: 'mean' });
    await each(stores, (store) =>
      store.init([
        { key: 'w', value: filled(20, 0) },
        { key: 't', value: filled(20, 0), rowLength: 2 },
      ]),
    );
    await each(stores, (store, worker) =>
      Promise.all([
        store.push({ key: 'w', gradient: filled(20, worker + 1) }, { samples: samples[worker] }),
        // Half of it twice: repeated indices are added.
        store.pushRows('t', Int32Array.of(3, 3), filled(4, (worker + 1) / 2), { samples: samples[worker] }),
      ]),
    );
    for (const values of await each(stores, (store) => valueOf(store, 'w', 20)))
      for (const value of values) expect(value).toBeCloseTo(wanted, 5);
    for (const values of await each(stores, (store) => valueOf(store, 't', 20))) {
      expect(values[6]).toBeCloseTo(wanted, 5);
      expect(values.filter((value) => value !== 0)).toHaveLength(2);
    }
  }
});

it('pushes once for a client, with the samples of all its workers', async () => {
  const seen: unknown[] = [];
  const [inner] = createLocalStores({ combine: 'mean' });
  const push: KVStore['push'] = (keys, options) => {
    seen.push(options?.samples);
    return inner!.push(keys, options);
  };
  const { stores } = openClients({ sizes: [3] }, { combine: 'mean' }, () => spied(inner!, { push }));
  await each(stores, (store) => store.init({ key: 'w', value: filled(2, 0) }));
  await each(stores, (store, worker) =>
    store.push({ key: 'w', gradient: filled(2, 1) }, { samples: worker + 1 }),
  );
  expect(seen).toEqual([6]);
});

describe('rows', () => {
  it('travel to the servers once, and back to those who asked', async () => {
    const pushed: number[][] = [];
    const pulled: number[][] = [];
    const [inner] = createLocalStores();
    const store = spied(inner!, {
      pushRows(key, indices, rows, options) {
        pushed.push([...indices]);
        return inner!.pushRows(key, indices, rows, options);
      },
      pullRows(key, indices, into) {
        pulled.push([...indices]);
        return inner!.pullRows(key, indices, into);
      },
    });
    const { stores } = openClients({ sizes: [3], seed: 3 }, {}, () => store);
    await each(stores, (one) => one.init({ key: 't', value: filled(30, 0), rowLength: 3 }));
    const pushes = [Int32Array.of(9, 4, 9), Int32Array.of(4), Int32Array.of()];
    await each(stores, (one, worker) =>
      one.pushRows('t', pushes[worker]!, filled(3 * pushes[worker]!.length, 1)),
    );
    expect(pushed).toEqual([[4, 9]]);
    const pulls = [Int32Array.of(), Int32Array.of(9, 0, 9), Int32Array.of(4, 9)];
    const answers = await each(stores, async (one, worker) => {
      const into = filled(3 * pulls[worker]!.length, NaN);
      const { version } = await one.pullRows('t', pulls[worker]!, into);
      expect(version).toBe(1);
      return [...into];
    });
    expect(pulled).toEqual([[0, 4, 9]]);
    expect(answers).toEqual([[], [2, 2, 2, 0, 0, 0, 2, 2, 2], [2, 2, 2, 2, 2, 2]]);
  });

  it('outside the table are refused to the worker that named them, and the others go on when it has corrected itself', async () => {
    const { stores } = openClients({ sizes: [2] });
    await each(stores, (store) => store.init({ key: 't', value: filled(4, 0), rowLength: 2 }));
    const first = stores[0]!.pushRows('t', Int32Array.of(0), filled(2, 1));
    await expect(stores[1]!.pushRows('t', Int32Array.of(2), filled(2, 1))).rejects.toThrow(
      /worker 1 named row 2 of key 't'/,
    );
    await stores[1]!.pushRows('t', Int32Array.of(1), filled(2, 5));
    await first;
    expect(await each(stores, (store) => valueOf(store, 't', 4))).toEqual([
      [1, 1, 5, 5],
      [1, 1, 5, 5],
    ]);
  });
});

it.each([1, 2, 3])(
  'exchanges many keys at once, in another order on every worker (seed %i)',
  async (seed) => {
    const keys = Array.from({ length: 24 }, (_, i) => ({ key: `w${i}`, length: 1 + 7 * i }));
    const { stores } = openClients({ sizes: [3, 2], seed, shared: seed === 3 }, { updater: 'accumulate' });
    const random = new Random(seed);
    const shuffled = () => {
      const list = [...keys];
      for (let i = list.length - 1; i > 0; i--) {
        const j = Math.floor(random.uniform() * (i + 1));
        [list[i], list[j]] = [list[j]!, list[i]!];
      }
      return list;
    };
    await each(stores, (store) =>
      store.init(keys.map(({ key, length }) => ({ key, value: filled(length, 0) }))),
    );
    const results = await each(stores, async (store) => {
      const into = new Map(keys.map(({ key, length }) => [key, filled(length, NaN)]));
      const gradients = keys.map(({ length }) => filled(length, 1));
      const calls = [1, 2, 3].flatMap(() =>
        shuffled().map(({ key }) => {
          const gradient = gradients[keys.findIndex((one) => one.key === key)]!;
          return store.pushpull({ key, gradient, into: into.get(key)! });
        }),
      );
      await Promise.all(calls);
      return into;
    });
    for (const into of results)
      for (const { key, length } of keys) expect([...into.get(key)!]).toEqual([...filled(length, 15)]);
  },
);

it.each([
  ['the first layers', undefined, ['a', 'b', 'c']],
  ['what it is told', (key: StoreKey) => String(key).charCodeAt(0), ['c', 'b', 'a']],
])('begins with %s, and answers in the order of the list', async (_, priority, wanted) => {
  const order: StoreKey[] = [];
  const [inner] = createLocalStores();
  const behind = spied(inner!, {
    push(keys, options) {
      order.push(...(keys as readonly { key: StoreKey }[]).map(({ key }) => key));
      return inner!.push(keys, options);
    },
  });
  const ranks = openRanks({ sizes: [1] });
  const store = createClientStore({
    group: ranks.groups[0]!,
    store: behind,
    worker: 0,
    workers: 1,
    priority,
  });
  opened.push({ ranks, stores: [store] });
  await store.init(['a', 'b', 'c'].map((key) => ({ key, value: filled(1, 0) })));
  const status = await store.push(['c', 'a', 'b'].map((key) => ({ key, gradient: filled(1, 1) })));
  expect(order).toEqual(wanted);
  expect(status.map(({ key }) => key)).toEqual(['c', 'a', 'b']);
});

describe('in elastic mode', () => {
  it('pushes the weights of one worker and gives all the same answer', async () => {
    const seen: number[][] = [];
    const [inner] = createLocalStores();
    const pushpull: KVStore['pushpull'] = (keys) => {
      const [{ key, gradient, into }] = keys as unknown as [
        { key: string; gradient: { view: Float32Array }; into: { view: Float32Array } },
      ];
      seen.push([...gradient.view]);
      into.view.fill(8);
      return Promise.resolve([{ key, version: 1, staleness: 0 }]);
    };
    const { stores } = openClients({ sizes: [3] }, { elastic: true }, () => spied(inner!, { pushpull }));
    await each(stores, (store) => store.init({ key: 'w', value: filled(2, 0) }));
    const weights = stores.map(() => filled(2, 10));
    await each(stores, (store, worker) =>
      store.pushpull({ key: 'w', gradient: weights[worker]!, into: weights[worker]! }),
    );
    expect(seen).toEqual([[10, 10]]);
    expect(weights.map((one) => [...one])).toEqual(stores.map(() => [8, 8]));
  });

  it('moves the centre by the distance of each client, not of each worker', async () => {
    const { stores } = openClients(
      { sizes: [2, 2] },
      { elastic: true, consistency: { kind: 'elastic', alpha: 0.5 } },
    );
    await each(stores, (store) => store.init({ key: 'w', value: filled(2, 0) }));
    await each(stores.slice(0, 2), (store) => store.push({ key: 'w', gradient: filled(2, 8) }));
    await each(stores.slice(2), (store) => store.push({ key: 'w', gradient: filled(2, 8) }));
    const values = await each(stores, (store) => valueOf(store, 'w', 2));
    expect(values).toEqual(stores.map(() => [6, 6]));
  });
});

it('uses regions where they lie and leaves gradients as they are', async () => {
  const { stores, ranks } = openClients({ sizes: [2], shared: true }, { combine: 'mean' });
  const segment = ranks.space.allocate(4096);
  const gradients = stores.map((_, worker) => {
    const region = segment.allocate('float32', 4);
    region.view.fill(worker + 1);
    return region;
  });
  const values = stores.map(() => segment.allocate('float32', 4));
  await each(stores, (store) => store.init({ key: 'w', value: filled(4, 0) }));
  await each(stores, (store, worker) =>
    store.pushpull({ key: 'w', gradient: gradients[worker]!, into: values[worker]! }, { samples: 3 }),
  );
  expect(gradients.map(({ view }) => [...view])).toEqual([
    [1, 1, 1, 1],
    [2, 2, 2, 2],
  ]);
  expect(values.map(({ view }) => [...view])).toEqual(stores.map(() => [1.5, 1.5, 1.5, 1.5]));
});

it('lets nobody pass a barrier before all workers of all clients have come', async () => {
  const { stores } = openClients({ sizes: [2, 1] });
  await each(stores, (store) => store.init({ key: 'w', value: filled(1, 0) }));
  const passed: number[] = [];
  const early = [0, 2].map((worker) => stores[worker]!.barrier().then(() => passed.push(worker)));
  for (let i = 0; i < 20; i++) await valueOf(stores[2]!, 'w', 1);
  expect(passed).toEqual([]);
  await stores[1]!.barrier();
  await Promise.all(early);
  expect(passed.sort()).toEqual([0, 2]);
});

it('keeps the order of calls that nobody awaited', async () => {
  const { stores } = openClients({ sizes: [2] });
  const into = stores.map(() => filled(1, NaN));
  await each(stores, (store, worker) =>
    Promise.all([
      store.init({ key: 'w', value: filled(1, 0) }),
      store.push({ key: 'w', gradient: filled(1, 1) }),
      store.setOptimizer({ name: 'sgd', lr: 0.5 }),
      store.push({ key: 'w', gradient: filled(1, 10) }),
      store.pull({ key: 'w', into: into[worker]! }),
    ]),
  );
  // Two were added; then the optimizer went against 20 by half.
  expect(into.map(([value]) => value)).toEqual([-8, -8]);
});
