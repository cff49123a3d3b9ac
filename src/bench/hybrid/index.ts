export { gainText, hybridChart } from './chart.ts';
export { benchHybrid, HYBRID_LINKS } from './hybrid.ts';
export type { HybridBenchOptions, HybridLink } from './hybrid.ts';
export { casesOf } from './hybrid-case.ts';
export type { HybridBench, HybridCase } from './hybrid-case.ts';
export { HYBRID_MODELS } from './hybrid-models.ts';
export type { HybridModel } from './hybrid-models.ts';
