/** Comparisons with other systems: the peers of `tributary bench compute`, how they are started and spoken with. */
export * from './peer-command.ts';
export * from './peer-process.ts';
export * from './peer-tensors.ts';
export { benchCompute } from './compute.ts';
export type { ComputeBench, ComputeBenchOptions, ComputeCase } from './compute.ts';
export { benchAllReduce, curves, formatBytes } from './allreduce/index.ts';
export type {
  AllReduceBench,
  AllReduceBenchOptions,
  AllReduceCase,
  BenchTransport,
} from './allreduce/index.ts';
export { barChart } from './bar-chart.ts';
export type { Bar, BarChartOptions } from './bar-chart.ts';
export { describeMachine } from './machine.ts';
export type { Machine } from './machine.ts';
export {
  benchExchange,
  chunkSweepChart,
  EXCHANGE_PEERS,
  exchangeModels,
  PLACEMENTS,
  SWEEPS,
  tenantsChart,
} from './exchange/index.ts';
export type {
  AssignmentCase,
  ExchangeBench,
  ExchangeBenchOptions,
  ExchangeCase,
  ExchangePeer,
  ExchangeTransport,
  Placement,
  NeighbourCase,
  RowsCase,
  Sweep,
} from './exchange/index.ts';
export { benchHybrid, gainText, HYBRID_LINKS, HYBRID_MODELS, hybridChart } from './hybrid/index.ts';
export type { HybridBench, HybridBenchOptions, HybridCase, HybridLink, HybridModel } from './hybrid/index.ts';
export { benchMerge, MERGE_LINKS, MERGE_MODELS, mergeChart } from './merge/index.ts';
export type { MergeBench, MergeBenchOptions, MergeCase, MergeLink, MergeModel } from './merge/index.ts';
export { benchRunner, RUNNER_MODELS, runnerChart } from './runner/index.ts';
export type { RunnerBench, RunnerBenchOptions, RunnerCase, RunnerModel } from './runner/index.ts';
export { benchScaleup, SCALEUP_MODES, SCALEUP_PEERS, scaleupChart } from './scaleup/index.ts';
export type { ScaleupBench, ScaleupBenchOptions, ScaleupCase, ScaleupPeer } from './scaleup/index.ts';
