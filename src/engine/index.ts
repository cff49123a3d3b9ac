export { DependencyEngine } from './dependency-engine.ts';
export type { DependencyEngineOptions } from './dependency-engine.ts';
export type { OperationOptions } from './operation.ts';
export type { WaitOptions } from './wait.ts';
