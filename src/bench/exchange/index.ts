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
