/**
 * Layers: operations with their own parameters, created and named in the graph of the input. A layer returns a
 * tensor, so that models read as they compute: `relu(linear(x, 1024))`.
 */
import { UsageError } from '../base/index.ts';
import type { Tensor } from './graph.ts';
import {
  fanInUniform,
  glorotUniform,
  normal,
  ones,
  uniform,
  zeroed,
  zeros,
  type Initialiser,
} from './initialisers.ts';
import * as op from './operations/index.ts';
import { isBatch, printShape, staticShape } from './shape.ts';

export interface LayerOptions {
  /** Prefix of the parameter names. Default: the kind and a number, `linear1`. */
  readonly name?: string;
}

function prefix(x: Tensor, kind: string, { name }: LayerOptions): string {
  return name ?? x.graph.uniqueName(kind);
}

function lastSize(x: Tensor, layer: string): number {
  return staticShape(x.shape.slice(-1), `${layer}: the last axis`)[0]!;
}

export interface LinearOptions extends LayerOptions {
  /** Default true. */
  readonly bias?: boolean;
  /** Default uniform within 1 / sqrt(inputs). */
  readonly initialiser?: Initialiser;
}

/** `x @ w + b` over the last axis. */
export function linear(x: Tensor, units: number, options: LinearOptions = {}): Tensor {
  const inputs = lastSize(x, 'linear');
  const name = prefix(x, 'linear', options);
  const w = x.graph.parameter(`${name}.w`, [inputs, units], options.initialiser ?? fanInUniform(inputs));
  const b =
    (options.bias ?? true) ? x.graph.parameter(`${name}.b`, [units], fanInUniform(inputs)) : undefined;
  return op.affine(x, w, b);
}

/** A number stands for all spatial axes. */
type PerAxis = number | readonly number[];

export interface ConvLayerOptions extends LayerOptions {
  readonly stride?: PerAxis;
  /** On both sides; 'same' keeps the size for stride 1 and odd kernels. */
  readonly padding?: PerAxis | 'same';
  readonly dilation?: PerAxis;
  readonly groups?: number;
  /** Default true. */
  readonly bias?: boolean;
  /** Default uniform within 1 / sqrt(inputs of a filter). */
  readonly initialiser?: Initialiser;
}

function conv(
  x: Tensor,
  filters: number,
  kernelSize: PerAxis,
  options: ConvLayerOptions,
  axes: number,
): Tensor {
  const kind = `conv${axes}d`;
  if (x.shape.length !== axes + 2) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `${kind}: expected [N, C${', length'.repeat(axes)}], got rank ${x.shape.length}.`,
    );
  }
  const each = (value: PerAxis) =>
    typeof value === 'number' ? Array.from({ length: axes }, () => value) : value;
  const { groups = 1 } = options;
  const kernel = each(kernelSize);
  const dilation = each(options.dilation ?? 1);
  const padding =
    options.padding === 'same'
      ? kernel.map((size, i) => (dilation[i]! * (size - 1)) / 2)
      : each(options.padding ?? 0);
  if (!padding.every(Number.isInteger)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${kind}: padding 'same' needs odd kernels, got ${kernel.join('x')}.`,
    );
  }
  const channels = staticShape(x.shape.slice(1, 2), `${kind}: channels`)[0]!;
  const name = prefix(x, kind, options);
  const fanIn = (channels / groups) * kernel.reduce((a, b) => a * b, 1);
  const initialiser = options.initialiser ?? fanInUniform(fanIn);
  const w = x.graph.parameter(`${name}.w`, [filters, channels / groups, ...kernel], initialiser);
  const b =
    (options.bias ?? true) ? x.graph.parameter(`${name}.b`, [filters], fanInUniform(fanIn)) : undefined;
  return op.convolve(x, w, b, { stride: each(options.stride ?? 1), padding, dilation, groups });
}

/** x `[N, C, length]`. */
export function conv1d(x: Tensor, filters: number, kernel: number, options: ConvLayerOptions = {}): Tensor {
  return conv(x, filters, kernel, options, 1);
}

/** x `[N, C, height, width]`. */
export function conv2d(x: Tensor, filters: number, kernel: PerAxis, options: ConvLayerOptions = {}): Tensor {
  return conv(x, filters, kernel, options, 2);
}

/**
 * Convolution over time of x `[N, T, D]` (time before features, as lookups give it): `[N, T - width + 1, filters]`.
 * The same as `conv1d` but for the layout, and faster: one product over unfolded windows.
 */
export function temporalConv(x: Tensor, filters: number, width: number, options: LinearOptions = {}): Tensor {
  return linear(op.unfold(x, width), filters, { ...options, name: prefix(x, 'temporalConv', options) });
}

export interface BatchNormOptions extends LayerOptions {
  /** Share of the new batch in the running statistics. Default 0.1. */
  readonly momentum?: number;
  /** Default 1e-5. */
  readonly epsilon?: number;
}

/** Normalises each channel by the batch; keeps running statistics, as state, for inference. */
export function batchNorm(x: Tensor, options: BatchNormOptions = {}): Tensor {
  const { momentum = 0.1, epsilon = 1e-5 } = options;
  const { graph } = x;
  const name = prefix(x, 'batchNorm', options);
  const channels = staticShape(x.shape.slice(1, 2), 'batchNorm: channels');
  const gamma = graph.parameter(`${name}.gamma`, channels, ones);
  const beta = graph.parameter(`${name}.beta`, channels, zeros);
  const mean = graph.state(`${name}.running_mean`, channels, zeros);
  const variance = graph.state(`${name}.running_var`, channels, ones);
  const batch = op.batchNormalize(x, gamma, beta, epsilon);
  const [nextMean, nextVariance] = op.runningStatistics(x, batch, mean, variance, momentum);
  graph.assign(mean, nextMean);
  graph.assign(variance, nextVariance);
  graph.linkStatistics(batch.y.node, { mean, variance });
  return batch.y;
}

/** Normalises over the last axes. */
export function layerNorm(
  x: Tensor,
  options: LayerOptions & { readonly normalizedAxes?: number; readonly epsilon?: number } = {},
): Tensor {
  const { normalizedAxes = 1, epsilon = 1e-5 } = options;
  const name = prefix(x, 'layerNorm', options);
  const shape = staticShape(x.shape.slice(-normalizedAxes), 'layerNorm: the normalised axes');
  const gamma = x.graph.parameter(`${name}.gamma`, shape, ones);
  const beta = x.graph.parameter(`${name}.beta`, shape, zeros);
  return op.layerNormalize(x, { gamma, beta }, { normalizedAxes, epsilon });
}

export interface EmbeddingOptions extends LayerOptions {
  /** This row starts at zero and takes no gradient. */
  readonly paddingIndex?: number;
  /** Default normal with deviation 1. */
  readonly initialiser?: Initialiser;
}

/** Rows of a table `[rows, size]` for int32 indices; the table's gradient is sparse. */
export function embedding(
  indices: Tensor,
  rows: number,
  size: number,
  options: EmbeddingOptions = {},
): Tensor {
  const name = prefix(indices, 'embedding', options);
  const { initialiser = normal(1), paddingIndex } = options;
  const start = paddingIndex === undefined ? initialiser : zeroed(initialiser, paddingIndex * size, size);
  const table = indices.graph.parameter(`${name}.table`, [rows, size], start);
  return op.lookup(table, indices, paddingIndex ?? null);
}

/**
 * Sets elements to zero with probability p while training. The mask depends on seed, step and sample only: it is drawn with
 * the batch first and brought into the layout of x, so that a sample gets the same mask in whatever batch it comes.
 */
export function dropout(x: Tensor, p: number): Tensor {
  if (p === 0) return x;
  const axis = x.shape.findIndex(isBatch);
  if (axis < 0) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `dropout: ${x.label} ${printShape(x.shape)} has no batch axis; drop values of samples.`,
    );
  }
  const order = [axis, ...x.shape.flatMap((_, i) => (i === axis ? [] : [i]))];
  const mask = x.graph.dropoutMask(
    order.map((i) => x.shape[i]!),
    p,
  );
  return op.applyDropout(
    x,
    op.transpose(
      mask,
      x.shape.map((_, i) => order.indexOf(i)),
    ),
    p,
  );
}

export interface RecurrentOptions extends LayerOptions {
  /** The state to start from, `[N, units]`. Default zeros. */
  readonly initialState?: { readonly h: Tensor; readonly c?: Tensor };
}

function recurrentWeights(x: Tensor, units: number, gates: number, name: string): op.RecurrentWeights {
  const inputs = lastSize(x, name);
  const initialiser = uniform(1 / Math.sqrt(units));
  const create = (suffix: string, shape: number[]) =>
    x.graph.parameter(`${name}.${suffix}`, shape, initialiser);
  return {
    wIh: create('w_ih', [gates * units, inputs]),
    wHh: create('w_hh', [gates * units, units]),
    bIh: create('b_ih', [gates * units]),
    bHh: create('b_hh', [gates * units]),
  };
}

function zeroState(x: Tensor, units: number): Tensor {
  return op.expand(x.graph.scalar(0), [x.shape[1]!, units]);
}

/** x `[T, N, inputs]` (time first); y `[T, N, units]`. */
export function lstm(
  x: Tensor,
  units: number,
  options: RecurrentOptions = {},
): { y: Tensor; h: Tensor; c: Tensor } {
  const name = prefix(x, 'lstm', options);
  const h = options.initialState?.h ?? zeroState(x, units);
  const c = options.initialState?.c ?? zeroState(x, units);
  return op.lstmSequence(x, { h, c }, recurrentWeights(x, units, 4, name));
}

/** x `[T, N, inputs]` (time first); y `[T, N, units]`. */
export function gru(x: Tensor, units: number, options: RecurrentOptions = {}): { y: Tensor; h: Tensor } {
  const name = prefix(x, 'gru', options);
  const h0 = options.initialState?.h ?? zeroState(x, units);
  return op.gruSequence(x, h0, recurrentWeights(x, units, 3, name));
}

export interface AttentionLayerOptions extends LayerOptions {
  readonly heads: number;
  readonly causal?: boolean;
  /** bool, true = may be seen, broadcast to `[N, heads, T, T]`. */
  readonly mask?: Tensor;
  /** Biases of the four projections. Default true. */
  readonly bias?: boolean;
}

/** Self-attention of x `[N, T, width]` with several heads side by side. */
export function multiHeadAttention(x: Tensor, options: AttentionLayerOptions): Tensor {
  const { heads, causal = false, mask, bias = true } = options;
  const name = prefix(x, 'attention', options);
  const [steps, width] = staticShape(x.shape.slice(1), 'multiHeadAttention: x') as [number, number];
  if (width % heads !== 0) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `multiHeadAttention: ${heads} heads do not divide the width ${width}.`,
    );
  }
  const project = (suffix: string, from: Tensor) =>
    linear(from, width, { name: `${name}.${suffix}`, bias, initialiser: glorotUniform(width, width) });
  const split = (suffix: string) =>
    op.transpose(op.reshape(project(suffix, x), [x.shape[0]!, steps, heads, width / heads]), [0, 2, 1, 3]);
  const masking = { causal, ...(mask ? { mask } : {}) };
  const mixed = op.attention(split('q'), split('k'), split('v'), masking);
  return project('out', op.reshape(op.transpose(mixed, [0, 2, 1, 3]), [x.shape[0]!, steps, width]));
}
