/**
 * What `bench runner` trains: ready models on made-up images, built alike in every process. Measures nothing.
 * Invariant: an epoch has only whole batches, over all workers and for one alone, so that no step is shorter than another.
 */
import { Random } from '../../base/index.ts';
import { Dataset } from '../../data/index.ts';
import type { Model } from '../../graph/index.ts';
import { lenet, resnet } from '../../models/index.ts';

export const RUNNER_MODELS = ['cnn', 'resnet'] as const;
export type RunnerModel = (typeof RUNNER_MODELS)[number];

export interface DescribedModel {
  readonly title: string;
  readonly sampleShape: readonly number[];
  readonly build: () => Model;
  /** Its loss depends on which samples are computed together: statistics of a batch are those of each worker's share. */
  readonly hasBatchStatistics: boolean;
  /** Ways of the same work in PyTorch; the fastest one counts. */
  readonly torchVariants: readonly string[];
}

const CLASSES = 10;
const BATCHES = 16;

export const runnerModels: Readonly<Record<RunnerModel, DescribedModel>> = {
  cnn: {
    title: 'CNN (LeNet) on 1 x 28 x 28',
    sampleShape: [1, 28, 28],
    build: () => lenet({ inputShape: [1, 28, 28], classes: CLASSES }),
    hasBatchStatistics: false,
    torchVariants: ['plain', 'channels_last', 'pool_first', 'channels_last+pool_first'],
  },
  resnet: {
    title: 'ResNet on 3 x 32 x 32',
    sampleShape: [3, 32, 32],
    build: () => resnet({ inputShape: [3, 32, 32], classes: CLASSES }),
    hasBatchStatistics: true,
    torchVariants: ['plain', 'channels_last'],
  },
};

/** Of the training. Nobody clips or decays: the exchange is what is compared. */
export const TRAINING = { optimizer: { name: 'sgd', lr: 0.01 }, seed: 1 } as const;

/** `batchSize` is that of all workers together. */
export function madeUpImages({ sampleShape }: DescribedModel, batchSize: number): Dataset {
  const random = new Random(TRAINING.seed);
  const samples = BATCHES * batchSize;
  const size = sampleShape.reduce((product, dim) => product * dim, 1);
  return new Dataset([
    {
      name: 'x',
      data: Float32Array.from({ length: samples * size }, () => random.normal()),
      sampleShape,
    },
    { name: 'labels', data: Int32Array.from({ length: samples }, () => random.below(CLASSES)) },
  ]);
}
