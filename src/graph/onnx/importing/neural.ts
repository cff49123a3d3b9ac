/** Import of products, normalisations, softmax and dropout. */
import * as op from '../../operations/index.ts';
import type { Tensor } from '../../graph.ts';
import { sameShape } from '../../shape.ts';
import type { ImportNode, ImportTable } from './node.ts';

function matmul(n: ImportNode): Tensor {
  let [a, b] = [n.tensor(0), n.tensor(1)];
  const gone: number[] = [];
  if (a.shape.length === 1) {
    a = op.unsqueeze(a, [0]);
    gone.push(-2);
  }
  if (b.shape.length === 1) {
    b = op.unsqueeze(b, [1]);
    gone.push(-1);
  }
  const y = op.matmul(a, b);
  return gone.length === 0 ? y : op.squeeze(y, gone);
}

function gemm(n: ImportNode): Tensor {
  const [a, w] = [n.tensor(0), n.tensor(1)];
  const [alpha, beta] = [n.float('alpha', 1), n.float('beta', 1)];
  const transposeA = n.int('transA', 0) !== 0;
  const transposeB = n.int('transB', 0) !== 0;
  const bias = n.has(2) ? n.tensor(2) : undefined;
  const plain = !transposeA && !transposeB && alpha === 1 && beta === 1;
  if (a.shape.length !== 2 || w.shape.length !== 2)
    throw n.broken('multiplies tensors that are not of rank 2');
  if (plain && (!bias || sameShape(bias.shape, [w.shape[1]!]))) return op.affine(a, w, bias);
  const product = op.matmul(a, w, { transposeA, transposeB });
  const scaled = alpha === 1 ? product : op.mul(product, alpha);
  if (!bias) return scaled;
  return op.add(scaled, beta === 1 ? bias : op.mul(bias, beta));
}

/** Normalises by the batch, as in training; the file's statistics become state that training goes on to update. */
function batchNormalization(n: ImportNode): Tensor {
  n.only('training_mode', 0);
  n.ignore('spatial');
  const epsilon = n.float('epsilon', 1e-5);
  const momentum = 1 - n.float('momentum', 0.9);
  const [x, gamma, beta] = [n.tensor(0), n.tensor(1), n.tensor(2)];
  const [mean, variance] = [n.value(3), n.value(4)];
  if (mean.kind !== 'weight' || variance.kind !== 'weight') {
    return op.batchNormalizeWith(x, gamma, beta, n.tensor(3), n.tensor(4), epsilon);
  }
  const { graph, session } = n;
  const batch = op.batchNormalize(x, gamma, beta, epsilon);
  const states = [session.state(mean), session.state(variance)] as const;
  const updates = op.runningStatistics(x, batch, ...states, momentum);
  const assigned = new Set(graph.stateUpdates.map(({ state }) => state.tensor));
  states.forEach((state, i) => {
    if (!assigned.has(state)) graph.assign(state, updates[i]!);
  });
  graph.linkStatistics(batch.y.node, { mean: states[0], variance: states[1] });
  return batch.y;
}

function layerNormalization(n: ImportNode): Tensor {
  const x = n.tensor(0);
  n.ignore('stash_type');
  const epsilon = n.float('epsilon', 1e-5);
  const given = n.int('axis', -1);
  const axis = given < 0 ? given + x.shape.length : given;
  if (axis < 0 || axis >= x.shape.length)
    throw n.broken(`has axis ${given} for a tensor of rank ${x.shape.length}`);
  const normalised = x.shape.slice(axis);
  const inputs = [x, op.expand(n.tensor(1), normalised)];
  if (n.has(2)) inputs.push(op.expand(n.tensor(2), normalised));
  return n.graph.apply('layer_norm', inputs, { axis, epsilon })[0]!;
}

function dropout(n: ImportNode): Tensor {
  n.ignore('seed');
  const x = n.tensor(0);
  const p = n.has(1) ? n.scalar(1, 'its ratio') : 0.5;
  return n.session.dropout && p > 0 ? op.applyDropout(x, n.graph.dropoutMask(x.shape, p), p) : x;
}

export const neuralImport: ImportTable = {
  MatMul: matmul,
  Gemm: gemm,
  BatchNormalization: batchNormalization,
  LayerNormalization: layerNormalization,
  Softmax: (n) => op.softmax(n.tensor(0), n.int('axis', -1)),
  LogSoftmax: (n) => op.logSoftmax(n.tensor(0), n.int('axis', -1)),
  Dropout: dropout,
};
