export { LogReplay } from './log-replay.ts';
export type { ReplayStop } from './log-replay.ts';
export { PushLog } from './push-log.ts';
export type { PushLogOptions, StoredLog } from './push-log.ts';
export type {
  DensePushRecord,
  GradientPiece,
  LogRecord,
  OptimizerRecord,
  PushRecord,
  RowsPushRecord,
} from './push-record.ts';
export { ServerCheckpoints } from './server-checkpoints.ts';
export type { ServerCheckpointsOptions } from './server-checkpoints.ts';
export type { ElementRange, KeyState, ServerState, TensorState } from './server-state.ts';
