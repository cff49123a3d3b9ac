/**
 * What learners train. A model cannot be sent to another process, so each process builds the task by itself, from the same
 * module and the same plain data. Types, and the one function that loads the module.
 */
import { UsageError } from '../base/index.ts';
import type { ScheduleSpec } from '../base/index.ts';
import type { SessionOptions } from '../compute/index.ts';
import type { Dataset } from '../data/index.ts';
import type { Model } from '../graph/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import { checkRunData } from '../runner/index.ts';

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

/** Where a task comes from: a module with a function `buildTask`, and what it is given. */
export interface TaskSource {
  /** URL of the module. */
  readonly module: string;
  /** Plain data, which can be written as JSON. */
  readonly data: unknown;
}

const EXPORT = 'export a function buildTask(data) that returns { model, train, test, optimizer, batchSize }';

/** Of the watchdog and of each process: a task whose data does not fit its model is refused before anybody trains. */
export async function loadTask({ module, data }: TaskSource): Promise<LearnerTask> {
  const loaded = await importTask(module);
  if (typeof loaded.buildTask !== 'function') {
    throw new UsageError('INVALID_ARGUMENT', `${module} has no function buildTask; ${EXPORT}`, { module });
  }
  const task = await (loaded.buildTask as (data: unknown) => LearnerTask | Promise<LearnerTask>)(data);
  checkRunData(task.model, task);
  return task;
}

async function importTask(module: string): Promise<{ readonly buildTask?: unknown }> {
  try {
    return (await import(module)) as { readonly buildTask?: unknown };
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    // The first may also be about something that the module imports; learners run without tsx and meet the second.
    if (code !== 'ERR_MODULE_NOT_FOUND' && code !== 'ERR_UNKNOWN_FILE_EXTENSION') throw cause;
    throw new UsageError(
      'FILE_NOT_FOUND',
      `the task of the learners, ${module}, cannot be loaded: ${message}; check source.module, which must be the URL of a module that Node itself can load, and what it imports; ${EXPORT}`,
      { module },
      cause,
    );
  }
}
