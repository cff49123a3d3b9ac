export type { CompiledGraph, CompileRequest, Compute } from './compute.ts';
export { cutSegments } from './segments.ts';
export type { CutSegment } from './segments.ts';
export { memoryTypes, OnnxCompute } from './onnxruntime/onnx-compute.ts';
export type { Provider, SessionOptions } from './onnxruntime/index.ts';
export { OnnxRuntime, PROVIDERS, usableProviders } from './onnxruntime/index.ts';
export { NullCompute } from './null/null-compute.ts';
export type { NullComputeOptions } from './null/null-compute.ts';
