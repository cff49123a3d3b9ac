export { CheckpointStore } from './checkpoint-store.ts';
export type {
  CheckpointStoreOptions,
  LatestCheckpoint,
  SkippedCheckpoint,
  UsedFolderOptions,
} from './checkpoint-store.ts';
export { loadCheckpoint } from './checkpoint.ts';
export type { CheckpointData, CheckpointToWrite, LoadedCheckpoint } from './checkpoint.ts';
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
export type {
  StoredTensor,
  StreamedTensor,
  TensorArray,
  TensorData,
  TensorType,
  Tensors,
  TensorsToWrite,
} from './tensor-data.ts';
