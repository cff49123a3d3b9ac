/**
 * A worker process for tests that kill it: trains a made-up model whose gradients depend on its parameters, so that every
 * step that is lost, doubled or done from other parameters changes the result. Prints the parameters' hash at the end.
 */
import { createHash } from 'node:crypto';
import { RemoteStore, runSteps } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';

export interface TrainingAssignment {
  readonly store: RemoteStoreOptions;
  readonly steps: number;
  readonly checkpointEvery: number;
  readonly lengths: readonly number[];
}

const { store: options, steps, checkpointEvery, lengths } = JSON.parse(process.argv[2]!) as TrainingAssignment;
const store = await RemoteStore.connect(options);
const keys = lengths.map((length, i) => ({
  key: `w${i}`,
  gradient: store.allocate(length),
  into: store.allocate(length),
}));
await store.init(keys.map(({ key, into }) => ({ key, value: new Float32Array(into.length).fill(0.5) })));
await store.setOptimizer({ name: 'sgd', lr: 0.05, momentum: 0.9 });
await runSteps(store, {
  steps,
  checkpointEvery,
  step: async (step, isFirst) => {
    if (isFirst) await store.pull(keys);
    for (const { gradient, into } of keys) {
      for (let i = 0; i < gradient.length; i++) {
        const noise = ((i * 7 + options.worker * 13 + step * 31) % 17) - 8;
        gradient.view[i] = noise / 64 + 0.1 * into.view[i]!;
      }
    }
    await store.pushpull(keys);
    process.stdout.write(`step ${step}\n`);
  },
  onRewind: (step) => process.stdout.write(`rewound at ${step}\n`),
});
await store.pull(keys);
const hash = createHash('sha256');
for (const { into } of keys) hash.update(Uint8Array.from(new Uint8Array(into.view.buffer, into.view.byteOffset, into.byteLength)));
await store.barrier();
process.stdout.write(`hash ${hash.digest('hex')}\n`);
await store.close();
