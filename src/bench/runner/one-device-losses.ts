/**
 * The first losses of a training on one device, which all sides of `bench runner` that share batches must come to: the proof that
 * they do the same work. Times nothing. Invariant: the batch of a step, the initial parameters and the update are those of the runner
 * with the same seed.
 */
import { OnnxCompute } from '../../compute/index.ts';
import { openLoader, SampleOrder, type Dataset } from '../../data/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import { Replica } from '../../runtime/index.ts';
import { TRAINING, type DescribedModel } from './runner-models.ts';

export interface OneDevice {
  /** By name, before the first step. */
  readonly parameters: ReadonlyMap<
    string,
    { readonly shape: readonly number[]; readonly data: Float32Array }
  >;
  /** Of each step, over the whole batch. */
  readonly losses: readonly number[];
}

export interface OneDeviceOptions {
  readonly dataset: Dataset;
  readonly workers: number;
  /** Over all workers. */
  readonly batchSize: number;
  readonly steps: number;
}

/** Where statistics of a batch are part of the loss, the shares of the workers are computed one after the other; else the whole batch at once. */
export async function trainOnOneDevice(
  described: DescribedModel,
  { dataset, workers, batchSize, steps }: OneDeviceOptions,
): Promise<OneDevice> {
  const parts = described.hasBatchStatistics ? workers : 1;
  const compute = new OnnxCompute({ threads: 1 });
  const replica = new Replica(described.build(), {
    ...{ compute, space: SharedSpace.create(), ...TRAINING, maxBatch: batchSize / parts },
  });
  const columns = [...replica.memory.inputs.keys()];
  const loaders = Array.from({ length: parts }, (_, index) => {
    const order = new SampleOrder(dataset.length, { seed: TRAINING.seed });
    return openLoader({ dataset, order, batchSize, columns, part: { index, count: parts } });
  });
  try {
    const parameters = new Map(
      [...replica.model.graph.parameters].map(([name, { shape }]) => [
        name,
        { shape, data: replica.memory.parameters.get(name)!.view.slice() },
      ]),
    );
    const { exchanged } = replica.memory;
    const losses: number[] = [];
    for (let step = 0; step < steps; step++) {
      let loss = 0;
      const mean = new Float32Array(exchanged.length);
      for (const loader of loaders) {
        loss += replica.computeGradients(loader.next(replica.inputs).samples) / parts;
        exchanged.view.forEach((value, i) => (mean[i]! += value / parts));
      }
      exchanged.view.set(mean);
      replica.update();
      losses.push(loss);
    }
    return { parameters, losses };
  } finally {
    await Promise.all(loaders.map((loader) => loader.close()));
    replica.close();
    compute.close();
  }
}
