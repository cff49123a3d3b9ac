/** ONNX Runtime through its C API: sessions that read and write the caller's memory in place. */
export { OnnxRuntime, Session } from './session.ts';
export { Binding } from './binding.ts';
export { PROVIDERS } from './session-options.ts';
export type { Provider, SessionOptions } from './session-options.ts';
export { usableProviders } from './usable-providers.ts';
export type { NativeDType, NativeTensorSpec, SessionValue } from './session-values.ts';
