/** A worker process for tests that kill it: trains the made-up model and says each step, and its parameters' hash at the end. */
import { RemoteStore, runSteps } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { Limit, listen, readAssignment, say } from './kill-program.ts';
import { MadeUpModel } from './made-up-training.ts';

export interface TrainingAssignment {
  readonly store: RemoteStoreOptions;
  readonly steps: number;
  readonly checkpointEvery: number;
  /** The last step that may be done until a line says another one. */
  readonly upTo: number;
}

const { store: options, steps, checkpointEvery, upTo } = readAssignment<TrainingAssignment>();
say('loaded');
const limit = new Limit(upTo);
const stopListening = listen((line) => limit.raise(Number(line)));
const store = await RemoteStore.connect(options);
const model = await MadeUpModel.open(store);
await runSteps(store, {
  ...{ steps, checkpointEvery },
  step: async (step, isFirst) => {
    await limit.reached(step);
    await model.step(step, isFirst);
    say('step', { step });
  },
  onRewind: (step) => say('rewound', { step }),
});
const hash = await model.hash();
await store.barrier();
say('trained', { hash });
await store.close();
stopListening();
