export { benchScaleup, SCALEUP_MODES, stepSizeOf } from './scaleup.ts';
export type { ScaleupBenchOptions } from './scaleup.ts';
export { SCALEUP_PEERS } from './sides.ts';
export type { ScaleupPeer } from './sides.ts';
export { BYTES_FORMULA, bytesPerStep, caseOf } from './scaleup-case.ts';
export type { MeasuredCase, ScaleupBench, ScaleupCase, StepSize } from './scaleup-case.ts';
export { scaleupChart } from './chart.ts';
