/** Gradients of the operations of neural networks; each is written out by hand where autodiff of parts would cost passes. */
import type { NeuralOperations } from '../catalogue.ts';
import type { Tensor } from '../graph.ts';
import * as op from '../operations/index.ts';
import type { Dim } from '../shape.ts';
import type { GradientTable } from './rule.ts';

const { add, exp, matmul, mul, reshape, sub, sum, sumTo } = op;

const rest = (x: Tensor) => x.shape.flatMap((_, i) => (i === 1 ? [] : [i]));

/** A vector of the channels as `[1, C, 1, ...]`. */
function asChannels(vector: Tensor, x: Tensor): Tensor {
  return reshape(
    vector,
    x.shape.map((dim, i): Dim => (i === 1 ? dim : 1)),
  );
}

export const neuralGradients: GradientTable<keyof NeuralOperations> = {
  matmul: ({ dy, inputs, attributes: { transposeA, transposeB }, needs }) => {
    const [a, b] = inputs as [Tensor, Tensor];
    const da = () =>
      transposeA
        ? matmul(b, dy, { transposeA: transposeB, transposeB: true })
        : matmul(dy, b, { transposeB: !transposeB });
    const db = () =>
      transposeB
        ? matmul(dy, a, { transposeA: true, transposeB: transposeA })
        : matmul(a, dy, { transposeA: !transposeA });
    return [needs(0) ? sumTo(da(), a.shape) : undefined, needs(1) ? sumTo(db(), b.shape) : undefined];
  },
  affine: ({ dy, inputs: [x, w, b], needs }) => [
    needs(0) ? op.transpose(matmul(w!, dy, { transposeB: true }), [1, 0]) : undefined,
    needs(1) ? matmul(x!, dy, { transposeA: true }) : undefined,
    b && needs(2) ? sum(dy, [0]) : undefined,
  ],
  unfold: ({ dy, attributes }) => dy.graph.apply('fold', [dy], attributes),
  fold: ({ dy, attributes }) => dy.graph.apply('unfold', [dy], attributes),
  conv: ({ dy, inputs: [x, w, b], attributes, needs }) => [
    needs(0) ? dy.graph.apply('conv_input_grad', [dy, w!], { ...attributes, shape: x!.shape })[0] : undefined,
    needs(1)
      ? dy.graph.apply('conv_filter_grad', [x!, dy], { ...attributes, shape: w!.shape })[0]
      : undefined,
    b && needs(2) ? sum(dy, rest(dy)) : undefined,
  ],
  max_pool: ({ dy, inputs: [x], outputs: [, indices], attributes }) =>
    dy.graph.apply('max_pool_grad', [dy, indices!], { ...attributes, shape: x!.shape }),
  avg_pool: ({ dy, inputs: [x], attributes }) =>
    dy.graph.apply('avg_pool_grad', [dy], { ...attributes, shape: x!.shape }),
  batch_norm: ({ dy, inputs: [x, gamma], outputs: [, normalised, , , inverse] }) => {
    const axes = rest(x!);
    const { coefficient, power } = op.countAlong(x!, axes);
    const share = dy.graph.batchScalar(1 / coefficient, -power);
    const dBeta = sum(dy, axes);
    const dGamma = sum(mul(dy, normalised!), axes);
    const centred = sub(
      sub(dy, asChannels(mul(dBeta, share), x!)),
      mul(normalised!, asChannels(mul(dGamma, share), x!)),
    );
    return [mul(centred, asChannels(mul(gamma!, inverse!), x!)), dGamma, dBeta];
  },
  batch_norm_inference: ({ dy, inputs: [x, gamma, , mean, variance], attributes: { epsilon } }) => {
    const axes = rest(x!);
    const inverse = op.div(1, op.sqrt(add(variance!, epsilon)));
    const normalised = mul(sub(x!, asChannels(mean!, x!)), asChannels(inverse, x!));
    const dx = mul(dy, asChannels(mul(gamma!, inverse), x!));
    return [dx, sum(mul(dy, normalised), axes), sum(dy, axes), undefined, undefined];
  },
  layer_norm: ({ dy, inputs: [x, gamma], outputs: [, mean, inverse], attributes: { axis } }) => {
    const inner = x!.shape.flatMap((_, i) => (i >= axis ? [i] : []));
    const normalised = mul(sub(x!, mean!), inverse!);
    const scaled = gamma ? mul(dy, gamma) : dy;
    const centred = sub(scaled, op.mean(scaled, inner, true));
    const dx = mul(sub(centred, mul(normalised, op.mean(mul(scaled, normalised), inner, true))), inverse!);
    return gamma ? [dx, sumTo(mul(dy, normalised), gamma.shape), sumTo(dy, gamma.shape)] : [dx];
  },
  softmax: ({ dy, outputs: [y], attributes: { axis } }) => [mul(y!, sub(dy, sum(mul(dy, y!), axis, true)))],
  log_softmax: ({ dy, outputs: [y], attributes: { axis } }) => [sub(dy, mul(exp(y!), sum(dy, axis, true)))],
  cross_entropy: ({ dy, inputs: [, labels], outputs: [, probabilities, rowWeights], attributes }) => [
    dy.graph.apply('cross_entropy_grad', [dy, probabilities!, rowWeights!, labels!], attributes)[0],
    undefined,
  ],
  embedding: ({ dy, inputs: [table, indices], attributes: { paddingIndex } }) => {
    const flat = reshape(indices!, [-1]);
    const rows = reshape(dy, [-1, table!.shape[1]!]);
    return [op.indexAdd(flat, withoutPadding(rows, flat, paddingIndex), 0, table!.shape), undefined];
  },
  lstm: ({ adjoint, inputs, outputs }) => {
    const [x, h0, c0, wIh, wHh] = inputs as [Tensor, Tensor, Tensor, Tensor, Tensor];
    const [y, , , gates, cells] = outputs as [Tensor, Tensor, Tensor, Tensor, Tensor];
    const given = [adjoint(0), adjoint(1), adjoint(2), x, h0, c0, wIh, wHh, y, gates, cells];
    const [dx, dh0, dc0, dwIh, dwHh, db] = x.graph.apply('lstm_grad', given, {});
    return [dx, dh0, dc0, dwIh, dwHh, db, db];
  },
  gru: ({ adjoint, inputs, outputs }) => {
    const [x, h0, wIh, wHh] = inputs as [Tensor, Tensor, Tensor, Tensor];
    const [y, , gates] = outputs as [Tensor, Tensor, Tensor];
    const given = [adjoint(0), adjoint(1), x, h0, wIh, wHh, y, gates];
    const [dx, dh0, dwIh, dwHh, dbIh, dbHh] = x.graph.apply('gru_grad', given, {});
    return [dx, dh0, dwIh, dwHh, dbIh, dbHh];
  },
};

function withoutPadding(rows: Tensor, indices: Tensor, paddingIndex: number | null): Tensor {
  if (paddingIndex === null) return rows;
  const padding = rows.graph.constant(new Int32Array([paddingIndex]), []);
  const isPadding = reshape(op.equal(indices, padding), [rows.shape[0]!, 1]);
  return op.where(isPadding, 0, rows);
}
