/**
 * Import of LSTM and GRU. ONNX stacks the gates of W, R and B in another order than the catalogue (i, o, f, c and
 * z, r, h against i, f, g, o and r, z, n): weights are reordered here, once, so that they are trained in our layout.
 */
import * as op from '../../operations/index.ts';
import type { Tensor } from '../../graph.ts';
import { printShape, sameShape, staticShape, type Dim } from '../../shape.ts';
import type { ImportNode, ImportTable } from './node.ts';

interface Cell {
  readonly kind: 'lstm' | 'gru';
  /** For each of our gates its place in the file. */
  readonly gates: readonly number[];
  readonly activations: readonly string[];
}

const LSTM: Cell = { kind: 'lstm', gates: [0, 2, 3, 1], activations: ['sigmoid', 'tanh', 'tanh'] };
const GRU: Cell = { kind: 'gru', gates: [1, 0, 2], activations: ['sigmoid', 'tanh'] };

function checkSettings(n: ImportNode, { activations }: Cell): void {
  n.only('direction', 'forward');
  n.only('layout', 0);
  n.only('input_forget', 0);
  const given = n.attribute('activations');
  const names = given?.type === 'strings' ? given.value.map((name) => name.toLowerCase()) : activations;
  if (names.join() !== activations.join()) throw n.unsupported(`has the activations ${names.join(', ')}`);
  if (n.hasAttribute('clip')) throw n.unsupported('clips its gates (clip)');
  if (n.has(4)) throw n.unsupported('has sequences of different lengths (sequence_lens)');
  if (n.has(7)) throw n.unsupported('has peepholes (P)');
}

/** The blocks of a matrix `[gates * H, width]` in our order. */
function reorder(data: Float32Array, gates: readonly number[], offset = 0): Float32Array {
  const length = offset === 0 ? data.length : data.length - offset;
  const block = length / gates.length;
  const result = new Float32Array(length);
  gates.forEach((from, to) =>
    result.set(data.subarray(offset + from * block, offset + (from + 1) * block), to * block),
  );
  return result;
}

/** The same on a tensor that is not a weight of the file. */
function reorderTensor(x: Tensor, gates: readonly number[]): Tensor {
  const block = (x.shape[0] as number) / gates.length;
  const parts = op.split(x, gates.map(() => block), 0); // prettier-ignore
  return op.concat(
    gates.map((from) => parts[from]!),
    0,
  );
}

function matrix(n: ImportNode, input: number, { kind, gates }: Cell, shape: readonly Dim[]): Tensor {
  const value = n.value(input);
  const given: readonly Dim[] = value.kind === 'tensor' ? value.tensor.shape : value.shape;
  if (!sameShape(given, [1, ...shape])) {
    throw n.broken(`has input ${input} of ${printShape(given)}, expected ${printShape([1, ...shape])}`);
  }
  if (value.kind === 'weight') {
    const size = staticShape(shape, value.name);
    return n.session.parameter(value, `${kind} gates`, value.name, size, (data) => reorder(data, gates));
  }
  return reorderTensor(op.reshape(n.tensor(input), shape), gates);
}

function biases(n: ImportNode, { kind, gates }: Cell, hidden: number): [Tensor, Tensor] {
  const length = gates.length * hidden;
  if (!n.has(3)) {
    const zeros = n.graph.constant(new Float32Array(length), [length]);
    return [zeros, zeros];
  }
  const value = n.value(3);
  const given: readonly Dim[] = value.kind === 'tensor' ? value.tensor.shape : value.shape;
  if (!sameShape(given, [1, 2 * length]))
    throw n.broken(`has a bias of ${printShape(given)}, expected [1, ${2 * length}]`);
  if (value.kind === 'weight') {
    const half = (part: 'ih' | 'hh', from: number) =>
      n.session.parameter(value, `${kind} bias ${part}`, `${value.name}.${part}`, [length], (data) =>
        reorder(data.subarray(from, from + length), gates),
      );
    return [half('ih', 0), half('hh', length)];
  }
  const [ih, hh] = op.split(op.reshape(n.tensor(3), [2 * length]), [length, length], 0) as [Tensor, Tensor];
  return [reorderTensor(ih, gates), reorderTensor(hh, gates)];
}

function initialState(n: ImportNode, input: number, shape: readonly Dim[]): Tensor {
  if (!n.has(input)) return op.expand(n.graph.scalar(0), shape);
  const given = n.tensor(input);
  if (given.shape.length !== 3 || given.shape[0] !== 1)
    throw n.broken(`starts from a state of ${printShape(given.shape)}`);
  // A state of batch size 1 serves every sample.
  return op.expand(op.squeeze(given, [0]), shape);
}

function prepare(
  n: ImportNode,
  cell: Cell,
): { x: Tensor; state: readonly Dim[]; weights: op.RecurrentWeights } {
  checkSettings(n, cell);
  const x = n.tensor(0);
  const hidden = n.int('hidden_size');
  if (x.shape.length !== 3) throw n.broken(`reads ${printShape(x.shape)}, expected [steps, batch, size]`);
  if (!Number.isSafeInteger(hidden) || hidden < 1) throw n.broken(`has hidden_size ${hidden}`);
  const rows = cell.gates.length * hidden;
  const wIh = matrix(n, 1, cell, [rows, x.shape[2]!]);
  const wHh = matrix(n, 2, cell, [rows, hidden]);
  const [bIh, bHh] = biases(n, cell, hidden);
  return { x, state: [x.shape[1]!, hidden], weights: { wIh, wHh, bIh, bHh } };
}

export const recurrentImport: ImportTable = {
  LSTM: (n) => {
    const { x, state, weights } = prepare(n, LSTM);
    const { y, h, c } = op.lstmSequence(
      x,
      { h: initialState(n, 5, state), c: initialState(n, 6, state) },
      weights,
    );
    return [op.unsqueeze(y, [1]), op.unsqueeze(h, [0]), op.unsqueeze(c, [0])];
  },
  GRU: (n) => {
    if (n.int('linear_before_reset', 0) !== 1) {
      throw n.unsupported('has linear_before_reset = 0; only 1 is supported (the form of cuDNN and PyTorch)');
    }
    const { x, state, weights } = prepare(n, GRU);
    const { y, h } = op.gruSequence(x, initialState(n, 5, state), weights);
    return [op.unsqueeze(y, [1]), op.unsqueeze(h, [0])];
  },
};
