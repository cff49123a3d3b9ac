/**
 * The public interface of the package: models written in code or taken from the catalogue, datasets, and `fit`, which
 * trains one on the other; clusters of processes and the collectives between them. What is not exported here may change without notice.
 */
export {
  deriveSeed,
  ErrorCodes,
  InternalError,
  learningRateAt,
  packageVersion,
  PeerError,
  PlateauSchedule,
  Random,
  TributaryError,
  UsageError,
} from './base/index.ts';
export type { ErrorCode, Facts, PlateauOptions, PlateauState, ScheduleSpec, StoreKey } from './base/index.ts';
export * from './graph/index.ts';
export * from './data/index.ts';
export * from './models/index.ts';
export { fit, getRunner, oneDevice, Runner, shard } from './runner/index.ts';
export type {
  FitEvent,
  FitOptions,
  FitResult,
  GetRunnerOptions,
  Learners,
  Machine,
  Mode,
  On,
  OnConsistency,
  RunnerConfig,
  RunOptions,
  ServerAccess,
  StepReport,
  Workers,
} from './runner/index.ts';
// Not `argmax`: the graph's operation has that name.
export {
  evaluate,
  Evaluator,
  Replica,
  CheckpointStore,
  formatSafetensors,
  loadCheckpoint,
  parseSafetensors,
} from './runtime/index.ts';
export type {
  CheckpointData,
  EvaluateOptions,
  Evaluation,
  ReplicaOptions,
  Snapshot,
  TensorData,
  Tensors,
} from './runtime/index.ts';
export type { OptimizerSpec, OwnRule, OwnRuleSpec, RulePiece } from './kernels/index.ts';
export type { SessionOptions } from './compute/index.ts';
export { OnnxCompute } from './compute/index.ts';
export { SharedSpace } from './memory/index.ts';
// The graph's `DType` has that name; a region may hold more types.
export type { DType as RegionDType, Region } from './memory/index.ts';
export * from './collectives/index.ts';
export { Cluster, Group, Scheduler } from './cluster/index.ts';
export type { ClusterEvents, SchedulerOptions } from './cluster/index.ts';
export type { Handle, StallReport } from './progress/index.ts';
export { CommunicationThread } from './communication/index.ts';
export { joinCluster, joinMpiJob } from './launcher/index.ts';
export type { JoinClusterOptions, JoinMpiJobOptions, TransportChoice } from './launcher/index.ts';
export {
  createClientStore,
  createCollectiveStore,
  createLocalStores,
  createRackStore,
  createStore,
  elasticStep,
  RemoteStore,
  runSteps,
  STORE_TYPES,
} from './kvstore/index.ts';
export type {
  BetweenRacks,
  ClientStoreOptions,
  CollectiveStoreOptions,
  CreateStoreOptions,
  ElasticStepOptions,
  ElasticWeights,
  KeyInit,
  KeyPull,
  KeyPush,
  KeyPushPull,
  KeyStatus,
  KVStore,
  LocalStoreOptions,
  PushOptions,
  RackBandwidths,
  RackStoreOptions,
  RecoverableStore,
  RemoteStoreOptions,
  RunStepsOptions,
  StoreTensor,
  StoreType,
  Updater,
} from './kvstore/index.ts';
export type { ReductionChoice } from './plan/index.ts';
export { ParameterServer } from './server/index.ts';
export type {
  Combine,
  Consistency,
  ParameterServerOptions,
  RowsMode,
  ServiceAccess,
  ServiceOptions,
  ServiceSettings,
} from './server/index.ts';
export { defineConfig } from './cli/index.ts';
export type {
  DataConfig,
  DataFacts,
  ModelConfig,
  ModelFunction,
  ScheduleConfig,
  TrainConfig,
} from './cli/index.ts';
