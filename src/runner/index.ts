export { fit } from './fit.ts';
export type { FitEvent, FitOptions, FitResult } from './fit.ts';
export { argmax, evaluate, meanLoss } from './evaluate.ts';
export type { Evaluation, EvaluateOptions } from './evaluate.ts';
export { getRunner, oneDevice } from './get-runner.ts';
export type { Machine, Resources } from './resources.ts';
export { Runner } from './runner.ts';
export type { RunnerConfig, RunOptions, StepReport } from './runner.ts';
export { shard, Shard } from './shard.ts';
