/** A worker process for tests that kill it: joins synchronous training and pushes ones when it is told to. */
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { listen, readAssignment, say } from './kill-program.ts';

export interface PushingAssignment {
  readonly store: RemoteStoreOptions;
  readonly key: string;
  readonly length: number;
}

const { store: options, key, length } = readAssignment<PushingAssignment>();
const store = await RemoteStore.connect({ ...options, updater: 'accumulate' });
await store.init({ key, value: new Float32Array(length) });
const into = new Float32Array(length);
const stopListening = listen((line) => {
  if (line === 'push') {
    const gradient = new Float32Array(length).fill(1);
    void store.pushpull({ key, gradient, into }).then(() => say('pushed', { value: into[0] }));
  } else {
    stopListening();
    void store.close();
  }
});
say('joined');
