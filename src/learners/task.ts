/** What learners train. Each process has it from the script that it runs. Types only. */
import type { ScheduleSpec } from '../base/index.ts';
import type { SessionOptions } from '../compute/index.ts';
import type { Dataset } from '../data/index.ts';
import type { Model } from '../graph/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';

export interface LearnerTask {
  readonly model: Model;
  readonly train: Dataset;
  /** Evaluated after every epoch. */
  readonly test?: Dataset | undefined;
  readonly optimizer: OptimizerSpec;
  /** Changes the learning rate by step. Default: the optimizer's own rate throughout. */
  readonly schedule?: ScheduleSpec | undefined;
  /** Samples in a batch of one learner. Default 32. */
  readonly batchSize?: number | undefined;
  /** Decides initial parameters, sample order and dropout. Default 0. */
  readonly seed?: number | undefined;
  /** See `ReplicaOptions.sparseUpdates`. Default 'exact'. */
  readonly sparseUpdates?: 'exact' | 'lazy' | undefined;
  /** Threads and execution provider of each learner. Default one thread on the CPU. */
  readonly session?: SessionOptions | undefined;
}
