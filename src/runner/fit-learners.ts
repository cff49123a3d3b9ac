/**
 * `fit` by learners: from its options to a run of learner processes, and back to its result. In a process that was started as a
 * learner the call does that process's work instead, and does not return. Trains nothing itself.
 * Invariant: an option that learners cannot keep is refused by name before any of them is started.
 */
import { UsageError } from '../base/index.ts';
import type { Model } from '../graph/index.ts';
import {
  learnIfAssigned,
  trainByLearners,
  updateModeNamed,
  type TrainEvent,
  type TrainResult,
} from '../learners/index.ts';
import type { FitOptions, FitResult } from './fit.ts';
import { checkModel } from './model-checks.ts';
import type { OnLearners } from './on.ts';

/** What only learners tell. */
export type LearnersEvent = Extract<TrainEvent, { readonly type: 'learner-lost' | 'restarted' }>;

/** What only learners have to say of a run. */
export interface LearnersReport extends Pick<
  TrainResult,
  'samples' | 'meanStaleness' | 'replacements' | 'restarts'
> {
  /** Processes that trained. */
  readonly count: number;
}

export async function fitByLearners(model: Model, options: FitOptions, on: OnLearners): Promise<FitResult> {
  checkModel(model, options, 1);
  const { train, test, optimizer, schedule, batchSize, seed, sparseUpdates, session } = options;
  const task = { model, train, test, optimizer, schedule, batchSize, seed, sparseUpdates, session };
  // However many the script asks for there: one of them is what it is.
  await learnIfAssigned(task);
  const count = checkLearners(options, on);
  const { checkpointDirectory, checkpointEverySteps, resume, overwrite, epochs, maxSteps } = options;
  const { maxReplacements, maxRestarts, stallMs, startMs, segmentDirectory } = on;
  const { log, signal, onEvent, progressIntervalMs } = options;
  const result = await trainByLearners(task, {
    ...{ learners: count, mode: updateModeNamed(on.update, on.appliedBy), epochs, maxSteps },
    ...{ maxReplacements, maxRestarts, stallMs, startMs, segmentDirectory },
    ...{ checkpointDirectory, checkpointEverySteps, resume, overwrite },
    ...{ log, signal, onEvent, progressIntervalMs },
  });
  const { replica, steps, finished, evaluation, samplesPerSec, checkpointPath } = result;
  const { samples, meanStaleness, replacements, restarts } = result;
  return {
    ...{ replica, steps, finished, evaluation, samplesPerSec, checkpointPath, workers: 1 },
    learners: { count, samples, meanStaleness, replacements, restarts },
    close: () => Promise.resolve(result.close()),
  };
}

function checkLearners({ trace, on }: FitOptions, { learners }: OnLearners): number {
  if (trace !== undefined) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      'trace is of the steps of workers or of one process, and on asks for learners, which have no steps in common; leave out trace, or give on: { workers: 2 }',
      { trace },
    );
  }
  if (learners !== 'auto') return learners;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${on === 'auto' ? "on is 'auto', so " : ''}learners are 'auto', which only tributary train finds out; give their number, such as on: { learners: 2 }`,
  );
}
