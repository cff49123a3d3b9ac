/**
 * What `bench merge` trains: models of at least eight layers on made-up samples, so that merging has something to choose from. Built
 * alike in every worker. Measures nothing.
 */
import type { Dataset } from '../../data/index.ts';
import type { Model } from '../../graph/index.ts';
import { mlp, resnet } from '../../models/index.ts';
import { madeUpImages } from '../made-up-images.ts';

export const MERGE_MODELS = ['mlp', 'resnet'] as const;
export type MergeModel = (typeof MERGE_MODELS)[number];

interface Described {
  readonly title: string;
  /** Samples in a batch of one worker: enough that the backward pass takes about as long as the exchange at 1 Gbit/s. */
  readonly batchEach: number;
  readonly sampleShape: readonly number[];
  readonly build: () => Model;
}

const CLASSES = 10;
const SAMPLES = 2048;

export const mergeModels: Readonly<Record<MergeModel, Described>> = {
  mlp: {
    title: 'MLP, 12 layers of 384',
    batchEach: 512,
    sampleShape: [384],
    build: () => mlp({ inputShape: [384], classes: CLASSES, hidden: Array<number>(12).fill(384) }),
  },
  resnet: {
    title: 'ResNet of width 48',
    batchEach: 8,
    sampleShape: [3, 16, 16],
    build: () => resnet({ inputShape: [3, 16, 16], classes: CLASSES, width: 48 }),
  },
};

export function mergeSamples({ sampleShape }: Described): Dataset {
  return madeUpImages({ sampleShape, samples: SAMPLES, classes: CLASSES });
}
