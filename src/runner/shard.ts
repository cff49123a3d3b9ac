/**
 * `shard`: marks a dataset of which every worker takes its own part (Parallax, section 4.1). Which part is decided when a
 * runner goes through it: the share of each batch, so that all workers together see the batches of one device.
 */
import type { Dataset } from '../data/index.ts';

export class Shard {
  readonly dataset: Dataset;

  constructor(dataset: Dataset) {
    this.dataset = dataset;
  }
}

export function shard(dataset: Dataset): Shard {
  return new Shard(dataset);
}
