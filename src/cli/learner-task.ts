/**
 * The task of `tributary train` as learner processes build it: from the checked configuration, which is plain data. Loaded by
 * name in each process, never imported by others. Invariant: every process gets the same model and the same samples.
 */
import type { LearnerTask } from '../learners/index.ts';
import { buildModel } from './build-model.ts';
import type { LearnerTaskData } from './learner-run.ts';
import { RunFolder } from './run-folder.ts';
import { resolveSchedule } from './schedule.ts';
import { loadTask } from './task.ts';

export function buildTask(data: LearnerTaskData): LearnerTask {
  const { config, isTrial } = data;
  const { model, train, test } = data.loaded?.() ?? load(data);
  return {
    ...{ model, train, test: isTrial ? undefined : test },
    ...{ optimizer: config.optimizer, schedule: resolveSchedule(config, train.length) },
    ...{ batchSize: config.batchSize, seed: config.seed, sparseUpdates: config.sparseUpdates },
    session: { threads: config.threads ?? 1, provider: config.provider ?? 'cpu' },
  };
}

function load({ config, wordsFrom }: LearnerTaskData): Pick<LearnerTask, 'model' | 'train' | 'test'> {
  const words = wordsFrom === undefined ? {} : new RunFolder(wordsFrom).readWords();
  const task = loadTask(config.data, config.seed, words);
  const { model, adapt } = buildModel(config, task);
  return { model, train: adapt(task.train), test: task.test && adapt(task.test) };
}
