/**
 * What `bench merge` trains: models of at least eight layers on made-up samples, so that merging has something to choose from. Built
 * alike in every worker. Measures nothing.
 */
import { Random } from '../../base/index.ts';
import { Dataset } from '../../data/index.ts';
import type { Model } from '../../graph/index.ts';
import { mlp, resnet } from '../../models/index.ts';

export const MERGE_MODELS = ['mlp', 'resnet'] as const;
export type MergeModel = (typeof MERGE_MODELS)[number];

interface Described {
  readonly title: string;
  readonly sampleShape: readonly number[];
  readonly build: () => Model;
}

const CLASSES = 10;
const SAMPLES = 512;

export const mergeModels: Readonly<Record<MergeModel, Described>> = {
  mlp: {
    title: 'MLP, 12 layers of 384',
    sampleShape: [384],
    build: () => mlp({ inputShape: [384], classes: CLASSES, hidden: Array<number>(12).fill(384) }),
  },
  resnet: {
    title: 'ResNet on 3 x 16 x 16',
    sampleShape: [3, 16, 16],
    build: () => resnet({ inputShape: [3, 16, 16], classes: CLASSES }),
  },
};

/** The same on all workers: only times are measured, but replicas are compared. */
export function mergeSamples({ sampleShape }: Described): Dataset {
  const random = new Random(1);
  const size = sampleShape.reduce((product, dim) => product * dim, 1);
  return new Dataset([
    {
      name: 'x',
      data: Float32Array.from({ length: SAMPLES * size }, () => random.uniform() - 0.5),
      sampleShape,
    },
    { name: 'labels', data: Int32Array.from({ length: SAMPLES }, (_, i) => i % CLASSES) },
  ]);
}
