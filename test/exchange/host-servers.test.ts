/** Servers in the processes of workers, where the workers cannot be told of them any more. */
import { randomBytes } from 'node:crypto';
import type { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { hostServers, type HostServersOptions } from '../../src/exchange/host-servers.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';

it.skipIf(!hasSharedMemory())(
  'leave no thread behind when another worker is lost before it knows of them',
  async () => {
    const segment = SharedSpace.create({ maxBytes: 2 ** 20 }).allocate(2 ** 16);
    // The fault is forced: the moment between the start of a server and the first collective is short.
    const thread = {
      world: { id: 0, rank: 0, size: 2 },
      allocate: (...args: Parameters<typeof segment.allocate>) => segment.allocate(...args),
      allGather: () => {
        throw new Error('worker 1 is lost');
      },
    } as unknown as HostServersOptions['thread'];
    const started: Promise<unknown>[] = [];
    const note = (worker: Worker) =>
      void started.push(new Promise((resolve) => worker.once('exit', resolve)));
    process.on('worker', note);
    const hosting = hostServers({
      thread,
      secret: randomBytes(32).toString('hex'),
      ranks: [0],
      services: [''],
    });
    await expect(hosting).rejects.toThrow('worker 1 is lost');
    process.off('worker', note);
    expect(started).toHaveLength(1);
    await started[0];
  },
  60_000,
);
