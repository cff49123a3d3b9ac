/** Real digits for real accuracies: a part of MNIST by the network of the ready-made run. Built in each process alike. */
import { findMnist, loadMnist } from '../../src/data/index.ts';
import type { LearnerTask } from '../../src/learners/index.ts';
import { findModel, recipes, recipeSchedule } from '../../src/models/index.ts';

export interface DigitsData {
  /** Of an epoch. */
  readonly samples: number;
  readonly testSamples: number;
  readonly batchSize: number;
  readonly epochs: number;
}

export function buildTask({ samples, testSamples, batchSize, epochs }: DigitsData): LearnerTask {
  const { mnist } = recipes;
  const { train, test } = loadMnist(findMnist(import.meta.url));
  return {
    model: findModel(mnist.model).build({ inputShape: [1, 28, 28], classes: 10, ...mnist.options }),
    train: train.slice(0, samples),
    test: test.slice(0, testSamples),
    ...{ batchSize, optimizer: mnist.optimizer, sparseUpdates: mnist.sparseUpdates },
    schedule: recipeSchedule(mnist, epochs * Math.ceil(samples / batchSize)),
  };
}
