/** What every store does, wherever its servers are: one suite, run by each implementation. */
import { afterEach, describe, expect, it } from 'vitest';
import type { KVStore } from '../../src/kvstore/index.ts';
import type { StoreKey } from '../../src/base/index.ts';
import type { Combine, Consistency, Updater } from '../../src/server/index.ts';

export interface StoreSettings {
  readonly workers: number;
  readonly consistency?: Consistency;
  readonly combine?: Combine;
  readonly updater?: Updater | undefined;
  readonly nonFinite?: 'refuse' | 'skip' | 'accept';
  readonly chunkBytes?: number;
}

export type OpenStores = (settings: StoreSettings) => Promise<KVStore[]> | KVStore[];

const filled = (length: number, value: number) => new Float32Array(length).fill(value);
/** Lengths around a chunk of 64 bytes. */
const LENGTHS = [1, 15, 16, 17, 100];

export function storeConformance(name: string, open: OpenStores): void {
  describe(name, () => {
    let stores: KVStore[] = [];
    const start = async (settings: StoreSettings) => {
      // Sums that grow show a push that counts twice or not at all.
      stores = await open({ chunkBytes: 64, updater: 'accumulate', ...settings });
      expect(stores.map(({ rank }) => rank)).toEqual(stores.map((_, rank) => rank));
      return stores;
    };
    const each = <T>(act: (store: KVStore, rank: number) => Promise<T>): Promise<T[]> =>
      Promise.all(stores.map(act));
    const initAll = (key: StoreKey, value: Float32Array, rowLength?: number) =>
      each((store) => store.init({ key, value, rowLength }));
    const pulled = async (store: KVStore, key: StoreKey, length: number) => {
      const into = filled(length, NaN);
      await store.pull({ key, into });
      return [...into];
    };
    afterEach(async () => {
      await each((store) => store.close());
      stores = [];
    });

    it.each([1, 2, 3, 4, 5, 6, 7, 8])('adds the pushes of %i workers once a step', async (workers) => {
      await start({ workers });
      for (const length of LENGTHS) {
        const key = `w${length}`;
        await initAll(key, filled(length, 1));
        for (let i = 1; i <= 3; i++) {
          await each((store, rank) => store.push({ key, gradient: filled(length, rank + 1) }));
          const wanted = [...filled(length, ((workers + 1) * workers * i) / 2 + 1)];
          for (const values of await each((store) => pulled(store, key, length)))
            expect(values).toEqual(wanted);
        }
      }
    });

    it('holds 50 times what was pushed 50 times, and 100 times after 50 push-pulls more', async () => {
      const [store] = await start({ workers: 1, consistency: { kind: 'asynchronous' } });
      const gradient = Float32Array.of(1, 2, 3);
      await initAll('w', filled(3, 0));
      for (let i = 0; i < 50; i++) await store!.push({ key: 'w', gradient });
      expect(await pulled(store!, 'w', 3)).toEqual([50, 100, 150]);
      const into = filled(3, 0);
      for (let i = 0; i < 50; i++) await store!.pushpull({ key: 'w', gradient, into });
      expect([...into]).toEqual([100, 200, 300]);
    });

    it('takes lists of keys, and of tensors of devices, which are added first', async () => {
      const [store] = await start({ workers: 1 });
      await store!.init([
        { key: 'a', value: filled(2, 1) },
        { key: 'b', value: filled(20, 2) },
      ]);
      const devices = [filled(20, 1), filled(20, 10), filled(20, 100)];
      const [a, b, c] = [filled(2, 0), filled(20, 0), filled(20, 0)];
      const status = await store!.pushpull([
        { key: 'a', gradient: filled(2, 5), into: a },
        { key: 'b', gradient: devices, into: [b, c] },
      ]);
      expect(status.map(({ key, version }) => [key, version])).toEqual([
        ['a', 1],
        ['b', 1],
      ]);
      expect([...a]).toEqual([6, 6]);
      for (const copy of [b, c]) expect([...copy]).toEqual([...filled(20, 113)]);
    });

    it('answers a push-pull with what all pushes of the step gave', async () => {
      await start({ workers: 3 });
      await initAll('w', filled(40, 0));
      const results = await each(async (store, rank) => {
        const into = filled(40, 0);
        await store.pushpull({ key: 'w', gradient: filled(40, 10 ** rank), into });
        return into[39];
      });
      expect(results).toEqual([111, 111, 111]);
    });

    it('weighs averages by samples', async () => {
      await start({ workers: 2, combine: 'mean' });
      await initAll('w', filled(17, 0));
      await each((store, rank) =>
        store.push({ key: 'w', gradient: filled(17, rank === 0 ? 1 : 5) }, { samples: rank === 0 ? 30 : 10 }),
      );
      for (const value of await pulled(stores[1]!, 'w', 17)) expect(value).toBeCloseTo(2, 6);
    });

    it('updates by the optimizer that the first worker sets', async () => {
      await start({ workers: 2, combine: 'mean' });
      await initAll('w', filled(33, 1));
      await each((store) => store.setOptimizer({ name: 'sgd', lr: 0.5, momentum: 0.5 }));
      for (let i = 0; i < 2; i++)
        await each((store, rank) => store.push({ key: 'w', gradient: filled(33, rank * 2) }));
      // The mean is 1: 1 - 0.5 * 1, then - 0.5 * (0.5 + 1).
      expect(await pulled(stores[0]!, 'w', 33)).toEqual([...filled(33, -0.25)]);
    });

    it('without an optimizer takes the combined push of a step for the value', async () => {
      await start({ workers: 2, updater: undefined });
      await initAll('w', filled(33, 7));
      for (let i = 0; i < 3; i++) {
        await each((store, rank) => store.push({ key: 'w', gradient: filled(33, rank + 1) }));
        for (const values of await each((store) => pulled(store, 'w', 33)))
          expect(values).toEqual([...filled(33, 3)]);
      }
    });

    it('without an optimizer takes the mean by samples for the value, and of a table the rows', async () => {
      await start({ workers: 2, combine: 'mean', updater: 'assign' });
      await each((store) =>
        store.init([
          { key: 'w', value: filled(17, 7) },
          { key: 't', value: filled(6, 7), rowLength: 2 },
        ]),
      );
      const samples = (rank: number) => ({ samples: rank === 0 ? 30 : 10 });
      for (let i = 0; i < 2; i++) {
        await each((store, rank) =>
          store.push({ key: 'w', gradient: filled(17, rank === 0 ? 1 : 5) }, samples(rank)),
        );
        await each((store, rank) =>
          store.pushRows('t', Int32Array.of(2), filled(2, rank === 0 ? 1 : 5), samples(rank)),
        );
      }
      for (const value of await pulled(stores[0]!, 'w', 17)) expect(value).toBeCloseTo(2, 6);
      const table = await pulled(stores[1]!, 't', 6);
      expect(table.slice(0, 4)).toEqual([7, 7, 7, 7]);
      for (const value of table.slice(4)) expect(value).toBeCloseTo(2, 6);
    });

    it('without an optimizer takes the last push for the value where nobody waits', async () => {
      const [store] = await start({
        ...{ workers: 1, consistency: { kind: 'asynchronous' }, updater: 'assign' },
      });
      await initAll('w', filled(3, 7));
      for (let i = 1; i <= 3; i++) await store!.push({ key: 'w', gradient: filled(3, i) });
      expect(await pulled(store!, 'w', 3)).toEqual([3, 3, 3]);
    });

    // MXNET-MPI, figure 6: servers only add, workers update by an optimizer of their own.
    it('lets workers pull the summed gradient and update by themselves', async () => {
      const workers = 3;
      const [length, rate, steps] = [20, 0.125, 4];
      await start({ workers, updater: 'assign' });
      await each((store) =>
        store.init([
          { key: 0, value: filled(length, 0) },
          { key: 1, value: filled(1, 0) },
        ]),
      );
      const gradientOf = (rank: number, weight: number) => (rank + 1) * (weight - 8);
      const weights = await each(async (store, rank) => {
        const own = [filled(length, 1), filled(1, 2)];
        for (let step = 0; step < steps; step++) {
          for (const [key, tensor] of own.entries()) {
            const gradient = tensor.map((weight) => gradientOf(rank, weight));
            await store.push({ key, gradient });
            await store.pull({ key, into: gradient });
            tensor.forEach((weight, i) => (tensor[i] = weight - (rate / workers) * gradient[i]!));
          }
        }
        return own.map((tensor) => [...tensor]);
      });
      // One device with the sum of all gradients: of each worker the same, 6 (w - 8) in all.
      const alone = (weight: number) => {
        for (let step = 0; step < steps; step++)
          weight = Math.fround(weight - (rate / workers) * 6 * (weight - 8));
        return weight;
      };
      for (const own of weights) expect(own).toEqual([Array(length).fill(alone(1)), [alone(2)]]);
    });

    it('changes the learning rate and keeps the momentum', async () => {
      await start({ workers: 2 });
      await initAll('w', filled(33, 0));
      await each((store) => store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 }));
      const pushOnes = () => each((store) => store.push({ key: 'w', gradient: filled(33, -0.5) }));
      await pushOnes();
      await each((store) => store.setLearningRate(4));
      await pushOnes();
      // The buffer is 1, then 1.5.
      expect(await pulled(stores[0]!, 'w', 33)).toEqual([...filled(33, 1 + 4 * 1.5)]);
      // Numbers of the same rule: the buffer becomes 1.375.
      await each((store) => store.setOptimizer({ name: 'sgd', lr: 2, momentum: 0.25 }));
      await pushOnes();
      expect(await pulled(stores[1]!, 'w', 33)).toEqual([...filled(33, 7 + 2 * 1.375)]);
      // Another rule, and the first again, which begins without a buffer.
      await each((store) => store.setOptimizer({ name: 'adagrad', lr: 0 }));
      await each((store) => store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 }));
      await pushOnes();
      expect(await pulled(stores[0]!, 'w', 33)).toEqual([...filled(33, 9.75 + 1)]);
    });

    it('takes the first worker’s learning rate, between the same two steps of all workers', async () => {
      await start({ workers: 3 });
      await initAll('w', filled(20, 0));
      await each((store) => store.setOptimizer({ name: 'sgd', lr: 1 }));
      await each(async (store, rank) => {
        const push = () => store.push({ key: 'w', gradient: filled(20, -1) });
        await push();
        // Nobody waits for the rate before the next push.
        await Promise.all<unknown>([store.setLearningRate(rank === 0 ? 10 : 1000), push()]);
        await push();
      });
      expect(await pulled(stores[2]!, 'w', 20)).toEqual([...filled(20, 3 + 30 + 30)]);
    });

    it('changes the learning rate of the pushes that follow where nobody waits', async () => {
      const [store] = await start({ workers: 1, consistency: { kind: 'asynchronous' } });
      await initAll('w', filled(20, 0));
      await store!.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 });
      await store!.push({ key: 'w', gradient: filled(20, -1) });
      await store!.setLearningRate(4);
      await store!.push({ key: 'w', gradient: filled(20, -1) });
      expect(await pulled(store!, 'w', 20)).toEqual([...filled(20, 1 + 4 * 1.5)]);
    });

    it.each([NaN, Infinity, -1, '1', undefined])('refuses %s for a learning rate', async (lr) => {
      const [store] = await start({ workers: 1 });
      await initAll('w', filled(1, 0));
      await store!.setOptimizer({ name: 'sgd', lr: 1 });
      await expect(store!.setLearningRate(lr as number)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
      await store!.push({ key: 'w', gradient: filled(1, -1) });
      expect(await pulled(store!, 'w', 1)).toEqual([1]);
    });

    it('refuses a learning rate without an optimizer, on all workers', async () => {
      await start({ workers: 2 });
      await initAll('w', filled(1, 0));
      await each((store) =>
        expect(store.setLearningRate(1)).rejects.toMatchObject({
          ...{ code: 'INVALID_ARGUMENT', message: expect.stringContaining('setOptimizer') as string },
        }),
      );
      await each((store) => store.push({ key: 'w', gradient: filled(1, 1) }));
      expect(await pulled(stores[0]!, 'w', 1)).toEqual([2]);
    });

    it('takes whole numbers and strings for keys, and never one for the other', async () => {
      await start({ workers: 2 });
      const keys: StoreKey[] = [
        1,
        '1',
        0,
        '0',
        -3,
        '-3',
        Number.MAX_SAFE_INTEGER,
        'number 1',
        'string 1',
        '\0',
      ];
      keys.push(' ', '#1', 'x'.repeat(1024), '8'.repeat(1024), 'ä 😀\n');
      const gradientOf = (i: number) => filled(17, i + 1);
      await each((store) => store.init(keys.map((key) => ({ key, value: filled(17, 0) }))));
      await each(async (store) => {
        const statuses = await store.push(keys.map((key, i) => ({ key, gradient: gradientOf(i) })));
        expect(statuses.map(({ key }) => key)).toEqual(keys);
        const into = filled(17, NaN);
        const [status] = await store.pushpull({ key: 1, gradient: filled(17, 100), into });
        expect(status!.key).toBe(1);
        expect([...into]).toEqual([...filled(17, 202)]);
      });
      for (const [i, key] of keys.entries())
        expect(await pulled(stores[1]!, key, 17)).toEqual([...filled(17, 2 * (i + 1) + (i === 0 ? 200 : 0))]);
      await each((store) =>
        store.init([
          { key: 7, value: filled(4, 0), rowLength: 2 },
          { key: '7', value: filled(4, 0), rowLength: 2 },
        ]),
      );
      await each((store) => store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 }));
      await each(async (store) => {
        await store.pushRows(7, Int32Array.of(1), filled(2, -1));
        await store.pushRows('7', Int32Array.of(0), filled(2, -8));
        const into = filled(2, NaN);
        expect((await store.pullRows(7, Int32Array.of(1), into)).key).toBe(7);
        expect([...into]).toEqual([2, 2]);
      });
      expect(await pulled(stores[0]!, '7', 4)).toEqual([16, 16, 0, 0]);
    });

    it.each([
      ['an empty string', ''],
      ['1,025 characters', 'x'.repeat(1025)],
      ['a fraction', 1.5],
      ['NaN', NaN],
      ['an infinite number', Infinity],
      ['a number that is not exact', 2 ** 53],
      ['half a character', 'a\ud800'],
      ['a bigint', 1n],
      ['null', null],
      ['nothing', undefined],
      ['an object', {}],
    ])('refuses %s for a key at once, by name, and goes on', async (_what, bad) => {
      const [store] = await start({ workers: 1 });
      const key = bad as StoreKey;
      await store!.init({ key: 'w', value: filled(1, 0) });
      const gradient = filled(1, 1);
      const calls = [
        () => store!.init({ key, value: filled(1, 0) }),
        () =>
          store!.init([
            { key: 'v', value: filled(1, 0) },
            { key, value: filled(1, 0) },
          ]),
        () =>
          store!.push([
            { key: 'w', gradient },
            { key, gradient },
          ]),
        () => store!.pull({ key, into: filled(1, 0) }),
        () => store!.pushpull({ key, gradient, into: gradient }),
        () => store!.pushRows(key, Int32Array.of(0), gradient),
        () => store!.pullRows(key, Int32Array.of(0), gradient),
      ];
      for (const call of calls) {
        await expect(call()).rejects.toMatchObject({
          ...{ name: 'UsageError', code: 'INVALID_ARGUMENT' },
          message: expect.stringMatching(/worker 0 .*key.*(1 to 1,024 characters|whole number)/s) as string,
        });
      }
      await store!.init({ key: 'v', value: filled(1, 0) });
      await store!.push([
        { key: 'w', gradient },
        { key: 'v', gradient },
      ]);
      expect(await pulled(store!, 'w', 1)).toEqual([1]);
    });

    it('moves only the rows that were touched', async () => {
      await start({ workers: 2 });
      await initAll(
        'table',
        Float32Array.from({ length: 12 }, (_, i) => i),
        3,
      );
      await each((store, rank) =>
        store.pushRows('table', Int32Array.of(3, rank), Float32Array.of(1, 1, 1, 100, 100, 100)),
      );
      const into = filled(9, 0);
      await stores[1]!.pullRows('table', Int32Array.of(3, 0, 2), into);
      expect([...into]).toEqual([11, 12, 13, 100, 101, 102, 6, 7, 8]);
    });

    it.each(['sum', 'mean'] as const)('answers a push of rows with the rows, by the %s', async (combine) => {
      await start({ workers: 2, combine });
      await initAll(
        'table',
        Float32Array.from({ length: 12 }, (_, i) => i),
        3,
      );
      await each((store) => store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 }));
      const scale = combine === 'mean' ? 0.5 : 1;
      // One names a row twice, another is named by both.
      const rows = [Int32Array.of(3, 0, 3), Int32Array.of(1, 3, 2)];
      const gradients = [Float32Array.of(2, 2, 2, 4, 4, 4, 6, 6, 6), filled(9, 8)];
      const answers = await each(async (store, rank) => {
        const into = filled(9, NaN);
        const { version } = await store.pushpullRows('table', rows[rank]!, gradients[rank]!, into);
        expect(version).toBe(1);
        return [...into];
      });
      const after = (row: number, gradient: number) => [0, 1, 2].map((i) => 3 * row + i - scale * gradient);
      const third = after(3, 2 + 6 + 8);
      expect(answers[0]).toEqual([...third, ...after(0, 4), ...third]);
      expect(answers[1]).toEqual([...after(1, 8), ...third, ...after(2, 8)]);
    });

    it('keeps everybody within the bound of staleness, and reports it', async () => {
      const [fast, slow] = await start({ workers: 2, consistency: { kind: 'bounded', staleness: 1 } });
      await initAll('w', filled(1, 0));
      const gradient = filled(1, 1);
      await fast!.push({ key: 'w', gradient });
      let ahead = false;
      const second = fast!.push({ key: 'w', gradient }).then(() => (ahead = true));
      await pulled(slow!, 'w', 1);
      expect(ahead).toBe(false);
      const [status] = await slow!.push({ key: 'w', gradient });
      await second;
      expect(ahead).toBe(true);
      expect(status!.staleness).toBe(0);
      expect(await pulled(fast!, 'w', 1)).toEqual([3]);
    });

    it('moves centre and weights towards each other, and answers with the weights', async () => {
      const [store] = await start({ workers: 1, consistency: { kind: 'elastic', alpha: 0.25 } });
      await initAll('w', filled(20, 0));
      const into = filled(20, NaN);
      await store!.pushpull({ key: 'w', gradient: filled(20, 8), into });
      expect([...into]).toEqual([...filled(20, 6)]);
      expect(await pulled(store!, 'w', 20)).toEqual([...filled(20, 2)]);
    });

    it('lets centre and weights change places where alpha is 1', async () => {
      const [store] = await start({ workers: 1, consistency: { kind: 'elastic', alpha: 1 } });
      await initAll('w', filled(20, 2));
      const into = filled(20, NaN);
      await store!.pushpull({ key: 'w', gradient: filled(20, 8), into });
      expect([...into]).toEqual([...filled(20, 2)]);
      expect(await pulled(store!, 'w', 20)).toEqual([...filled(20, 8)]);
    });

    it('goes on without a worker that closes, whose own push is cancelled', async () => {
      const [first, second] = await start({ workers: 2 });
      await initAll('w', filled(20, 0));
      const left = expect(second!.push({ key: 'w', gradient: filled(20, 10) })).rejects.toMatchObject({
        code: 'CANCELLED',
      });
      await second!.close();
      await left;
      await first!.push({ key: 'w', gradient: filled(20, 1) });
      await first!.barrier();
      expect(await pulled(first!, 'w', 20)).toEqual([...filled(20, 1)]);
    });

    it('waits for all workers at a barrier', async () => {
      await start({ workers: 3 });
      const passed: number[] = [];
      const first = stores.slice(0, 2).map((store, rank) => store.barrier().then(() => passed.push(rank)));
      await pulledNothing(stores[2]!);
      expect(passed).toEqual([]);
      await stores[2]!.barrier();
      await Promise.all(first);
      expect(passed.sort()).toEqual([0, 1]);
    });

    it.each([
      ['a wrong length', (s: KVStore) => s.push({ key: 'w', gradient: filled(3, 1) }), /'w'.* 4/],
      [
        'an unknown key',
        (s: KVStore) => s.push({ key: 'x', gradient: filled(3, 1) }),
        /worker 0 used key 'x'/,
      ],
      ['a pull before init', (s: KVStore) => s.pull({ key: 'x', into: filled(3, 1) }), /key 'x'.*init/],
      [
        'a NaN',
        (s: KVStore) => s.push({ key: 'w', gradient: filled(4, NaN) }),
        /worker 0 pushed NaN to key 'w'/,
      ],
      ['a second init', (s: KVStore) => s.init({ key: 'w', value: filled(4, 1) }), /'w' is there already/],
      ['a row outside', (s: KVStore) => s.pushRows('t', Int32Array.of(2), filled(2, 1)), /row 2 of key 't'/],
    ])('refuses %s with the names of worker and key, and goes on', async (_what, act, message) => {
      const [store] = await start({ workers: 1 });
      await store!.init([
        { key: 'w', value: filled(4, 1) },
        { key: 't', value: filled(4, 1), rowLength: 2 },
      ]);
      await expect(act(store!)).rejects.toThrow(message);
      await store!.push({ key: 'w', gradient: filled(4, 1) });
      expect(await pulled(store!, 'w', 4)).toEqual([2, 2, 2, 2]);
    });
  });
}

/** Lets whatever can happen happen, through the store itself. */
async function pulledNothing(store: KVStore): Promise<void> {
  await store.pull([]);
}
