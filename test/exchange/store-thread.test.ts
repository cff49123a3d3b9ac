/** What a worker calls of its store while it computes: servers have it at once, and no end of the thread leaves anything waiting. */
import { randomBytes } from 'node:crypto';
import type { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { startThread } from '../../src/base/index.ts';
import { startServerThread, type ServerThread } from '../../src/exchange/server-thread.ts';
import { StoreThread } from '../../src/exchange/store-thread.ts';
import type { ThreadStore } from '../../src/exchange/thread-store.ts';
import { hasSharedMemory, SharedSpace, type Region } from '../../src/memory/index.ts';
import { threadOf } from '../support/test-program.ts';
import { ANSWERED, GO_ON, KEYS, LENGTH, type SecondWorkerData } from './second-worker-thread.ts';

/** Only for what never comes. */
const DEADLINE_MS = 30_000;

describe.skipIf(!hasSharedMemory())('a store in a thread of its own', () => {
  const space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
  const access = { namespace: 'lane', nonce: randomBytes(32).toString('hex') };
  let server: ServerThread;
  let lane: StoreThread;
  let threads: Worker[];
  const note = (worker: Worker) => void threads.push(worker);

  beforeEach(async () => {
    server = await startServerThread({ services: [access] });
    threads = [];
    process.on('worker', note);
    lane = new StoreThread(space);
    // Told in the next turn.
    await new Promise(setImmediate);
    process.off('worker', note);
  });
  afterEach(async () => {
    await lane.close();
    await server.close();
  });

  const connect = (workers: number, sharedMemory = true): Promise<ThreadStore> =>
    lane.connect({
      ...{ servers: [server.address], access, sharedMemory, worker: 0, workers },
      ...{ held: true, combine: 'mean' },
    });

  const filled = (store: ThreadStore, value: number): Region<'float32'> => {
    const region = store.allocate(LENGTH);
    region.view.fill(value);
    return region;
  };

  it.each([true, false])(
    'sends what is pushed while its worker is blocked, also while it waits for another answer; in place: %s',
    async (sharedMemory) => {
      const words = new Int32Array(new SharedArrayBuffer(8));
      const data: SecondWorkerData = { address: server.address, access, sharedMemory, words: words.buffer };
      const second = startThread(threadOf(new URL('./second-worker-thread.ts', import.meta.url).href), data);
      const store = await connect(2, sharedMemory);
      const gradient = filled(store, 1);
      await store.init(KEYS.map((key) => ({ key, value: gradient })));
      await store.init({ key: 'table', value: gradient, rowLength: 4 });
      // The other pushes the first key last: its answer is awaited in the kernel all the time.
      const pushes = [
        store.push({ key: 'first', gradient }),
        store.push({ key: 'second', gradient }),
        store.pushRows('table', Int32Array.of(1, 2), gradient.slice(0, 8)),
      ] as const;
      // From here on this thread does nothing until the servers have told the other worker that they have both.
      for (let answered = 0; answered < 2; answered = words[ANSWERED]!)
        expect(Atomics.wait(words, ANSWERED, answered, DEADLINE_MS)).not.toBe('timed-out');
      Atomics.store(words, GO_ON, 1);
      Atomics.notify(words, GO_ON);
      const [[first], [secondKey], table] = await Promise.all(pushes);
      expect([first!.sumOfSquares, secondKey!.sumOfSquares]).toEqual([4 * LENGTH, 4 * LENGTH]);
      expect(table.sumOfSquares).toBe(4 * 2 ** 2 + 4 * 0.5 ** 2);
      await store.close();
      await second.terminate();
    },
  );

  it('reads and pulls values in the place that the server lends', async () => {
    const store = await connect(1);
    const gradient = filled(store, 1);
    await store.setOptimizer({ name: 'sgd', lr: 0.5 });
    await store.init({ key: 'w', value: gradient });
    const value = store.value('w')!;
    expect([...value.view]).toEqual([...gradient.view]);
    await store.push({ key: 'w', gradient });
    await store.apply({ scale: 1 });
    expect(value.view[0]).toBe(0.5);
    await store.pull({ key: 'w', into: value });
    expect(store.value('w')).toBe(value);
    expect(value.view[LENGTH - 1]).toBe(0.5);
    await store.close();
  });

  it('sends a frozen list once, and knows it when it comes again', async () => {
    const store = await connect(1);
    const gradient = filled(store, 1);
    await store.setOptimizer({ name: 'sgd', lr: 1 });
    await store.init(KEYS.map((key) => ({ key, value: filled(store, 0) })));
    const lists = [[...KEYS], [KEYS[0]]].map((keys) => Object.freeze(keys.map((key) => ({ key, gradient }))));
    for (const [step, list] of [lists[0]!, lists[1]!, lists[0]!].entries()) {
      gradient.view.fill(step + 1);
      const statuses = await store.push(list);
      expect(statuses.map(({ sumOfSquares }) => sumOfSquares)).toEqual(
        list.map(() => LENGTH * (step + 1) ** 2),
      );
      await store.apply();
    }
    expect(KEYS.map((key) => store.value(key)!.view[0])).toEqual([-(1 + 2 + 3), -(1 + 3)]);
    await store.close();
  });

  it('gives errors their class, code and facts, and goes on', async () => {
    const store = await connect(1);
    const gradient = filled(store, 1);
    await expect(store.push({ key: 'unknown', gradient })).rejects.toMatchObject({
      ...{ name: 'UsageError', code: 'INVALID_ARGUMENT', facts: { worker: 0, key: 'unknown' } },
    });
    await store.init({ key: 'w', value: gradient });
    await store.push({ key: 'w', gradient });
    await store.close();
    await expect(store.push({ key: 'w', gradient })).rejects.toThrow('is closed');
  });

  it('fails what is not answered when the store is closed', async () => {
    const store = await connect(2);
    const gradient = filled(store, 1);
    await store.init({ key: 'w', value: gradient });
    const never = store.push({ key: 'w', gradient });
    const [ended] = await Promise.allSettled([never, store.close()]);
    expect(ended).toMatchObject({ reason: { name: 'PeerError', code: 'CANCELLED' } });
  });

  it('fails every call when the thread dies, also for a worker that is blocked', async () => {
    const store = await connect(2);
    const gradient = filled(store, 1);
    await store.init({ key: 'w', value: gradient });
    // The other worker never pushes.
    const never = Promise.allSettled([store.push({ key: 'w', gradient })]);
    await expect(store.push({ key: 'unknown', gradient })).rejects.toThrow('init it first');
    const lost = {
      ...{ name: 'InternalError', code: 'BROKEN_INVARIANT' },
      message: expect.stringContaining('the store thread of process') as string,
    };
    // It stops without the event loop of this thread, which gets no event while it is blocked.
    const deadlineMs = performance.now() + DEADLINE_MS;
    void threads[0]!.terminate();
    while (lane.isAlive && performance.now() < deadlineMs) store.settle();
    expect(lane.isAlive).toBe(false);
    expect(await never).toMatchObject([{ reason: lost }]);
    await expect(store.apply()).rejects.toMatchObject(lost);
    await store.close();
  });

  it(
    'is known to be gone by a worker that asks it nothing and is blocked',
    async () => {
      const store = await connect(1);
      const deadlineMs = performance.now() + DEADLINE_MS;
      void threads[0]!.terminate();
      while (lane.isAlive && performance.now() < deadlineMs) store.settle();
      expect(lane.isAlive).toBe(false);
      await store.close();
    },
    2 * DEADLINE_MS,
  );
});
