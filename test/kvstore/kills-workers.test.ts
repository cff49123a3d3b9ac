/**
 * Losses that are not made good: a worker that dies and is not started again where training goes on without it, one that
 * comes later, a server that is gone for good, and one that only does not answer for a while.
 */
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { KillGround } from './kill-ground.ts';
import type { Place } from './kill-ground.ts';
import type { PushingAssignment } from './pushing-program.ts';

const LENGTH = 1000;
const KEY = 'sum';
/** Long enough for a server that runs, also on a busy machine. */
const REACHABLE_MS = 3000;

let ground: KillGround | undefined;
const stores: RemoteStore[] = [];
afterEach(async () => {
  await Promise.all(stores.splice(0).map((store) => store.close()));
  await ground?.close();
});

async function connect(options: Partial<RemoteStoreOptions> & { worker: number; workers: number }) {
  const { addresses: servers, access } = ground!;
  const store = await RemoteStore.connect({
    servers,
    access,
    chunkBytes: 256,
    updater: 'accumulate',
    ...options,
  });
  stores.push(store);
  return store;
}

function init(...all: readonly RemoteStore[]): Promise<unknown> {
  return Promise.all(all.map((store) => store.init({ key: KEY, value: new Float32Array(LENGTH) })));
}

/** Each pushes ones; the sum, once all who are counted have pushed. */
async function exchange(...all: readonly RemoteStore[]): Promise<number> {
  const values = await Promise.all(
    all.map(async (store) => {
      const into = new Float32Array(LENGTH);
      await store.pushpull({ key: KEY, gradient: new Float32Array(LENGTH).fill(1), into });
      return into;
    }),
  );
  const distinct = new Set(values.flatMap((value) => [...value]));
  expect([...distinct]).toHaveLength(1);
  return values[0]![0]!;
}

describe.each([true, false])('a worker, shared memory: %s', (sharedMemory) => {
  it('that dies is taken out of the count, and a new one counts from its next push on', async () => {
    const service = { lostWorkers: 'release', graceMs: 100 } as const;
    const here = (ground = await KillGround.start({ servers: 1, cores: 2, service }));
    const common = { workers: 3, sharedMemory };
    const pushing = (): PushingAssignment => ({
      store: { ...common, worker: 2, servers: here.addresses, access: here.access, chunkBytes: 256 },
      ...{ key: KEY, length: LENGTH },
    });
    const third = here.addWorker('pushing-program', pushing);
    const [first, second] = await Promise.all([0, 1].map((worker) => connect({ ...common, worker })));
    await init(first!, second!);
    const hasJoined = () => third.process.said('joined').length > 0;
    await here.until('the third worker has joined', hasJoined);
    third.process.tell('push');
    expect(await exchange(first!, second!)).toBe(3);

    // The others wait for its push when it dies.
    const withoutIt = exchange(first!, second!);
    await here.kill(third);
    expect(await withoutIt).toBe(5);
    expect(await exchange(first!, second!)).toBe(7);

    third.start();
    await here.until('a new worker has joined', hasJoined);
    third.process.tell('push');
    expect(await exchange(first!, second!)).toBe(10);
    await here.until('it knows the sum', () => third.process.said('pushed').length > 0);
    expect(third.process.said('pushed')[0]).toMatchObject({ value: 10 });
    third.process.tell('end');
    await here.until('it has said goodbye', () => third.process.ended);
    expect(await exchange(first!, second!)).toBe(12);
  });
});

it('a worker that dies rewinds the others where no step is made without it', async () => {
  const service = { lostWorkers: 'rewind', graceMs: 100 } as const;
  const here = (ground = await KillGround.start({ servers: 1, cores: 2, service }));
  const pushing = (): PushingAssignment => ({
    store: { workers: 2, worker: 1, servers: here.addresses, access: here.access, chunkBytes: 256 },
    ...{ key: KEY, length: LENGTH },
  });
  const second = here.addWorker('pushing-program', pushing);
  const first = await connect({ workers: 2, worker: 0 });
  await init(first);
  await here.until('the second worker has joined', () => second.process.said('joined').length > 0);
  second.process.tell('push');
  expect(await exchange(first)).toBe(2);

  const withoutIt = exchange(first);
  const refusal = expect(withoutIt).rejects.toMatchObject({
    code: 'REWOUND',
    message: expect.stringContaining('worker 1 was lost and did not come back in 100 ms') as string,
  });
  await here.kill(second);
  await refusal;
  await expect(exchange(first)).rejects.toMatchObject({ code: 'REWOUND' });
});

describe('a server', () => {
  it('that is gone for good fails calls by its name', async () => {
    const here = (ground = await KillGround.start({ servers: 2, cores: 1 }));
    const store = await connect({ worker: 0, workers: 1, reconnectTimeoutMs: REACHABLE_MS });
    await init(store);
    expect(await exchange(store)).toBe(1);
    await here.kill(here.servers[1]!);
    const message = expect.stringContaining(`server 1 at ${here.addresses[1]}`) as string;
    const error = { code: 'UNREACHABLE', message };
    await expect(exchange(store)).rejects.toMatchObject(error);
    await expect(exchange(store)).rejects.toMatchObject(error);
    await expect(connect({ worker: 1, workers: 1, reconnectTimeoutMs: REACHABLE_MS })).rejects.toMatchObject(
      error,
    );
  });

  it.each([true, false])(
    'that stands still for a while loses nothing, shared memory: %s',
    async (sharedMemory) => {
      const here = (ground = await KillGround.start({ servers: 2, cores: 1 }));
      const both = await Promise.all([0, 1].map((worker) => connect({ worker, workers: 2, sharedMemory })));
      await init(...both);
      expect(await exchange(...both)).toBe(2);
      for (let sum = 4; sum <= 8; sum += 2) {
        const server = here.servers[(sum / 2) % 2]!;
        await stop(server);
        const exchanged = exchange(...both);
        // A newcomer is let in by the system, and hears nothing.
        const newcomer = connect({ worker: 2, workers: 2, reconnectTimeoutMs: 200 });
        await expect(newcomer).rejects.toMatchObject({ code: 'UNREACHABLE' });
        server.process.signal('SIGCONT');
        expect(await exchanged).toBe(sum);
      }
    },
  );
});

/** Resolves when the process does nothing any more. */
async function stop({ process }: Place): Promise<void> {
  process.signal('SIGSTOP');
  const state = () => readFileSync(`/proc/${process.pid}/stat`, 'utf8').split(') ')[1]![0];
  while (state() !== 'T') await new Promise(setImmediate);
}
