/**
 * The names of all options of a runner and of its runs, by which misspelt ones are refused. What they mean is in
 * `runner.ts`.
 */
import type { OptionNames } from '../base/index.ts';
import type { RunnerConfig, RunOptions } from './runner.ts';

export const RUNNER_OPTIONS: OptionNames<RunnerConfig> = {
  optimizer: true,
  schedule: true,
  batchSize: true,
  seed: true,
  sparseUpdates: true,
  serverTables: true,
  session: true,
  unusedParameters: true,
  compareEverySteps: true,
  trace: true,
  log: true,
  onEvent: true,
  checkpointDirectory: true,
  checkpointEverySteps: true,
  resume: true,
  overwrite: true,
  bucketBytes: true,
  averageDense: true,
  averageSparse: true,
  localAggregation: true,
  boundaryAmongServers: true,
  boundaryBetweenWorkersAndServers: true,
};

export const RUN_OPTIONS: OptionNames<RunOptions> = { epochs: true, maxSteps: true, signal: true };
