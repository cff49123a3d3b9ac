/** The store without servers. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { createCollectiveStore } from '../../src/kvstore/collective-store.ts';
import type { CollectiveStoreOptions } from '../../src/kvstore/collective-store.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';
import { filled, openRanks, valueOf } from './collective-ranks.ts';
import type { Ranks } from './collective-ranks.ts';
import { storeConformance } from './conformance.ts';

const opened: { readonly ranks: Ranks; readonly stores: readonly KVStore[] }[] = [];
afterEach(async () => {
  for (const { ranks, stores } of opened.splice(0)) {
    await Promise.all(stores.map((store) => store.close()));
    ranks.close();
  }
});

interface Setting extends Omit<CollectiveStoreOptions, 'group'> {
  readonly workers: number;
  readonly seed?: number;
  readonly shared?: boolean;
}

function openStores({ workers, seed, shared, ...settings }: Setting): KVStore[] {
  const ranks = openRanks({
    sizes: [workers],
    ...(seed === undefined ? {} : { seed }),
    shared: shared ?? false,
  });
  const stores = ranks.groups.map((group) => createCollectiveStore({ ...settings, group }));
  opened.push({ ranks, stores });
  return stores;
}

const each = <T>(stores: readonly KVStore[], act: (store: KVStore, worker: number) => Promise<T>) =>
  Promise.all(stores.map(act));

/** It is synchronous, and its workers are one group. */
const NOT_APPLICABLE = [
  'keeps everybody within the bound of staleness, and reports it',
  'moves centre and weights towards each other, and answers with the weights',
  'lets centre and weights change places where alpha is 1',
  'goes on without a worker that closes, whose own push is cancelled',
];

describe.each([false, true])('in each other’s memory: %s', (shared) => {
  beforeEach(({ task, skip }) => {
    if (NOT_APPLICABLE.includes(task.name))
      skip('a store of collectives is synchronous, and its workers do not part');
  });
  storeConformance('the collective store', ({ consistency: _, ...settings }) =>
    openStores({ ...settings, shared, seed: 5 }),
  );
});

it.each([1, 2, 3, 5, 8])('adds (n + 1) n r / 2 a step with %i workers', async (workers) => {
  const stores = openStores({ workers });
  await each(stores, (store) => store.init({ key: 'w', value: filled(50, 1) }));
  await each(stores, (store) => store.setOptimizer({ name: 'sgd', lr: 0.5 }));
  for (let i = 1; i <= 3; i++) {
    await each(stores, (store, worker) => store.push({ key: 'w', gradient: filled(50, -(worker + 1)) }));
  }
  const wanted = filled(50, ((workers + 1) * workers * 0.5 * 3) / 2 + 1);
  for (const values of await each(stores, (store) => valueOf(store, 'w', 50)))
    expect(values).toEqual([...wanted]);
});

it('begins with the values and the optimizer of the first worker', async () => {
  const stores = openStores({ workers: 3 });
  await each(stores, (store, worker) => store.init({ key: 'w', value: filled(2, 10 + worker) }));
  await each(stores, (store, worker) => store.setOptimizer({ name: 'sgd', lr: 1 + worker }));
  await each(stores, (store) => store.push({ key: 'w', gradient: filled(2, 1) }));
  expect(await each(stores, (store) => valueOf(store, 'w', 2))).toEqual(stores.map(() => [7, 7]));
});

it.each(['sum', 'mean'] as const)(
  'updates as servers do, with the same bits on all workers (%s)',
  async (combine) => {
    const seed = 11;
    const random = new Random(seed);
    const draw = (length: number) => Float32Array.from({ length }, () => random.normal());
    const workers = 3;
    const served = createLocalStores({ workers, combine, updater: 'accumulate' });
    const stores = openStores({ workers, combine, seed });
    const spec = { name: 'adam', lr: 0.1 } as const;
    const [w, t] = [draw(37), draw(40)];
    for (const set of [served, stores]) {
      await each(set, (store) =>
        store.init([
          { key: 'w', value: w },
          { key: 't', value: t, rowLength: 4 },
        ]),
      );
      await each(set, (store) => store.setOptimizer(spec));
    }
    for (let step = 0; step < 5; step++) {
      const gradients = stores.map(() => draw(37));
      const rows = stores.map(() => draw(12));
      const indices = stores.map(() =>
        Int32Array.from({ length: 3 }, () => Math.floor(10 * random.uniform())),
      );
      for (const set of [served, stores]) {
        await each(set, (store, worker) =>
          Promise.all([
            store.push({ key: 'w', gradient: gradients[worker]! }, { samples: worker + 1 }),
            store.pushRows('t', indices[worker]!, rows[worker]!, { samples: worker + 1 }),
          ]),
        );
      }
    }
    for (const [key, length] of [
      ['w', 37],
      ['t', 40],
    ] as const) {
      const wanted = await valueOf(served[0]!, key, length);
      const values = await each(stores, (store) => valueOf(store, key, length));
      for (const own of values) expect(own).toEqual(values[0]);
      values[0]!.forEach((value, i) => expect(value).toBeCloseTo(wanted[i]!, 4));
    }
    await each(served, (store) => store.close());
  },
);

it.each([1, 2])('exchanges many keys at once, in another order on every worker (seed %i)', async (seed) => {
  const keys = Array.from({ length: 20 }, (_, i) => ({ key: `w${i}`, length: 1 + 11 * i }));
  const stores = openStores({ workers: 4, seed, shared: seed === 2, updater: 'accumulate' });
  const random = new Random(seed);
  await each(stores, (store) =>
    store.init(keys.map(({ key, length }) => ({ key, value: filled(length, 0) }))),
  );
  await each(stores, (store) => {
    const order = keys.map((one) => ({ one, at: random.uniform() })).sort((a, b) => a.at - b.at);
    return Promise.all(
      [1, 2].flatMap(() =>
        order.map(({ one: { key, length } }) => store.push({ key, gradient: filled(length, 1) })),
      ),
    );
  });
  for (const { key, length } of keys)
    expect(await each(stores, (store) => valueOf(store, key, length))).toEqual(
      stores.map(() => [...filled(length, 8)]),
    );
});

it.each(['sum', 'mean'] as const)(
  'leaves gradients that are not finite out of a %s if that is wanted',
  async (combine) => {
    const stores = openStores({ workers: 3, combine, nonFinite: 'skip' });
    await each(stores, (store) =>
      store.init([
        { key: 'w', value: filled(2, 0) },
        { key: 't', value: filled(2, 0), rowLength: 1 },
      ]),
    );
    const pushAll = (gradients: readonly number[]) =>
      each(stores, (store, worker) =>
        Promise.all([
          store.push({ key: 'w', gradient: filled(2, gradients[worker]!) }),
          store.pushRows('t', Int32Array.of(1), filled(1, gradients[worker]!)),
        ]),
      );
    await pushAll([NaN, 4, 2]);
    const [status] = await pushAll([NaN, -Infinity, NaN]);
    expect(status!.flat().map(({ version }) => version)).toEqual([2, 2]);
    const wanted = combine === 'sum' ? 6 : 3;
    expect(await each(stores, (store) => valueOf(store, 'w', 2))).toEqual(stores.map(() => [wanted, wanted]));
    expect(await each(stores, (store) => valueOf(store, 't', 2))).toEqual(stores.map(() => [0, wanted]));
  },
);

it('refuses a gradient that is not finite to its worker by name, and goes on when that has corrected itself', async () => {
  const stores = openStores({ workers: 2 });
  await each(stores, (store) => store.init({ key: 'w', value: filled(2, 0) }));
  const first = stores[0]!.push({ key: 'w', gradient: filled(2, 1) });
  await expect(stores[1]!.push({ key: 'w', gradient: filled(2, NaN) })).rejects.toThrow(
    /worker 1 pushed NaN to key 'w'/,
  );
  await stores[1]!.push({ key: 'w', gradient: filled(2, 1) });
  await first;
  expect(await each(stores, (store) => valueOf(store, 'w', 2))).toEqual(stores.map(() => [2, 2]));
});

it('ends the calls under way on all workers when one closes', async () => {
  const stores = openStores({ workers: 3 });
  await each(stores, (store) => store.init({ key: 'w', value: filled(2, 0) }));
  const waiting = stores
    .slice(1)
    .map((store) =>
      expect(store.push({ key: 'w', gradient: filled(2, 1) })).rejects.toMatchObject({ code: 'CANCELLED' }),
    );
  await stores[1]!.close();
  await Promise.all(waiting);
});

it('tells all workers when one pushes what another pushes by rows', async () => {
  const stores = openStores({ workers: 2 });
  await each(stores, (store) => store.init({ key: 't', value: filled(4, 0), rowLength: 2 }));
  const ends = await Promise.allSettled([
    stores[0]!.push({ key: 't', gradient: filled(4, 1) }),
    stores[1]!.pushRows('t', Int32Array.of(0), filled(2, 1)),
  ]);
  for (const end of ends) expect(end).toMatchObject({ reason: { code: 'COLLECTIVE_MISMATCH' } });
});

it('leaves gradients as they are, wherever they lie', async () => {
  const stores = openStores({ workers: 2, shared: true });
  const segment = opened[0]!.ranks.space.allocate(4096);
  const gradients = stores.map((_, worker) => {
    const region = segment.allocate('float32', 2);
    region.view.fill(worker + 1);
    return region;
  });
  await each(stores, (store) => store.init({ key: 'w', value: filled(2, 0) }));
  await each(stores, (store, worker) => store.push({ key: 'w', gradient: gradients[worker]! }));
  expect(gradients.map(({ view }) => [...view])).toEqual([
    [1, 1],
    [2, 2],
  ]);
  expect(await valueOf(stores[0]!, 'w', 2)).toEqual([3, 3]);
});
