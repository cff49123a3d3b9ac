export { fit } from './fit.ts';
export type { FitEvent, FitOptions, FitResult } from './fit.ts';
export { argmax, evaluate, meanLoss } from './evaluate.ts';
export type { Evaluation, EvaluateOptions } from './evaluate.ts';
