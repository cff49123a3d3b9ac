/** Every operation of the oracle vectors: outputs and gradients as PyTorch has them. */
import { describe, expect, it } from 'vitest';
import { differentiate, Graph, gradients, type Tensor } from '../../src/graph/index.ts';
import * as op from '../../src/graph/index.ts';
import { evaluate } from '../support/evaluate.ts';
import {
  firstDifference,
  numbers,
  readVectors,
  type Tolerance,
  type VectorTensor,
} from '../support/shared.ts';

interface OpCase {
  name: string;
  op: string;
  attrs: Record<string, never>;
  inputs: VectorTensor[];
  outputs: VectorTensor[];
  dy: (VectorTensor | { data: number[] } | number[] | null)[];
  grads: Record<string, { shape: number[]; data: number[] }>;
  sparse_grads?: Record<string, { indices: number[]; rows: number[] | { data: number[] } }>;
  tolerance: Tolerance;
}

type Attrs = Record<string, any>; // eslint-disable-line @typescript-eslint/no-explicit-any
type Build = (inputs: Tensor[], attrs: Attrs, named: Record<string, Tensor>) => Tensor | Tensor[];

/* eslint-disable @typescript-eslint/no-unsafe-argument, @typescript-eslint/no-unsafe-member-access, @typescript-eslint/no-unsafe-assignment */
const unary =
  (f: (x: Tensor) => Tensor): Build =>
  ([x]) =>
    f(x!);
const binary =
  (f: (a: Tensor, b: Tensor) => Tensor): Build =>
  ([a, b]) =>
    f(a!, b!);
const reduce =
  (f: (x: Tensor, axes: op.Axes, keep: boolean) => Tensor): Build =>
  ([x], a) =>
    f(x!, a.axes, a.keepdim);
const pool = (a: Attrs) => ({ kernel: a.kernel, stride: a.stride, padding: a.padding });
const weights = (n: Record<string, Tensor>) => ({ wIh: n.w_ih!, wHh: n.w_hh!, bIh: n.b_ih!, bHh: n.b_hh! });

const builders: Record<string, Build> = {
  add: binary(op.add),
  sub: binary(op.sub),
  mul: binary(op.mul),
  div: binary(op.div),
  pow: binary(op.pow),
  pow_scalar: ([x], a) => op.pow(x!, a.exponent),
  exp: unary(op.exp),
  log: unary(op.log),
  sqrt: unary(op.sqrt),
  abs: unary(op.abs),
  neg: unary(op.neg),
  relu: unary(op.relu),
  tanh: unary(op.tanh),
  sigmoid: unary(op.sigmoid),
  gelu: unary(op.gelu),
  leaky_relu: ([x], a) => op.leakyRelu(x!, a.negative_slope),
  softplus: ([x], a) => op.softplus(x!, a.beta),
  matmul: binary((a, b) => op.matmul(a, b)),
  linear: ([x, w, b]) => op.affine(x!, w!, b),
  conv1d: ([x, w, b], a) => op.convolve(x!, w!, b, a),
  conv2d: ([x, w, b], a) => op.convolve(x!, w!, b, a),
  max_pool2d: ([x], a) => op.maxPool(x!, pool(a)),
  avg_pool2d: ([x], a) => op.avgPool(x!, { ...pool(a), countPadding: a.count_include_pad }),
  global_max_time: unary(op.globalMaxOverTime),
  adaptive_avg_pool2d: ([x], a) => op.adaptiveAvgPool(x!, a.output_size),
  global_avg_pool: unary(op.globalAvgPool),
  batch_norm: ([x, gamma, beta, mean, variance], a) => {
    if (!a.training)
      return [op.batchNormalizeWith(x!, gamma!, beta!, mean!, variance!, a.eps), mean!, variance!];
    const result = op.batchNormalize(x!, gamma!, beta!, a.eps);
    return [result.y, ...op.runningStatistics(x!, result, mean!, variance!, a.momentum)];
  },
  layer_norm: ([x, gamma, beta], a) =>
    op.layerNormalize(x!, gamma ? { gamma, beta: beta! } : undefined, {
      normalizedAxes: a.normalized_shape.length,
      epsilon: a.eps,
    }),
  softmax: ([x], a) => op.softmax(x!, a.axis),
  log_softmax: ([x], a) => op.logSoftmax(x!, a.axis),
  cross_entropy: ([logits, labels], a) =>
    op.crossEntropy(logits!, labels!, {
      reduction: a.reduction,
      ignoreLabel: a.ignore_index,
      labelSmoothing: a.label_smoothing,
    }),
  mse_loss: ([prediction, target], a) => op.meanSquaredError(prediction!, target!, a.reduction),
  embedding: ([table, indices], a) => op.lookup(table!, indices!, a.padding_idx),
  sum: reduce(op.sum),
  mean: reduce(op.mean),
  max: reduce(op.max),
  min: reduce(op.min),
  logsumexp: reduce(op.logsumexp),
  cumsum: ([x], a) => op.cumsum(x!, a.axis),
  reshape: ([x], a) => op.reshape(x!, a.shape),
  transpose: ([x], a) => op.transpose(x!, a.perm),
  concat: (inputs, a) => op.concat(inputs, a.axis),
  split: ([x], a) => [...op.split(x!, a.sizes, a.axis)],
  slice: ([x], a) => op.slice(x!, a.starts, a.ends, a.steps),
  pad: ([x], a) => op.pad(x!, a.pads, a.value),
  gather: ([x, index], a) => op.gather(x!, index!, a.axis),
  index_select: ([x, index], a) => op.indexSelect(x!, index!, a.axis),
  where: ([condition, a, b]) => op.where(condition!, a!, b!),
  clamp: ([x], a) => op.clamp(x!, a.min, a.max),
  squeeze: ([x], a) => op.squeeze(x!, a.axes),
  unsqueeze: ([x], a) => op.unsqueeze(x!, a.axes),
  expand: ([x], a) => op.expand(x!, a.shape),
  // The vectors' mask says which to keep; ours holds 0 or 1 / (1 - p).
  dropout: ([x, mask], a) => op.applyDropout(x!, op.div(op.cast(mask!, 'float32'), 1 - a.p), a.p),
  attention: ([q, k, v, mask], a) =>
    op.attention(q!, k!, v!, { scale: a.scale, causal: a.causal, ...(mask ? { mask } : {}) }),
  lstm: ([x], _a, n) => {
    const { y, h, c } = op.lstmSequence(x!, { h: n.h0!, c: n.c0! }, weights(n));
    return [y, h, c];
  },
  gru: ([x], _a, n) => {
    const { y, h } = op.gruSequence(x!, n.h0!, weights(n));
    return [y, h];
  },
};
/* eslint-enable */

const dataOf = (value: VectorTensor | { data: number[] } | number[]) =>
  numbers(Array.isArray(value) ? value : value.data);

describe('operations match PyTorch', () => {
  const cases = readVectors<OpCase>('ops.json');
  it.each(cases.map((c) => [c.name, c] as const))('%s', (_name, c) => {
    const graph = new Graph();
    const values: Record<string, number[]> = {};
    const named: Record<string, Tensor> = {};
    const inputs = c.inputs.map((input) => {
      values[input.name] = numbers(input.data);
      const dtype = input.dtype === 'float64' ? 'float32' : input.dtype;
      const tensor = graph.input(input.name, input.shape, dtype);
      named[input.name] = tensor;
      return tensor;
    });
    const build = builders[c.op];
    expect(build, `no builder for ${c.op}`).toBeDefined();
    const built = build!(inputs, c.attrs, named);
    const outputs = Array.isArray(built) ? built : [built];
    const seeds = outputs.flatMap((output, i) => {
      const dy = c.dy[i];
      if (!dy) return [];
      values[`dy${i}`] = dataOf(dy);
      return [{ output, adjoint: graph.input(`dy${i}`, output.shape) }];
    });
    const targets = Object.keys(c.grads);
    const grads = differentiate(
      seeds,
      targets.map((name) => named[name]!),
    );
    const wanted = grads.filter((g): g is Tensor => g !== undefined);
    const results = evaluate([...outputs, ...wanted], values);
    outputs.forEach((output, i) => {
      expect(output.shape, 'output shape').toEqual(c.outputs[i]!.shape);
      expect(
        firstDifference(results[i]!, c.outputs[i]!.data, c.tolerance),
        `output ${c.outputs[i]!.name}`,
      ).toBeUndefined();
    });
    let next = outputs.length;
    targets.forEach((name, i) => {
      const want = c.grads[name]!.data;
      const got = grads[i] ? results[next++]! : want.map(() => 0);
      expect(firstDifference(got, want, c.tolerance), `gradient of ${name}`).toBeUndefined();
    });
  });
});

void gradients;
