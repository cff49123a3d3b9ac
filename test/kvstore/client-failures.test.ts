/** What the workers of a client get when one of them, or the servers, fail. */
import { describe, expect, it } from 'vitest';
import { PeerError, UsageError } from '../../src/base/index.ts';
import { createClientStore } from '../../src/kvstore/client-store.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KVStore, RecoverableStore } from '../../src/kvstore/index.ts';
import { each, openClients, opened, spied } from './client-setup.ts';
import { filled, openRanks, valueOf } from './collective-ranks.ts';

describe('an error of the servers', () => {
  const failure = new UsageError('OUT_OF_SHARED_MEMORY', 'the quota of tenant a is used up; raise it', {
    quota: 7,
  });
  const fail = () => Promise.reject(failure);
  it.each<[keyof KVStore, (store: KVStore) => Promise<unknown>]>([
    ['init', (store) => store.init({ key: 'new', value: filled(4, 1) })],
    ['push', (store) => store.push({ key: 'w', gradient: filled(4, 1) })],
    ['pull', (store) => store.pull({ key: 'w', into: filled(4, 1) })],
    ['pushpull', (store) => store.pushpull({ key: 'w', gradient: filled(4, 1), into: filled(4, 1) })],
    ['pushRows', (store) => store.pushRows('w', Int32Array.of(1), filled(2, 1))],
    ['pullRows', (store) => store.pullRows('w', Int32Array.of(1), filled(2, 1))],
    ['setOptimizer', (store) => store.setOptimizer({ name: 'sgd', lr: 1 })],
    ['barrier', (store) => store.barrier()],
  ])('in %s reaches every worker of the client as the same, and all go on', async (call, act) => {
    const [inner] = createLocalStores({ updater: 'accumulate' });
    const behind = spied(inner!, {});
    const { stores } = openClients({ sizes: [3] }, {}, () => behind);
    await each(stores, (store) => store.init({ key: 'w', value: filled(4, 1), rowLength: 2 }));
    Object.assign(behind, { [call]: fail });
    const ends = await Promise.allSettled(stores.map(act));
    for (const end of ends) {
      expect(end).toMatchObject({
        status: 'rejected',
        reason: { name: 'UsageError', code: failure.code, message: failure.message, facts: failure.facts },
      });
    }
    Object.assign(behind, spied(inner!, {}));
    await each(stores, (store) => store.push({ key: 'w', gradient: filled(4, 1) }));
    expect(await each(stores, (store) => valueOf(store, 'w', 4))).toEqual(stores.map(() => [4, 4, 4, 4]));
  });
});

describe('a gradient that is not finite', () => {
  it('is refused to its worker by name, before it meets the others', async () => {
    const { stores } = openClients({ sizes: [2] });
    await each(stores, (store) => store.init({ key: 'w', value: filled(4, 0) }));
    const first = stores[0]!.push({ key: 'w', gradient: filled(4, 1) });
    await expect(stores[1]!.push({ key: 'w', gradient: filled(4, NaN) })).rejects.toMatchObject({
      code: 'NOT_A_NUMBER',
      message: expect.stringMatching(/worker 1 pushed NaN to key 'w'/) as string,
    });
    await stores[1]!.push({ key: 'w', gradient: filled(4, 2) });
    await first;
    expect(await each(stores, (store) => valueOf(store, 'w', 4))).toEqual(stores.map(() => [3, 3, 3, 3]));
  });

  it.each(['sum', 'mean'] as const)('is left out of a %s if that is wanted', async (combine) => {
    const { stores } = openClients({ sizes: [2, 2] }, { combine, nonFinite: 'skip', updater: 'accumulate' });
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
    await pushAll([NaN, 4, 2, 6]);
    await pushAll([Infinity, NaN, 3, 3]);
    const [status] = await pushAll([NaN, NaN, NaN, NaN]);
    expect(status!.flat().map(({ version }) => version)).toEqual([3, 3]);
    const wanted = combine === 'sum' ? 18 : 4 + 3;
    for (const store of [stores.slice(0, 2), stores.slice(2)]) {
      for (const values of await each(store, (one) => valueOf(one, 'w', 2)))
        expect(values).toEqual([wanted, wanted]);
      for (const values of await each(store, (one) => valueOf(one, 't', 2)))
        expect(values).toEqual([0, wanted]);
    }
  });
});

describe('a worker that closes', () => {
  it.each([0, 1, 2])('(rank %i) ends the calls under way on all workers of its client', async (leaver) => {
    const { stores } = openClients({ sizes: [3] });
    await each(stores, (store) => store.init({ key: 'w', value: filled(4, 0) }));
    const waiting = stores
      .filter((_, worker) => worker !== (leaver + 1) % 3)
      .map((store) =>
        expect(store.push({ key: 'w', gradient: filled(4, 1) })).rejects.toMatchObject({ code: 'CANCELLED' }),
      );
    await stores[leaver]!.close();
    await Promise.all(waiting);
    await expect(stores[leaver]!.barrier()).rejects.toThrow(`worker ${leaver} is closed`);
  });

  it('ends the wait for other clients', async () => {
    const { stores } = openClients({ sizes: [2, 1] });
    await each(stores, (store) => store.init({ key: 'w', value: filled(4, 0) }));
    const waiting = stores
      .slice(0, 2)
      .map((store) =>
        expect(store.push({ key: 'w', gradient: filled(4, 1) })).rejects.toMatchObject({ code: 'CANCELLED' }),
      );
    await stores[0]!.close();
    await Promise.all(waiting);
  });
});

it('tells all workers when they init different keys', async () => {
  const { stores } = openClients({ sizes: [2] });
  const ends = await Promise.allSettled(
    stores.map((store, worker) => store.init({ key: `w${worker}`, value: filled(4, 0) })),
  );
  for (const end of ends) expect(end).toMatchObject({ reason: { code: 'COLLECTIVE_MISMATCH' } });
});

it.each([
  ['a worker outside the count', { worker: 2, workers: 2 }, /worker is 2 of 2/],
  ['no store on rank 0', { store: undefined }, /worker 0 is rank 0 of its client and was given no store/],
])('refuses %s', (_, wrong, message) => {
  const ranks = openRanks({ sizes: [1] });
  opened.push({ ranks, stores: [] });
  const [store] = createLocalStores();
  expect(() =>
    createClientStore({ group: ranks.groups[0]!, store, worker: 0, workers: 1, ...wrong }),
  ).toThrow(message);
});

it.each([
  [
    'a key twice',
    [
      { key: 'a', value: filled(2, 0) },
      { key: 'a', value: filled(2, 0) },
    ],
    /'a' is there already/,
  ],
  [
    'a table without whole rows',
    [{ key: 'a', value: filled(5, 0), rowLength: 2 }],
    /5 elements, which are no rows of 2/,
  ],
])('refuses to init %s, and nothing is there then', async (_, keys, message) => {
  const { stores } = openClients({ sizes: [2] });
  await Promise.all(stores.map((store) => expect(store.init(keys)).rejects.toThrow(message)));
  await each(stores, (store) => store.init({ key: 'a', value: filled(2, 3) }));
  expect(await each(stores, (store) => valueOf(store, 'a', 2))).toEqual(stores.map(() => [3, 3]));
});

describe('checkpoints of a client', () => {
  const withCheckpoints = (inner: KVStore, calls: Partial<RecoverableStore>) =>
    Object.assign(spied(inner, {}), {
      checkpoint: () => Promise.resolve(),
      checkpointsWritten: () => Promise.resolve(),
      resume: () => Promise.resolve(0),
      ...calls,
    });

  it('are those of the store behind, asked for once, and all workers learn the step they go back to', async () => {
    const [inner] = createLocalStores();
    const asked: unknown[] = [];
    const checkpoint = (...call: unknown[]) => Promise.resolve(void asked.push(call));
    const resume = () => Promise.resolve(7);
    const { stores } = openClients({ sizes: [3] }, {}, () => withCheckpoints(inner!, { checkpoint, resume }));
    const clients = stores as RecoverableStore[];
    await Promise.all(clients.map((store) => store.checkpoint(8, { isDurable: true })));
    await Promise.all(clients.map((store) => store.checkpointsWritten()));
    expect(asked).toEqual([[8, { isDurable: true }]]);
    expect(await Promise.all(clients.map((store) => store.resume()))).toEqual([7, 7, 7]);
  });

  it('make all workers go back when servers were lost, behind calls that were made before', async () => {
    const [inner] = createLocalStores({ updater: 'accumulate' });
    const rewound = new PeerError('REWOUND', 'server 0 was started again', {});
    const order: string[] = [];
    const behind = withCheckpoints(inner!, {
      push: async () => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        order.push('push');
        throw rewound;
      },
      resume: () => Promise.resolve(order.push('resume')),
    });
    const { stores } = openClients({ sizes: [2] }, {}, () => behind);
    await each(stores, (store) => store.init({ key: 'w', value: filled(4, 0) }));
    await Promise.all(
      (stores as RecoverableStore[]).map(async (store) => {
        const push = store.push({ key: 'w', gradient: filled(4, 1) });
        const back = store.resume();
        await expect(push).rejects.toMatchObject({ code: 'REWOUND' });
        expect(await back).toBe(2);
      }),
    );
    expect(order).toEqual(['push', 'resume']);
  });

  it('are refused to all where the store behind has none', async () => {
    const { stores } = openClients({ sizes: [2] });
    const asks: ((store: RecoverableStore) => Promise<unknown>)[] = [
      (store) => store.checkpoint(1),
      (store) => store.checkpointsWritten(),
      (store) => store.resume(),
    ];
    for (const ask of asks) {
      const ends = await Promise.allSettled((stores as RecoverableStore[]).map((store) => ask(store)));
      for (const end of ends) expect(end).toMatchObject({ reason: { code: 'NO_CHECKPOINTS' } });
    }
  });
});

it.each([
  ['has succeeded', () => Promise.resolve([{ key: 'w', version: 1, staleness: 0 }])],
  ['has failed', () => Promise.reject(new UsageError('OUT_OF_SHARED_MEMORY', 'there is no room', {}))],
] as const)(
  'leaves no rejection alone when a mate dies before it hears that a push %s',
  async (_, answer) => {
    const alone: unknown[] = [];
    const onAlone = (error: unknown): void => void alone.push(error);
    process.on('unhandledRejection', onAlone);
    try {
      const [inner] = createLocalStores();
      const { stores, ranks } = openClients({ sizes: [2] }, {}, () =>
        spied(inner!, {
          pushpull: async () => {
            ranks.kill(1);
            await new Promise((resolve) => setTimeout(resolve, 200));
            return answer();
          },
        }),
      );
      await each(stores, (store) => store.init({ key: 'w', value: filled(4, 0) }));
      const [first, second] = stores.map((store) =>
        store.pushpull({ key: 'w', gradient: filled(4, 1), into: filled(4, 0) }),
      );
      // Of the one who is dead nobody hears any more.
      second!.catch(() => undefined);
      await expect(first).rejects.toThrow();
      await new Promise((resolve) => setTimeout(resolve, 20));
      expect(alone).toEqual([]);
    } finally {
      process.off('unhandledRejection', onAlone);
    }
  },
);

it.each([0, 2])('tells the others of a client when rank %i dies, and later calls too', async (dead) => {
  const { stores, ranks } = openClients({ sizes: [3] });
  await each(stores, (store) => store.init({ key: 'w', value: filled(4, 0) }));
  const living = stores.filter((_, worker) => worker !== dead);
  const lost = (store: KVStore) =>
    expect(store.push({ key: 'w', gradient: filled(4, 1) })).rejects.toMatchObject({ code: 'PEER_LOST' });
  const waiting = living.map(lost);
  ranks.kill(dead);
  await Promise.all(waiting);
  await Promise.all(living.map(lost));
});
