/**
 * The operation catalogue: every operation and its attributes, as types. Shape inference, gradients and the
 * lowering to ONNX are full mapped types over it, so that an operation without a rule does not compile.
 * `BackwardOperations` appear only in what differentiation writes and have no gradient of their own.
 */
import type { Shape } from './shape.ts';

export type DType = 'float32' | 'int32' | 'int64' | 'bool';

type None = Record<never, never>;

/** A reduction over `axes`, kept as axes of length one if `keepDims`. */
export interface ReduceAttributes {
  readonly axes: readonly number[];
  readonly keepDims: boolean;
}

/** One entry for each spatial axis (one for 1-d, two for 2-d). */
export interface WindowAttributes {
  readonly stride: readonly number[];
  readonly padding: readonly number[];
}

export interface ConvAttributes extends WindowAttributes {
  readonly dilation: readonly number[];
  readonly groups: number;
}

export interface PoolAttributes extends WindowAttributes {
  readonly kernel: readonly number[];
}

export interface CrossEntropyAttributes {
  readonly reduction: 'mean' | 'sum';
  /** Rows with this label count neither in the loss nor in the mean. */
  readonly ignoreLabel: number | null;
  readonly labelSmoothing: number;
}

/** Values that enter from outside; each has a name and a place in memory. */
export interface SourceOperations {
  input: { readonly name: string };
  parameter: { readonly name: string };
  state: { readonly name: string };
  /** A fresh random tensor each step: 0 with probability p, else 1 / (1 - p); see `dropout`. */
  dropout_mask: { readonly name: string; readonly p: number };
  constant: { readonly data: Float32Array | Int32Array | Uint8Array };
  /** The scalar `coefficient * N^power`, known when the batch size is. */
  batch_scalar: { readonly coefficient: number; readonly power: number };
}

export interface ElementwiseOperations {
  add: None;
  sub: None;
  mul: None;
  div: None;
  pow: None;
  add_n: None;
  neg: None;
  exp: None;
  log: None;
  sqrt: None;
  abs: None;
  relu: None;
  tanh: None;
  sigmoid: None;
  erf: None;
  gelu: None;
  softplus: None;
  leaky_relu: { readonly slope: number };
  clamp: { readonly min: number | null; readonly max: number | null };
  where: None;
  dropout: { readonly p: number };
}

export interface TensorOperations {
  sum: ReduceAttributes;
  mean: ReduceAttributes;
  max: ReduceAttributes;
  min: ReduceAttributes;
  logsumexp: ReduceAttributes;
  cumsum: { readonly axis: number; readonly reverse: boolean };
  reshape: { readonly shape: Shape };
  transpose: { readonly perm: readonly number[] };
  concat: { readonly axis: number };
  split: { readonly axis: number; readonly sizes: readonly number[] };
  slice: {
    readonly starts: readonly number[];
    readonly ends: readonly number[];
    readonly steps: readonly number[];
  };
  pad: { readonly pads: readonly (readonly [number, number])[]; readonly value: number };
  expand: { readonly shape: Shape };
  /** Takes along an axis; the index has the rank of x. */
  gather: { readonly axis: number };
  /** Takes whole slices; the index is a vector. */
  index_select: { readonly axis: number };
  /** Adds `updates` into zeros of `shape` at `index` along an axis: the transpose of gather. */
  scatter_add: { readonly axis: number; readonly shape: Shape };
}

export interface NeuralOperations {
  matmul: { readonly transposeA: boolean; readonly transposeB: boolean };
  /** `x @ w + b` with x of rank 2. */
  affine: None;
  /** `[N, T, D] -> [N, T - width + 1, width * D]`: the windows of a sequence, side by side. */
  unfold: { readonly width: number };
  /** The transpose of unfold: windows are added back into the sequence. */
  fold: { readonly width: number };
  conv: ConvAttributes;
  max_pool: PoolAttributes;
  avg_pool: PoolAttributes & { readonly countPadding: boolean };
  batch_norm: { readonly epsilon: number };
  batch_norm_inference: { readonly epsilon: number };
  layer_norm: { readonly axis: number; readonly epsilon: number };
  softmax: { readonly axis: number };
  log_softmax: { readonly axis: number };
  cross_entropy: CrossEntropyAttributes;
  /** Rows of a table; its gradient is sparse where the table is a parameter. */
  embedding: { readonly paddingIndex: number | null };
  lstm: None;
  gru: None;
}

/** Results that are not differentiable: comparisons, positions, casts. */
export interface DiscreteOperations {
  greater: None;
  greater_equal: None;
  equal: None;
  logical_and: None;
  logical_not: None;
  argmax: { readonly axis: number; readonly keepDims: boolean };
  cast: { readonly to: DType };
  sign: None;
}

/** Written by differentiation only. */
export interface BackwardOperations {
  relu_grad: None;
  conv_input_grad: ConvAttributes & { readonly shape: Shape };
  conv_filter_grad: ConvAttributes & { readonly shape: Shape };
  max_pool_grad: PoolAttributes & { readonly shape: Shape };
  avg_pool_grad: PoolAttributes & { readonly countPadding: boolean; readonly shape: Shape };
  cross_entropy_grad: CrossEntropyAttributes;
  lstm_grad: None;
  gru_grad: None;
}

export interface DifferentiableOperations extends ElementwiseOperations, TensorOperations, NeuralOperations {}

export interface Operations
  extends SourceOperations, DifferentiableOperations, DiscreteOperations, BackwardOperations {}

export type OpName = keyof Operations;
export type SourceName = keyof SourceOperations;
export type DifferentiableName = keyof DifferentiableOperations;
export type ComputedName = Exclude<OpName, SourceName>;
