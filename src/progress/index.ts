export type { CallHandler } from './conversation.ts';
export { FINISHED } from './operation.ts';
export type { Call, Handle, Members, Operation, Steps } from './operation.ts';
export { Progress } from './progress.ts';
export type { Loss, ProgressOptions, StartOptions } from './progress.ts';
export type { StallReport } from './stall.ts';
