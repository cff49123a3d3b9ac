export { chunkSweepChart, tenantsChart } from './chart.ts';
export type { ChartSubject, ChunkPoint, TenantPoint } from './chart.ts';
export {
  checksum,
  CHECKED_EXCHANGES,
  expectedWeights,
  fillGradient,
  formatChecksum,
  hasWeights,
  LEARNING_RATE,
  MOMENTUM,
} from './known-exchange.ts';
export { measureMemoryBandwidth } from './memory-bound.ts';
export type { MemoryBandwidthOptions } from './memory-bound.ts';
export { elementsOf, exchangeModels } from './models.ts';
export type { ModelName, ModelTensor } from './models.ts';
export {
  GLOO_VARIANTS,
  glooExchangeGroup,
  isModelName,
  OPEN_MPI_VARIANTS,
  openMpiExchangeGroup,
  parseModel,
} from './peer-commands.ts';
export type { ExchangePeerOptions, ExchangeTransport, GlooExchangeOptions } from './peer-commands.ts';
export { ASSIGNMENTS, measureAssignments } from './assignment.ts';
export type { Assignment, AssignmentOptions } from './assignment.ts';
export { benchExchange } from './exchange.ts';
export type { ExchangeBenchOptions } from './exchange.ts';
export { SWEEPS } from './exchange-case.ts';
export type {
  AssignmentCase,
  ExchangeBench,
  ExchangeCase,
  NeighbourCase,
  RowsCase,
  Sweep,
} from './exchange-case.ts';
export { planPlacement, PLACEMENTS } from './placement.ts';
export type { Placement } from './placement.ts';
export { EXCHANGE_PEERS } from './peer-sides.ts';
export type { ExchangePeer } from './peer-sides.ts';
export { rowSets } from './rows-tenant.ts';
