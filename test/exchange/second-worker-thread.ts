/**
 * The second worker of store-thread.test.ts, in a thread of its own: pushes what the first one pushes, in another order, and says by
 * a word when a push is answered, which servers only do when all workers have pushed. Not a test itself, and no judge.
 */
import { workerData } from 'node:worker_threads';
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';

export interface SecondWorkerData {
  readonly address: string;
  readonly access: ServiceAccess;
  readonly sharedMemory: boolean;
  readonly words: SharedArrayBuffer;
}

/** Words: what has been answered; whether to go on with what was held back. */
export const [ANSWERED, GO_ON] = [0, 1];
export const KEYS = ['first', 'second'] as const;
export const LENGTH = 40;

if (workerData !== null) await work(workerData as SecondWorkerData);

async function work({ address, access, sharedMemory, words: buffer }: SecondWorkerData): Promise<void> {
  const words = new Int32Array(buffer);
  const store = await RemoteStore.connect({
    ...{ servers: [address], access, sharedMemory, worker: 1, workers: 2, held: true, combine: 'mean' },
  });
  const gradient = new Float32Array(LENGTH).fill(3);
  await store.init(KEYS.map((key) => ({ key, value: gradient })));
  await store.init({ key: 'table', value: gradient, rowLength: 4 });
  await store.push({ key: 'second', gradient });
  say(words);
  await store.pushRows('table', Int32Array.of(1), gradient.slice(0, 4));
  say(words);
  Atomics.wait(words, GO_ON, 0);
  await store.push({ key: 'first', gradient });
  say(words);
  await store.close();
}

function say(words: Int32Array): void {
  Atomics.add(words, ANSWERED, 1);
  Atomics.notify(words, ANSWERED);
}
