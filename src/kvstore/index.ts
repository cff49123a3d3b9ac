export type {
  KeyInit,
  KeyPull,
  KeyPush,
  KeyPushPull,
  KeyStatus,
  KVStore,
  OneOrMany,
  PushOptions,
  RecoverableStore,
  SeededKeyInit,
  StoreTensor,
} from './kv-store.ts';
export type { Updater } from '../server/index.ts';
export { createLocalStores } from './local-store.ts';
export type { LocalStoreOptions } from './local-store.ts';
export { linePumpOf } from './remote/line-pump.ts';
export { RemoteStore } from './remote/remote-store.ts';
export type { RemoteStoreOptions } from './remote/remote-store.ts';
export type { ElementSource, InitialKeyState, KeyState } from './remote/optimizer-state.ts';
export type { RemoteKeyStatus } from './remote/held-steps.ts';
export { elasticStep } from './elastic-step.ts';
export type { ElasticStepOptions, ElasticWeights } from './elastic-step.ts';
export { runSteps } from './run-steps.ts';
export type { RunStepsOptions } from './run-steps.ts';
export { createClientStore } from './client-store.ts';
export type { ClientStoreOptions } from './client-store.ts';
export { createCollectiveStore } from './collective-store.ts';
export type { CollectiveStoreOptions } from './collective-store.ts';
export { createRackStore } from './rack-store.ts';
export type { RackStoreOptions } from './rack-store.ts';
export type { BetweenRacks, RackBandwidths } from './rack-plan.ts';
export { clientOf, createStore, STORE_TYPES } from './create-store.ts';
export type { CreateStoreOptions, StoreType } from './create-store.ts';
