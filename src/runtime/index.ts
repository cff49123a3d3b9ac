export { inputWithSameBytes } from './backward.ts';
export { Replica } from './replica.ts';
export type { ReplicaOptions, Snapshot } from './replica.ts';
export { Evaluator } from './evaluator.ts';
export { needsGradientHere, partOf } from './update.ts';
export type { GradientsElsewhere } from './update.ts';
export { weightBytes, workBytes } from './model-memory.ts';
export type { DensePlace, GradientPlace, ModelMemory, SparsePlace } from './model-memory.ts';
export * from './checkpoint/index.ts';
