/**
 * What PyTorch is given in `bench runner`: our initial parameters, our samples in the order in which we train on them, and the losses
 * that it must come to. Files that peers/ddp_models_peer.py reads. Starts nothing.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SampleOrder, sampleSize, type Dataset } from '../../data/index.ts';
import { toPeerTensor } from '../compute-models.ts';
import { writePeerTensors, type PeerTensor } from '../peer-tensors.ts';
import type { OneDevice } from './one-device-losses.ts';
import { TRAINING, type RunnerModel } from './runner-models.ts';

export interface PeerTaskOptions {
  readonly model: RunnerModel;
  readonly dataset: Dataset;
  readonly oneDevice: OneDevice;
  /** Of each worker. */
  readonly batch: number;
  /** The losses are those of so many ranks. */
  readonly workers: number;
  /** Of this run alone. */
  readonly folder: string;
}

/** Returns the path of the task. */
export async function writePeerTask(options: PeerTaskOptions): Promise<string> {
  const { model, dataset, oneDevice, batch, workers, folder } = options;
  const parameters = [...oneDevice.parameters].map(([name, { shape, data }]) =>
    toPeerTensor(name, shape, data),
  );
  const { samples } = new SampleOrder(dataset.length, { seed: TRAINING.seed }).draw(dataset.length);
  const columns = ['x', 'labels'].map((name) => columnOf(dataset, name, samples));
  const stem = `${model}-${workers}`;
  const tensors = await writePeerTensors(folder, stem, [...parameters, ...columns]);
  const task = join(folder, `${stem}-task.json`);
  const { lr } = TRAINING.optimizer;
  await writeFile(
    task,
    JSON.stringify({ model, tensors, columns: columns.length, batch, workers, lr, losses: oneDevice.losses }),
  );
  return task;
}

/** All samples, in this order. */
function columnOf(dataset: Dataset, name: string, samples: Uint32Array): PeerTensor {
  const column = dataset.column(name);
  const isInteger = column.data instanceof Int32Array;
  const data = new (isInteger ? Int32Array : Float32Array)(samples.length * sampleSize(column.sampleShape));
  dataset.read(samples, name, data);
  return { name, shape: [samples.length, ...column.sampleShape], data };
}
