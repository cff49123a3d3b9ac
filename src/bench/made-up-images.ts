/** Samples of chance for benchmarks that train on them: the same in every process, as workers compare their replicas. */
import { Random } from '../base/index.ts';
import { Dataset } from '../data/index.ts';

export interface MadeUpImagesOptions {
  readonly sampleShape: readonly number[];
  readonly samples: number;
  readonly classes: number;
}

/** The columns `x`, within 0.5 of zero, and `labels`. */
export function madeUpImages({ sampleShape, samples, classes }: MadeUpImagesOptions): Dataset {
  const random = new Random(1);
  const size = sampleShape.reduce((product, dim) => product * dim, 1);
  const data = Float32Array.from({ length: samples * size }, () => random.uniform() - 0.5);
  return new Dataset([
    { name: 'x', data, sampleShape },
    { name: 'labels', data: Int32Array.from({ length: samples }, (_, i) => i % classes) },
  ]);
}
