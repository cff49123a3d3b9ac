/** A task that learners can learn in a second: which of four corners a noisy point belongs to. Built in each process alike. */
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import type { LearnerTask } from '../../src/learners/index.ts';
import { findModel } from '../../src/models/index.ts';

export interface TinyData {
  readonly samples: number;
  readonly batchSize: number;
  readonly seed: number;
  /** The sample whose input is not a number. */
  readonly brokenSample?: number;
}

const SIZE = 16;

export function buildTask(data: TinyData): LearnerTask {
  const { samples, batchSize, seed, brokenSample } = data;
  return {
    model: findModel('mlp').build({ inputShape: [SIZE], hidden: [32], classes: 4 }),
    train: points(samples, 1, brokenSample),
    test: points(500, 2),
    optimizer: { name: 'adam', lr: 0.01 },
    ...{ batchSize, seed, sparseUpdates: 'lazy' },
  };
}

function points(count: number, seed: number, broken?: number): Dataset {
  const random = new Random(seed);
  const inputs = new Float32Array(count * SIZE);
  const labels = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    const label = random.below(4);
    labels[i] = label;
    for (let j = 0; j < SIZE; j++) {
      inputs[i * SIZE + j] = (j % 4 === label ? 1 : 0) + random.normal() * 0.8;
    }
    if (i === broken) inputs[i * SIZE] = NaN;
  }
  return new Dataset([
    { name: 'x', sampleShape: [SIZE], data: inputs },
    { name: 'labels', sampleShape: [], data: labels },
  ]);
}
