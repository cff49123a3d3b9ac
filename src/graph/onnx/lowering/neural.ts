/** Lowering of products, normalisations, losses and lookups. */
import type { BackwardOperations, NeuralOperations } from '../../catalogue.ts';
import type { Shape } from '../../shape.ts';
import { MICROSOFT, type Emitter } from '../emitter.ts';
import type { LoweringTable } from './rule.ts';

type Windowed = 'conv' | 'max_pool' | 'avg_pool' | 'lstm' | 'gru';
type Names =
  Exclude<keyof NeuralOperations, Windowed> | Extract<keyof BackwardOperations, 'cross_entropy_grad'>;

/** A product with transposed operands; rank 2 by Gemm, which packs a transposed operand without a copy. */
export function product(
  e: Emitter,
  a: string,
  b: string,
  rank: { a: number; b: number },
  transposeA: boolean,
  transposeB: boolean,
): string {
  if (!transposeA && !transposeB) return e.op('MatMul', [a, b]);
  if (rank.a === 2 && rank.b === 2)
    return e.op('Gemm', [a, b], { transA: Number(transposeA), transB: Number(transposeB) });
  if (!e.options.portable) {
    return e.op('FusedMatMul', [a, b], { transA: Number(transposeA), transB: Number(transposeB) }, MICROSOFT);
  }
  const swap = (name: string, size: number) => {
    const perm = Array.from({ length: size }, (_, i) => (i < size - 2 ? i : 2 * size - 3 - i));
    return e.op('Transpose', [name], { perm });
  };
  return e.op('MatMul', [transposeA ? swap(a, rank.a) : a, transposeB ? swap(b, rank.b) : b]);
}

function channels(shape: Shape): number[] {
  return shape.map((_, i) => (i === 1 ? -1 : 1));
}

export const neuralLowering: LoweringTable<Names> = {
  matmul: (e, [a, b], { inputs, attributes: { transposeA, transposeB } }) => [
    product(e, a!, b!, { a: inputs[0]!.shape.length, b: inputs[1]!.shape.length }, transposeA, transposeB),
  ],
  affine: (e, [x, w, b]) => [b ? e.op('Gemm', [x!, w!, b]) : e.op('MatMul', [x!, w!])],
  // Gather of rows by a constant table of positions: a third of the time of slices and a concat.
  unfold: (e, [x], { inputs, outputs, attributes: { width } }) => {
    const windowCount = outputs[0]!.shape[1] as number;
    const positions = Int32Array.from(
      { length: windowCount * width },
      (_, i) => Math.floor(i / width) + (i % width),
    );
    const rows = e.op('Gather', [x!, e.int32(positions, [windowCount, width])], { axis: 1 });
    return [e.reshape(rows, [inputs[0]!.shape[0]!, windowCount, width * (inputs[0]!.shape[2] as number)])];
  },
  fold: (e, [windows], { outputs, attributes: { width } }) => {
    const size = outputs[0]!.shape[2] as number;
    const parts = e.multi('Split', [windows!, e.ints(Array.from({ length: width }, () => size))], width, {
      axis: 2,
    });
    const placed = parts.map((part, i) => e.op('Pad', [part, e.ints([0, i, 0, 0, width - 1 - i, 0])]));
    return [e.op('Sum', placed)];
  },
  batch_norm: (e, [x, gamma, beta], { inputs, outputs, attributes: { epsilon } }) => {
    const { shape } = inputs[0]!;
    const axes = shape.flatMap((_, i) => (i === 1 ? [] : [i]));
    const mean = e.op('ReduceMean', [x!], { axes, keepdims: 1 });
    const centred = e.op('Sub', [x!, mean]);
    const variance = e.op('ReduceMean', [e.op('Mul', [centred, centred])], { axes, keepdims: 1 });
    const deviation = e.op('Sqrt', [e.op('Add', [variance, e.scalar(epsilon)])]);
    const inverse = e.op('Div', [e.scalar(1), deviation]);
    const flat = (value: string) => e.op('Reshape', [value, e.ints([-1])]);
    const normalised = e.op('Mul', [centred, inverse]);
    const y = e.options.isUsed(outputs[1]!)
      ? e.op('Add', [
          e.op('Mul', [normalised, e.op('Reshape', [gamma!, e.ints(channels(shape))])]),
          e.op('Reshape', [beta!, e.ints(channels(shape))]),
        ])
      : e.op('BatchNormalization', [x!, gamma!, beta!, flat(mean), flat(variance)], { epsilon });
    return [y, normalised, flat(mean), flat(variance), flat(inverse)];
  },
  batch_norm_inference: (e, inputs, { attributes: { epsilon } }) => [
    e.op('BatchNormalization', inputs, { epsilon }),
  ],
  layer_norm: (e, [x, gamma, beta], { inputs, attributes: { axis, epsilon } }) => {
    const inner = e.known(inputs[0]!.shape.slice(axis));
    const scale = gamma ?? e.floats(new Float32Array(inner.reduce((a, b) => a * b, 1)).fill(1), inner);
    return e.multi('LayerNormalization', beta ? [x!, scale, beta] : [x!, scale], 3, { axis, epsilon });
  },
  softmax: (e, inputs, { attributes: { axis } }) => [e.op('Softmax', inputs, { axis })],
  log_softmax: (e, inputs, { attributes: { axis } }) => [e.op('LogSoftmax', inputs, { axis })],
  embedding: (e, inputs) => [e.op('Gather', inputs, { axis: 0 })],
  cross_entropy: (
    e,
    [logits, labels],
    { inputs, attributes: { reduction, ignoreLabel, labelSmoothing } },
  ) => {
    const rows = inputs[1]!.shape;
    // log p = logit - largest logit + log(largest p), because the largest p is 1 / sum(exp(logit - largest)): as exact
    // as a log-softmax, and the probabilities that the gradient needs come without a second pass of exp.
    const probabilities = e.op('Softmax', [logits!], { axis: 1 });
    const largest = (value: string) => e.op('ReduceMax', [value], { axes: [1], keepdims: 1 });
    const offset = e.op('Sub', [e.op('Log', [largest(probabilities)]), largest(logits!)]);
    const safe = safeLabels(e, labels!, ignoreLabel);
    const picked = e.op('GatherElements', [logits!, column(e, safe)], { axis: 1 });
    let logProbability = e.op('Add', [picked, offset]);
    if (labelSmoothing > 0) {
      const spread = e.op('Add', [e.op('ReduceMean', [logits!], { axes: [1], keepdims: 1 }), offset]);
      const hard = e.op('Mul', [logProbability, e.scalar(1 - labelSmoothing)]);
      logProbability = e.op('Add', [hard, e.op('Mul', [spread, e.scalar(labelSmoothing)])]);
    }
    const weights = rowWeights(e, labels!, e.known(rows)[0]!, reduction, ignoreLabel);
    const weighted = e.op('Mul', [e.reshape(logProbability, rows), weights]);
    return [e.op('Neg', [e.op('ReduceSum', [weighted], { keepdims: 0 })]), probabilities, weights];
  },
  cross_entropy_grad: (e, [dy, probabilities, weights, labels], { inputs, attributes }) => {
    const { ignoreLabel, labelSmoothing } = attributes;
    const [rows, classes] = e.known(inputs[1]!.shape) as [number, number];
    let difference = probabilities!;
    if (labelSmoothing > 0) difference = e.op('Sub', [difference, e.scalar(labelSmoothing / classes)]);
    const at = column(e, safeLabels(e, labels!, ignoreLabel));
    const hard = e.floats(new Float32Array(rows).fill(labelSmoothing - 1), [rows, 1]);
    difference = e.op('ScatterElements', [difference, at, hard], { axis: 1, reduction: 'add' });
    const scale = e.op('Reshape', [e.op('Mul', [weights!, dy!]), e.ints([rows, 1])]);
    return [e.op('Mul', [difference, scale])];
  },
};

function column(e: Emitter, vector: string): string {
  return e.op('Reshape', [vector, e.ints([-1, 1])]);
}

/** Labels with the ignored ones replaced by 0, so that they index a class. */
function safeLabels(e: Emitter, labels: string, ignoreLabel: number | null): string {
  if (ignoreLabel === null) return labels;
  const ignored = e.op('Equal', [labels, e.int32Scalar(ignoreLabel)]);
  return e.op('Where', [ignored, e.int32Scalar(0), labels]);
}

/** The weight of each row in the loss: 0 where ignored, so that they sum to 1 (mean) or count the rows (sum). */
function rowWeights(
  e: Emitter,
  labels: string,
  rows: number,
  reduction: 'mean' | 'sum',
  ignoreLabel: number | null,
): string {
  if (ignoreLabel === null) {
    return e.floats(new Float32Array(rows).fill(reduction === 'mean' ? 1 / rows : 1), [rows]);
  }
  const ignored = e.op('Equal', [labels, e.int32Scalar(ignoreLabel)]);
  const counted = e.op('Cast', [e.op('Not', [ignored])], { to: 1 });
  if (reduction === 'sum') return counted;
  return e.op('Div', [counted, e.op('ReduceSum', [counted], { keepdims: 1 })]);
}
