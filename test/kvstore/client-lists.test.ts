/** Lists of keys in clients and in stores without servers: one exchange each, whatever their length. */
import { describe, expect, it, vi } from 'vitest';
import { UsageError } from '../../src/base/index.ts';
import { createCollectiveStore } from '../../src/kvstore/collective-store.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KeyPush, KVStore } from '../../src/kvstore/index.ts';
import { each, openClients, opened, spied } from './client-setup.ts';
import type { Clients } from './client-setup.ts';
import { filled, openRanks, valueOf } from './collective-ranks.ts';
import type { RanksOptions } from './collective-ranks.ts';

const KEYS = Array.from({ length: 62 }, (_, i) => ({ key: `w${i}`, length: 1 + ((37 * i) % 300) }));

function openCollective(options: RanksOptions): Clients {
  const ranks = openRanks(options);
  const stores = ranks.groups.map((group) => createCollectiveStore({ group, updater: 'accumulate' }));
  opened.push({ ranks, stores });
  return { ranks, stores };
}

const initAll = (stores: readonly KVStore[]) =>
  each(stores, (store) => store.init(KEYS.map(({ key, length }) => ({ key, value: filled(length, 0) }))));

describe.each([
  ['a client', (options: RanksOptions) => openClients(options, { updater: 'accumulate' })],
  ['a store without servers', openCollective],
])('in %s', (_, open) => {
  it.each(['push', 'pull', 'pushpull'] as const)(
    'a %s of 62 keys makes as many collective operations as one of a single key',
    async (call) => {
      const { stores, ranks } = open({ sizes: [2], shared: true });
      await initAll(stores);
      const starts = ranks.groups.map(({ progress }) => vi.spyOn(progress, 'start'));
      const countOf = async (count: number) => {
        const keys = KEYS.slice(0, count).map(({ key, length }) => ({
          ...{ key, gradient: filled(length, 1), into: filled(length, NaN) },
        }));
        starts.forEach((spy) => spy.mockClear());
        const statuses = await each(stores, (store) => store[call](keys));
        for (const list of statuses) expect(list.map(({ key }) => key)).toEqual(keys.map(({ key }) => key));
        return starts.map((spy) => spy.mock.calls.length);
      };
      const one = await countOf(1);
      expect(await countOf(KEYS.length)).toEqual(one);
    },
  );

  it.each([
    ['in shared memory', true],
    ['by messages', false],
  ])('every key of a list has its own sum and version, %s', async (_where, shared) => {
    const { stores } = open({ sizes: [3], shared });
    await initAll(stores);
    const into = stores.map(() => KEYS.map(({ length }) => filled(length, NaN)));
    const statuses = await each(stores, (store, worker) => {
      const list = KEYS.map(({ key, length }, i) => ({
        ...{ key, gradient: filled(length, (worker + 1) * i), into: into[worker]![i]! },
      }));
      // Every worker names the keys in an order of its own.
      return store.pushpull([...list.slice(20 * worker), ...list.slice(0, 20 * worker)]);
    });
    for (const values of into)
      KEYS.forEach(({ length }, i) => expect([...values[i]!]).toEqual([...filled(length, 6 * i)]));
    for (const list of statuses) for (const { version } of list) expect(version).toBe(1);
  });

  it('lists that have keys in common keep their order, and the others need none', async () => {
    const { stores } = open({ sizes: [2], seed: 5 });
    const lists = [
      ['w1', 'w2'],
      ['w2', 'w3'],
      ['w3', 'w1', 'w4'],
      ['w4', 'w2'],
    ];
    await initAll(stores);
    const lengths = new Map(KEYS.map(({ key, length }) => [key, length]));
    const results = await each(stores, async (store, worker) => {
      const versions = new Map<string, number[]>();
      const apart = () => store.push({ key: 'w9', gradient: filled(lengths.get('w9')!, 1) });
      const calls = lists.map(async (names) => {
        const list = names.map((key) => ({ key, gradient: filled(lengths.get(key)!, 1) }));
        for (const { key, version } of await store.push(worker === 0 ? list : list.reverse()))
          versions.set(String(key), [...(versions.get(String(key)) ?? []), version]);
      });
      if (worker === 1) calls.unshift(apart().then(() => undefined));
      else calls.push(apart().then(() => undefined));
      await Promise.all(calls);
      return Object.fromEntries(versions);
    });
    const wanted = { w1: [1, 2], w2: [1, 2, 3], w3: [1, 2], w4: [1, 2] };
    expect(results).toEqual([wanted, wanted]);
  });

  it('a key may be in a list again, and is then pushed again', async () => {
    const { stores } = open({ sizes: [2] });
    await initAll(stores);
    const list = ['w0', 'w1', 'w0'].map((key, i) => ({ key, gradient: filled(KEYS[i % 2]!.length, i + 1) }));
    const statuses = await each(stores, (store) => store.push(list));
    expect(statuses.map((all) => all.map(({ version }) => version))).toEqual([
      [1, 1, 2],
      [1, 1, 2],
    ]);
    for (const values of await each(stores, (store) => valueOf(store, 'w0', 1))) expect(values).toEqual([8]);
  });

  it('an empty list is done at once', async () => {
    const { stores } = open({ sizes: [2] });
    expect(await stores[0]!.push([])).toEqual([]);
  });

  it('a gradient that is refused keeps its whole list, which its worker repeats while the others wait', async () => {
    const { stores } = open({ sizes: [2] });
    await initAll(stores);
    const listOf = (third: number): KeyPush[] =>
      KEYS.slice(0, 5).map(({ key, length }, i) => ({ key, gradient: filled(length, i === 3 ? third : 1) }));
    const first = stores[0]!.push(listOf(1));
    await expect(stores[1]!.push(listOf(Infinity))).rejects.toMatchObject({
      code: 'NOT_A_NUMBER',
      message: expect.stringMatching(/worker 1 pushed Infinity to key 'w3'/) as string,
    });
    await stores[1]!.push(listOf(2));
    await first;
    for (const [i, { key, length }] of KEYS.slice(0, 5).entries())
      for (const values of await each(stores, (store) => valueOf(store, key, length)))
        expect(values).toEqual([...filled(length, i === 3 ? 3 : 2)]);
  });

  it('workers with different lists are told so', async () => {
    const { stores } = open({ sizes: [2] });
    await initAll(stores);
    const [a, b] = KEYS as [(typeof KEYS)[0], (typeof KEYS)[0]];
    const same = { ...b, key: 'x' };
    await each(stores, (store) => store.init({ key: same.key, value: filled(same.length, 0) }));
    const push = (store: KVStore, keys: typeof KEYS) =>
      store.push(keys.map(({ key, length }) => ({ key, gradient: filled(length, 1) })));
    const ends = await Promise.allSettled([push(stores[0]!, [a, b]), push(stores[1]!, [a, same])]);
    for (const end of ends) expect(end).toMatchObject({ reason: { code: 'COLLECTIVE_MISMATCH' } });
  });
});

it('hands the whole list to the store behind, in one call', async () => {
  const calls: number[] = [];
  const [inner] = createLocalStores();
  const behind = spied(inner!, {
    pushpull(keys, options) {
      calls.push((keys as readonly unknown[]).length);
      return inner!.pushpull(keys, options);
    },
  });
  const { stores } = openClients({ sizes: [3] }, {}, () => behind);
  await initAll(stores);
  await each(stores, (store) =>
    store.pushpull(
      KEYS.map(({ key, length }) => ({ key, gradient: filled(length, 1), into: filled(length, 0) })),
    ),
  );
  expect(calls).toEqual([KEYS.length]);
});

it('an error of one key behind the client reaches all workers, and leaves the other keys right', async () => {
  const failure = new UsageError('OUT_OF_SHARED_MEMORY', "key 'w1' does not fit; raise the quota", {
    key: 'w1',
  });
  const [inner] = createLocalStores({ updater: 'accumulate' });
  const behind = spied(inner!, {
    async push(keys, options) {
      await inner!.push(
        (keys as KeyPush[]).filter(({ key }) => key !== 'w1'),
        options,
      );
      throw failure;
    },
  });
  const { stores } = openClients({ sizes: [3], shared: true }, {}, () => behind);
  await initAll(stores);
  const list = KEYS.slice(0, 4).map(({ key, length }) => ({ key, gradient: filled(length, 1) }));
  const ends = await Promise.allSettled(stores.map((store) => store.push(list)));
  for (const end of ends)
    expect(end).toMatchObject({
      reason: { code: failure.code, message: failure.message, facts: failure.facts },
    });
  Object.assign(behind, spied(inner!, {}));
  await each(stores, (store) => store.push(list));
  for (const [i, { key, length }] of KEYS.slice(0, 4).entries())
    for (const values of await each(stores, (store) => valueOf(store, key, length)))
      expect(values).toEqual([...filled(length, i === 1 ? 3 : 6)]);
});

it.each(['sum', 'mean'] as const)(
  'leaves values that are not finite out of a %s key by key',
  async (combine) => {
    const { stores } = openClients(
      { sizes: [2], shared: true },
      { combine, nonFinite: 'skip', updater: 'accumulate' },
    );
    await initAll(stores);
    // By key: what the workers bring.
    const gradients = [
      [4, 8],
      [NaN, 8],
      [4, Infinity],
      [NaN, NaN],
    ];
    await each(stores, (store, worker) =>
      store.push(
        gradients.map((values, i) => ({
          key: KEYS[i]!.key,
          gradient: filled(KEYS[i]!.length, values[worker]!),
        })),
        { samples: 1 + 2 * worker },
      ),
    );
    const wanted = combine === 'sum' ? [12, 8, 4, 0] : [7, 8, 4, 0];
    for (const [i, value] of wanted.entries())
      for (const values of await each(stores, (store) => valueOf(store, KEYS[i]!.key, KEYS[i]!.length)))
        expect(values).toEqual([...filled(KEYS[i]!.length, value)]);
  },
);
