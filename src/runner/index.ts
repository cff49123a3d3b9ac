export { fit } from './fit.ts';
export type { FitEvent, FitOptions, FitResult } from './fit.ts';
export { WORKER_MARK } from '../launcher/index.ts';
export type { CheckpointEvent, CheckpointOptions } from './run-checkpoints.ts';
export { samplesOfStep } from './client-layout.ts';
export { getRunner, oneDevice } from './get-runner.ts';
export { readNonce } from './nonce.ts';
export { MODES, resolveOn } from './on.ts';
export type { GetRunnerOptions } from './get-runner.ts';
export type {
  Clients,
  Learners,
  LockStep,
  Mode,
  On,
  OnConsistency,
  OnLearners,
  OnWorkers,
  ResolvedOn,
  ServerAccess,
  Workers,
} from './on.ts';
export type { Machine } from './resources.ts';
export { Runner } from './runner.ts';
export type { RunnerConfig, RunOptions, StepReport } from './runner.ts';
export { shard, Shard } from './shard.ts';
