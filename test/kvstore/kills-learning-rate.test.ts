/**
 * What a server that was killed knows of the optimizer when it is started again: the present learning rate, and of each logged
 * push the optimizer that it was applied by.
 */
import { afterEach, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { KillGround } from './kill-ground.ts';

const LENGTH = 301;
const filled = (value: number) => new Float32Array(LENGTH).fill(value);

describe.skipIf(!hasSharedMemory())('a server that is killed and started again', () => {
  let ground: KillGround | undefined;
  const stores: RemoteStore[] = [];
  afterEach(async () => {
    await Promise.all(stores.splice(0).map((store) => store.close()));
    await ground?.close();
  });

  async function connect(options: Partial<RemoteStoreOptions>): Promise<RemoteStore> {
    ground = await KillGround.start({ servers: 1, cores: 2, service: { lostWorkers: 'wait' } });
    const { addresses: servers, access } = ground;
    const store = await RemoteStore.connect({
      servers,
      access,
      worker: 0,
      workers: 1,
      chunkBytes: 256,
      ...options,
    });
    stores.push(store);
    return store;
  }

  async function killServer(): Promise<void> {
    const [server] = ground!.servers;
    await ground!.kill(server!);
    server!.start();
    await ground!.ready();
  }

  async function pushOnes(store: RemoteStore): Promise<void> {
    await store.push([
      { key: 1, gradient: filled(-1) },
      { key: '1', gradient: filled(-1) },
    ]);
  }

  async function values(store: RemoteStore): Promise<readonly number[]> {
    const into = [filled(NaN), filled(NaN)];
    await store.pull([
      { key: 1, into: into[0]! },
      { key: '1', into: into[1]! },
    ]);
    const distinct = new Set(into.flatMap((one) => [...one]));
    return [...distinct];
  }

  const init = (store: RemoteStore) =>
    store.init([
      { key: 1, value: filled(0) },
      { key: '1', value: filled(0) },
    ]);

  it('replays logged pushes by the optimizers and rates that they were applied by', async () => {
    const store = await connect({ consistency: { kind: 'asynchronous' } });
    await init(store);
    await store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 });
    await store.checkpoint(1, { isDurable: true });
    await pushOnes(store);
    await store.setLearningRate(4);
    await pushOnes(store);
    // Buffers of 1 and 1.5 so far, then 1.375.
    await store.setOptimizer({ name: 'sgd', lr: 2, momentum: 0.25 });
    await pushOnes(store);
    // Another rule, and back: no buffer. The last rate is that of no push yet.
    await store.setOptimizer({ name: 'adagrad', lr: 0 });
    await pushOnes(store);
    await store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 });
    await pushOnes(store);
    await store.setLearningRate(8);
    const before = 1 + 4 * 1.5 + 2 * 1.375 + 0 + 1;
    expect(await values(store)).toEqual([before]);
    await killServer();
    expect(await values(store)).toEqual([before]);
    await pushOnes(store);
    expect(await values(store)).toEqual([before + 8 * 1.5]);
    // Once more, from a checkpoint that was made at the present rate.
    await store.checkpoint(2, { isDurable: true });
    await pushOnes(store);
    await killServer();
    expect(await values(store)).toEqual([before + 8 * 1.5 + 8 * 1.75]);
  });

  it('goes on from a checkpoint at the rate that it was made at', async () => {
    const store = await connect({});
    await init(store);
    await store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 });
    await pushOnes(store);
    await store.setLearningRate(4);
    await store.checkpoint(1, { isDurable: true });
    await store.setLearningRate(100);
    await pushOnes(store);
    await killServer();
    await expect(pushOnes(store)).rejects.toMatchObject({ code: 'REWOUND' });
    expect(await store.resume()).toBe(1);
    await pushOnes(store);
    expect(await values(store)).toEqual([1 + 4 * 1.5]);
  });

  it('keeps keys of 1,024 characters in its checkpoints', async () => {
    const store = await connect({ updater: 'accumulate' });
    const key = '8'.repeat(1024);
    await store.init({ key, value: filled(3) });
    await store.push({ key, gradient: filled(1) });
    await store.checkpoint(1, { isDurable: true });
    await killServer();
    await expect(store.push({ key, gradient: filled(1) })).rejects.toMatchObject({ code: 'REWOUND' });
    expect(await store.resume()).toBe(1);
    const into = filled(NaN);
    await store.pull({ key, into });
    expect(into[LENGTH - 1]).toBe(4);
  });
});
