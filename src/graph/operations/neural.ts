/** The operations of neural networks on given weights. Layers (`layers.ts`) create the weights and call these. */
import { UsageError } from '../../base/index.ts';
import type { ConvAttributes, CrossEntropyAttributes, PoolAttributes } from '../catalogue.ts';
import { isNode, type Tensor } from '../graph.ts';
import { sameDim, staticShape } from '../shape.ts';
import { add, div, mul, relu, square, sub, where } from './elementwise.ts';
import { argmax, countAlong, gather, mean, pad, reshape, squeeze, sum, transpose } from './tensor.ts';

export function matmul(
  a: Tensor,
  b: Tensor,
  options: { transposeA?: boolean; transposeB?: boolean } = {},
): Tensor {
  const { transposeA = false, transposeB = false } = options;
  return a.graph.apply('matmul', [a, b], { transposeA, transposeB })[0]!;
}

/** `x @ w + b`, w `[in, out]`, over the last axis of x. */
export function affine(x: Tensor, w: Tensor, b?: Tensor): Tensor {
  const inputs = b ? [w, b] : [w];
  if (x.shape.length === 2) return x.graph.apply('affine', [x, ...inputs], {})[0]!;
  if (x.shape.length < 2 || !sameDim(x.shape.at(-1)!, w.shape[0]!)) {
    x.graph.apply('affine', [x, ...inputs], {}); // reports the mismatch with the shapes as the user wrote them
  }
  const rows = x.graph.apply('affine', [reshape(x, [-1, x.shape.at(-1)!]), ...inputs], {})[0]!;
  return reshape(rows, [...x.shape.slice(0, -1), w.shape[1]!]);
}

/** `[N, T, D] -> [N, T - width + 1, width * D]`: every window of a sequence as one row, so that a product convolves. */
export function unfold(x: Tensor, width: number): Tensor {
  return width === 1 ? x : x.graph.apply('unfold', [x], { width })[0]!;
}

export type ConvOptions = Partial<ConvAttributes>;

/** x `[N, C, spatial]`, w `[O, C / groups, kernel]`; symmetric padding, sizes rounded down. */
export function convolve(x: Tensor, w: Tensor, b?: Tensor, options: ConvOptions = {}): Tensor {
  const axes = x.shape.length - 2;
  const each = (value: number) => Array.from({ length: axes }, () => value);
  const { stride = each(1), padding = each(0), dilation = each(1), groups = 1 } = options;
  const plain = [...stride, ...dilation, groups].every((value) => value === 1);
  if (axes === 1 && plain && fitsTemporal(x, w, padding[0]!)) return convolveOverTime(x, w, b, padding[0]!);
  return x.graph.apply('conv', b ? [x, w, b] : [x, w], { stride, padding, dilation, groups })[0]!;
}

/** Wider filters would unfold into too much memory. */
const MAX_UNFOLDED_WIDTH = 32;

function fitsTemporal(x: Tensor, w: Tensor, padding: number): boolean {
  const [channels, length] = [x.shape[1], x.shape[2]];
  const [, inputs, width] = w.shape as number[];
  return (
    w.shape.length === 3 &&
    channels === inputs &&
    width! <= MAX_UNFOLDED_WIDTH &&
    (length as number) + 2 * padding >= width!
  );
}

/**
 * A convolution over `[N, C, T]` as one product over the windows of `[N, T, C]`: 1-d gradients by ConvTranspose were
 * measured five times slower. The transposes cancel against those of neighbouring layers.
 */
function convolveOverTime(x: Tensor, w: Tensor, b: Tensor | undefined, padding: number): Tensor {
  const [filters, channels, width] = w.shape as [number, number, number];
  const sequence = pad(transpose(x, [0, 2, 1]), [
    [0, 0],
    [padding, padding],
    [0, 0],
  ]);
  const kernel = reshape(transpose(w, [2, 1, 0]), [width * channels, filters]);
  return transpose(affine(unfold(sequence, width), kernel, b), [0, 2, 1]);
}

export interface PoolOptions {
  readonly kernel: readonly number[];
  /** Default: the kernel, so that windows tile the input. */
  readonly stride?: readonly number[];
  readonly padding?: readonly number[];
}

function poolAttributes({
  kernel,
  stride = kernel,
  padding = kernel.map(() => 0),
}: PoolOptions): PoolAttributes {
  return { kernel, stride, padding };
}

/**
 * Pads with minus infinity; among equal maxima the first in row-major order takes the gradient.
 * A relu before the pool is moved behind it: the same values and gradients on fewer elements.
 */
export function maxPool(x: Tensor, options: PoolOptions): Tensor {
  if (isNode(x.node, 'relu')) return relu(maxPool(x.node.inputs[0]!, options));
  return x.graph.apply('max_pool', [x], poolAttributes(options))[0]!;
}

export function avgPool(x: Tensor, options: PoolOptions & { countPadding?: boolean }): Tensor {
  const attributes = { ...poolAttributes(options), countPadding: options.countPadding ?? true };
  return x.graph.apply('avg_pool', [x], attributes)[0]!;
}

/** `[N, C, T] -> [N, C]`; the first maximum takes the gradient. A relu is moved behind it, as in `maxPool`. */
export function globalMaxOverTime(x: Tensor): Tensor {
  if (isNode(x.node, 'relu')) return relu(globalMaxOverTime(x.node.inputs[0]!));
  const sequence = transpose(x, [0, 2, 1]);
  // Where a transpose cancels, the maximum is taken over the middle axis instead.
  return sequence.node.id < x.node.id ? firstMax(sequence, 1) : firstMax(x, 2);
}

/** The largest along an axis, which is dropped; the first maximum takes the gradient. */
export function firstMax(x: Tensor, axis: number): Tensor {
  return squeeze(gather(x, argmax(x, axis, true), axis), [axis]);
}

/** `[N, C, spatial] -> [N, C]`. */
export function globalAvgPool(x: Tensor): Tensor {
  return mean(
    x,
    x.shape.slice(2).map((_, i) => i + 2),
  );
}

/** Cell i covers `floor(i H / out)` to `ceil((i + 1) H / out)`: two products with constant averaging matrices. */
export function adaptiveAvgPool(x: Tensor, outputSize: readonly [number, number]): Tensor {
  const [height, width] = staticShape(x.shape.slice(2), 'adaptiveAvgPool: the image') as [number, number];
  const averaging = (length: number, cells: number) => {
    const weights = new Float32Array(cells * length);
    for (let cell = 0; cell < cells; cell++) {
      const start = Math.floor((cell * length) / cells);
      const end = Math.ceil(((cell + 1) * length) / cells);
      weights.fill(1 / (end - start), cell * length + start, cell * length + end);
    }
    return x.graph.constant(weights, [cells, length]);
  };
  const rows = matmul(averaging(height, outputSize[0]), x);
  return matmul(rows, averaging(width, outputSize[1]), { transposeB: true });
}

export interface BatchNormResult {
  readonly y: Tensor;
  readonly mean: Tensor;
  /** Biased: divided by the count. */
  readonly variance: Tensor;
}

/** Normalises with the statistics of the batch, over all axes but 1. */
export function batchNormalize(x: Tensor, gamma: Tensor, beta: Tensor, epsilon = 1e-5): BatchNormResult {
  const [y, , batchMean, variance] = x.graph.apply('batch_norm', [x, gamma, beta], { epsilon });
  return { y: y!, mean: batchMean!, variance: variance! };
}

/** Normalises with given statistics. */
export function batchNormalizeWith(
  x: Tensor,
  gamma: Tensor,
  beta: Tensor,
  runningMean: Tensor,
  runningVariance: Tensor,
  epsilon = 1e-5,
): Tensor {
  return x.graph.apply('batch_norm_inference', [x, gamma, beta, runningMean, runningVariance], {
    epsilon,
  })[0]!;
}

/** Over the last `normalizedAxes` axes; biased variance, epsilon inside the root. */
export function layerNormalize(
  x: Tensor,
  affineParameters?: { gamma: Tensor; beta: Tensor },
  options: { normalizedAxes?: number; epsilon?: number } = {},
): Tensor {
  const { epsilon = 1e-5, normalizedAxes = affineParameters?.gamma.shape.length ?? 1 } = options;
  const inputs = affineParameters ? [x, affineParameters.gamma, affineParameters.beta] : [x];
  return x.graph.apply('layer_norm', inputs, { axis: x.shape.length - normalizedAxes, epsilon })[0]!;
}

export function softmax(x: Tensor, axis = -1): Tensor {
  return x.graph.apply('softmax', [x], { axis })[0]!;
}

export function logSoftmax(x: Tensor, axis = -1): Tensor {
  return x.graph.apply('log_softmax', [x], { axis })[0]!;
}

/** Logits `[..., C]`, labels `[...]`; `mean` divides by the number of labels not ignored. */
export function crossEntropy(
  logits: Tensor,
  labels: Tensor,
  options: Partial<CrossEntropyAttributes> = {},
): Tensor {
  const { reduction = 'mean', ignoreLabel = null, labelSmoothing = 0 } = options;
  const rows = reshape(logits, [-1, logits.shape.at(-1)!]);
  const flat = reshape(labels, [-1]);
  return logits.graph.apply('cross_entropy', [rows, flat], { reduction, ignoreLabel, labelSmoothing })[0]!;
}

export function meanSquaredError(
  prediction: Tensor,
  target: Tensor,
  reduction: 'mean' | 'sum' = 'mean',
): Tensor {
  const squares = square(sub(prediction, target));
  return reduction === 'mean' ? mean(squares) : sum(squares);
}

/** Rows of `table`; the row `paddingIndex` gets no gradient. */
export function lookup(table: Tensor, indices: Tensor, paddingIndex: number | null = null): Tensor {
  return table.graph.apply('embedding', [table, indices], { paddingIndex })[0]!;
}

export interface AttentionOptions {
  /** Default: 1 / sqrt(D). */
  readonly scale?: number;
  /** A query sees keys up to its own position. */
  readonly causal?: boolean;
  /** bool, true = may be seen, broadcast to `[B, H, Tq, Tk]`. */
  readonly mask?: Tensor;
}

/** `softmax(q k^T * scale) v` over `[B, H, T, D]`. */
export function attention(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions = {}): Tensor {
  const [queries, size] = staticShape(q.shape.slice(-2), 'attention: queries') as [number, number];
  const keys = staticShape(k.shape.slice(-2, -1), 'attention: keys')[0]!;
  const { scale = 1 / Math.sqrt(size), causal = false, mask } = options;
  let scores = mul(matmul(q, k, { transposeB: true }), scale);
  // A large negative number instead of minus infinity: a row with nothing to see gives an average, not NaN.
  if (mask) scores = where(mask, scores, HIDDEN);
  if (causal) {
    const bias = new Float32Array(queries * keys);
    for (let i = 0; i < queries; i++) bias.fill(HIDDEN, i * keys + i + 1, (i + 1) * keys);
    scores = add(scores, q.graph.constant(bias, [queries, keys]));
  }
  return matmul(softmax(scores, -1), v);
}

const HIDDEN = -1e30;

export interface RecurrentWeights {
  readonly wIh: Tensor;
  readonly wHh: Tensor;
  readonly bIh: Tensor;
  readonly bHh: Tensor;
}

/** x `[T, N, I]`; gate order i, f, g, o; `w_ih [4H, I]`, `w_hh [4H, H]`. */
export function lstmSequence(
  x: Tensor,
  state: { h: Tensor; c: Tensor },
  weights: RecurrentWeights,
): { y: Tensor; h: Tensor; c: Tensor } {
  const { wIh, wHh, bIh, bHh } = weights;
  const [y, h, c] = x.graph.apply('lstm', [x, state.h, state.c, wIh, wHh, bIh, bHh], {});
  return { y: y!, h: h!, c: c! };
}

/** x `[T, N, I]`; gate order r, z, n, reset after the recurrent product. */
export function gruSequence(x: Tensor, h0: Tensor, weights: RecurrentWeights): { y: Tensor; h: Tensor } {
  const { wIh, wHh, bIh, bHh } = weights;
  const [y, h] = x.graph.apply('gru', [x, h0, wIh, wHh, bIh, bHh], {});
  return { y: y!, h: h! };
}

/** `x * mask`; the mask holds 0 or 1 / (1 - p). */
export function applyDropout(x: Tensor, mask: Tensor, p: number): Tensor {
  if (!(p >= 0 && p < 1)) throw new UsageError('INVALID_ARGUMENT', `dropout: p must be in [0, 1), got ${p}.`);
  return x.graph.apply('dropout', [x, mask], { p })[0]!;
}

/** The running statistics after a batch: `(1 - momentum) * running + momentum * batch`, with the unbiased variance. */
export function runningStatistics(
  x: Tensor,
  batch: BatchNormResult,
  runningMean: Tensor,
  runningVariance: Tensor,
  momentum: number,
): [mean: Tensor, variance: Tensor] {
  const axes = x.shape.flatMap((_, i) => (i === 1 ? [] : [i]));
  const { coefficient, power } = countAlong(x, axes);
  const count = x.graph.batchScalar(coefficient, power);
  const unbiased = mul(batch.variance, div(count, sub(count, 1)));
  const blend = (running: Tensor, fresh: Tensor) => add(mul(running, 1 - momentum), mul(fresh, momentum));
  return [blend(runningMean, batch.mean), blend(runningVariance, unbiased)];
}
