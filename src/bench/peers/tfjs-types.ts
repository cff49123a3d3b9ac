/**
 * The part of TensorFlow.js that tfjs-peer.ts calls, typed here so that the project compiles where TensorFlow.js is not
 * installed (it is a peer to compare with, not a dependency). Not a full typing. Invariant: names and argument orders are
 * those of @tensorflow/tfjs-core 4.22 and @tensorflow/tfjs-backend-wasm 4.22.
 */

export interface Tensor {
  readonly shape: readonly number[];
  dispose(): void;
  dataSync(): Float32Array;
}
export type Scalar = Tensor;
export interface Variable extends Tensor {
  assign(value: Tensor): void;
}

export interface TensorFlow {
  readonly version_core: string;
  setBackend(name: string): Promise<boolean>;
  env(): { getAsync(flag: string): Promise<boolean | number | string> };
  tidy<T>(body: () => T): T;
  tensor(data: Float32Array | Int32Array, shape: number[], dtype?: string): Tensor;
  zeros(shape: number[]): Tensor;
  randomUniform(shape: number[], low: number, high: number, dtype: string, seed: number): Tensor;
  variable(value: Tensor): Variable;
  cast(x: Tensor, dtype: string): Tensor;
  oneHot(indices: Tensor, depth: number): Tensor;
  matMul(a: Tensor, b: Tensor): Tensor;
  transpose(x: Tensor): Tensor;
  add(a: Tensor, b: Tensor): Tensor;
  sub(a: Tensor, b: Tensor): Tensor;
  mul(a: Tensor, b: Tensor | number): Tensor;
  div(a: Tensor, b: number): Tensor;
  mean(x: Tensor): Scalar;
  softmax(x: Tensor): Tensor;
  logSumExp(x: Tensor, axis: number): Tensor;
  sum(x: Tensor, axis: number, keepDims?: boolean): Tensor;
  reshape(x: Tensor, shape: number[]): Tensor;
  step(x: Tensor): Tensor;
  relu(x: Tensor): Tensor;
  variableGrads(f: () => Scalar, variables: Variable[]): { value: Scalar; grads: Record<string, Tensor> };
  readonly losses: { softmaxCrossEntropy(oneHotLabels: Tensor, logits: Tensor): Scalar };
  readonly train: {
    sgd(learningRate: number): { applyGradients(grads: Record<string, Tensor>): void; dispose(): void };
  };
}

export interface WasmBackend {
  setThreadsCount(count: number): void;
  getThreadsCount(): number;
  setWasmPaths(folder: string): void;
}
