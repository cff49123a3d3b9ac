export * from './clip.ts';
export * from './codecs.ts';
export { averageSlot } from './key-operations.ts';
export type { AverageOperation, GradientOperation, KeyOperations } from './key-operations.ts';
export { Kernels } from './kernels.ts';
export type { DropoutOptions, Reducible, ReduceOperation } from './kernels.ts';
export { createOptimizer, SUM_SCRATCH_ELEMENTS } from './optimizer.ts';
export type {
  Optimizer,
  RowSource,
  Slots,
  SumAndUpdateRowsStep,
  SumAndUpdateStep,
  UpdateRowsStep,
  UpdateStep,
} from './optimizer.ts';
export {
  guarded,
  isOwnRule,
  loadOwnRules,
  NO_RULES,
  notFiniteAt,
  ownAggregatorOf,
  ruleFailed,
} from './own-rules.ts';
export type {
  AggregatedPiece,
  OwnAggregator,
  OwnRule,
  OwnRules,
  OwnRuleSpec,
  PlainValue,
  RulePiece,
} from './own-rules.ts';
export { resolveOptimizerSpec } from './optimizer-spec.ts';
export type {
  AdadeltaSpec,
  AdagradSpec,
  AdamSpec,
  AdamwSpec,
  OptimizerSpec,
  ResolvedOptimizerSpec,
  RmspropSpec,
  SgdSpec,
} from './optimizer-spec.ts';
export {
  addRows,
  allocateRowPlan,
  blendRows,
  copyRows,
  numberRows,
  planRows,
  rowPlanBytes,
  sumRows,
} from './rows.ts';
export type {
  AddRowsOptions,
  BlendRowsOptions,
  NumberRowsOptions,
  PlanRowsOptions,
  RowPlan,
  SumRowsOptions,
} from './rows.ts';
