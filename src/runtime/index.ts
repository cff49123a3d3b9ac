export { inputWithSameBytes, whyNeededWhole } from './row-buffer.ts';
export type { RowBuffer } from './row-buffer.ts';
export { Replica } from './replica.ts';
export type { ReplicaOptions, Snapshot } from './replica.ts';
export { checkColumns, checkRunData } from './column-check.ts';
export { argmax, evaluate, evaluateRemotely, evaluationOf, meanLoss, NOTHING_EVALUATED } from './evaluate.ts';
export type { EvaluateOptions, Evaluation } from './evaluate.ts';
export { Evaluator } from './evaluator.ts';
export { someSamples } from './some-samples.ts';
export { StepWalk } from './step-walk.ts';
export type {
  ComputeHandler,
  Handler,
  HandlerOf,
  LaneHandler,
  MovedMessage,
  StepWalkOptions,
} from './step-walk.ts';
export { replicaOperations, StepContext } from './replica-operations.ts';
export { NOTHING_ELSEWHERE, operationsElsewhere, partOf, seesTouchedRows } from './update.ts';
export type { GradientsElsewhere } from './update.ts';
export { weightBytes, workBytes } from './model-memory.ts';
export type { DensePlace, GradientPlace, ModelMemory, SparsePlace } from './model-memory.ts';
export * from './checkpoint/index.ts';
