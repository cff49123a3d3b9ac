export { CheckpointStore } from './checkpoint-store.ts';
export type {
  CheckpointStoreOptions,
  LatestCheckpoint,
  SkippedCheckpoint,
  UsedFolderOptions,
} from './checkpoint-store.ts';
export { loadCheckpoint } from './checkpoint.ts';
export type { CheckpointData } from './checkpoint.ts';
export type { JsonValue } from './json.ts';
export {
  beyondEnd,
  carriedOver,
  checkRunState,
  doneBatches,
  isWithinEpoch,
  placeOf,
  readRunState,
  stepOffsetOf,
  writeRunState,
} from './run-state.ts';
export type { RunState } from './run-state.ts';
export { formatSafetensors, parseSafetensors } from './safetensors.ts';
export type { SafetensorsFile } from './safetensors.ts';
export type { TensorArray, TensorData, TensorType, Tensors } from './tensor-data.ts';
