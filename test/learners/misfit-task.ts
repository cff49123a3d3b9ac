/** A task whose data may be wider or narrower than its model, which takes 4 numbers. */
import { Dataset } from '../../src/data/index.ts';
import type { LearnerTask } from '../../src/learners/index.ts';
import { mlp } from '../../src/models/index.ts';

export function buildTask({ train, test }: { readonly train: number; readonly test: number }): LearnerTask {
  return {
    model: mlp({ inputShape: [4], hidden: [8], classes: 2 }),
    ...{ train: points(train), test: points(test) },
    optimizer: { name: 'sgd', lr: 0.1 },
  };
}

/** Fewer than a batch. */
function points(width: number): Dataset {
  return new Dataset([
    { name: 'x', data: new Float32Array(7 * width), sampleShape: [width] },
    { name: 'labels', data: new Int32Array(7) },
  ]);
}
