export { keptSurely, newerCommon } from './checkpoint-folder.ts';
export type { Common, Kept } from './checkpoint-folder.ts';
export { LogChain } from './log-chain.ts';
export type { ChainOptions } from './log-chain.ts';
export { LogReplay, readLogOrigin } from './log-replay.ts';
export type { LogOrigin, ReplayStop } from './log-replay.ts';
export { LogRoom } from './log-room.ts';
export { bytesOfLog, listLogs, PushLog } from './push-log.ts';
export type { PushLogOptions, StoredLog } from './push-log.ts';
export type {
  DensePushRecord,
  GradientPiece,
  LogRecord,
  OptimizerRecord,
  PushRecord,
  RowsPushRecord,
  SkippedPushRecord,
  ValuesRecord,
} from './push-record.ts';
export { ServerCheckpoints } from './server-checkpoints.ts';
export type { ServerCheckpointsOptions } from './server-checkpoints.ts';
export type { CoreState, ElementRange, KeyState, ServerState, TensorState } from './server-state.ts';
