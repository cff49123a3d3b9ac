export { Aggregator } from './aggregation.ts';
export type { Combine } from './aggregation.ts';
export type { Consistency } from './consistency.ts';
export type { PushReply } from './contribution.ts';
export type { ChunkRange, KeyOptions } from './key.ts';
export { ServerCore } from './server-core.ts';
export type { DensePush, RowsPush, ServerCoreOptions } from './server-core.ts';
export { accumulationRule, optimizerRule } from './update-rule.ts';
export type { ChunkUpdate, RowsUpdate, UpdateRule } from './update-rule.ts';
