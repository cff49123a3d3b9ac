export { benchScaleup, SCALEUP_MODES, SCALEUP_PEERS, stepSizeOf } from './scaleup.ts';
export type { ScaleupBenchOptions, ScaleupPeer } from './scaleup.ts';
export { BYTES_FORMULA, bytesPerStep, caseOf } from './scaleup-case.ts';
export type { MeasuredCase, ScaleupBench, ScaleupCase, StepSize } from './scaleup-case.ts';
export { scaleupChart } from './chart.ts';
