/** Import of elementwise, comparing and n-ary operators, and of casts. */
import * as op from '../../operations/index.ts';
import type { Tensor } from '../../graph.ts';
import { sameShape } from '../../shape.ts';
import { onnxDTypes } from '../proto.ts';
import type { ImportNode, ImportRule, ImportTable } from './node.ts';
import { foldBinary, foldPairs, numbersOf, type FoldPair, type Known } from './value.ts';

function unary(build: (x: Tensor) => Tensor, fold?: (x: number) => number): ImportRule {
  return (n) => {
    const known = n.known(0);
    const numbers = known && fold ? numbersOf(known) : undefined;
    if (!known || !numbers) return build(n.tensor(0));
    const round = known.dtype === 'float32' ? Math.fround : Math.trunc;
    return { ...known, values: numbers.map((x) => round(fold!(x))) };
  };
}

function binary(build: (a: Tensor, b: Tensor) => Tensor, fold: FoldPair, dtype?: Known['dtype']): ImportRule {
  return (n) => {
    const [a, b] = [n.known(0), n.known(1)];
    const folded = a && b ? foldBinary(fold, a, b, dtype) : undefined;
    return folded ?? build(n.tensor(0), n.tensor(1));
  };
}

/** An operator over any number of inputs as a chain of pairs. */
function nary(build: (a: Tensor, b: Tensor) => Tensor, fold: FoldPair): ImportRule {
  return (n) => {
    if (n.inputCount === 0) throw n.broken('has no inputs');
    if (n.inputCount === 2) return binary(build, fold)(n);
    return n.tensors().reduce(build);
  };
}

function sumOf(terms: readonly Tensor[]): Tensor {
  return terms.every((term) => sameShape(term.shape, terms[0]!.shape))
    ? op.addN(terms)
    : terms.reduce(op.add);
}

const larger = (a: Tensor, b: Tensor) => op.where(op.greaterEqual(a, b), a, b);
const smaller = (a: Tensor, b: Tensor) => op.where(op.greaterEqual(b, a), a, b);

function gelu(n: ImportNode): Tensor {
  const x = n.tensor(0);
  const approximate = n.text('approximate', 'none');
  if (approximate === 'none') return op.gelu(x);
  if (approximate !== 'tanh') throw n.unsupported(`has approximate = ${JSON.stringify(approximate)}`);
  const inner = op.mul(op.add(x, op.mul(op.mul(op.square(x), x), 0.044715)), Math.sqrt(2 / Math.PI));
  return op.mul(op.mul(x, 0.5), op.add(op.tanh(inner), 1));
}

function cast(n: ImportNode): Tensor | Known {
  n.ignore('saturate');
  const code = n.int('to');
  const target = Object.entries(onnxDTypes).find(([, info]) => info.code === code)?.[0];
  if (target !== 'float32' && target !== 'int32' && target !== 'int64' && target !== 'bool') {
    throw n.unsupported(
      `casts to ${target ?? `type number ${code}`}; supported are float32, int32, int64 and bool`,
    );
  }
  // All integers are int32 in the graph.
  const to = target === 'int64' ? 'int32' : target;
  const known = n.known(0);
  if (!known) return op.cast(n.tensor(0), to);
  if (to === 'float32') return { ...known, dtype: to };
  const numbers = numbersOf(known);
  if (to === 'int32' && !numbers) return { ...known, dtype: to };
  if (!numbers) throw n.unsupported('casts the batch size to bool');
  return { ...known, dtype: to, values: numbers.map(to === 'int32' ? Math.trunc : (x) => Number(x !== 0)) };
}

function where(n: ImportNode): Tensor | Known {
  const condition = n.known(0);
  const [a, b] = [n.known(1), n.known(2)];
  const picks = condition && numbersOf(condition);
  if (picks && a && b && a.dtype === b.dtype) {
    const at = (value: Known, i: number) => value.values[value.values.length === 1 ? 0 : i];
    const shapes = [condition, a, b].filter((value) => value.values.length !== 1).map((value) => value.shape);
    const shape = shapes[0] ?? a.shape;
    if (shapes.every((other) => sameShape(other, shape))) {
      const count = shape.reduce((product, dim) => product * dim, 1);
      const values = Array.from({ length: count }, (_, i) =>
        at(picks[picks.length === 1 ? 0 : i] ? a : b, i)!,
      );
      return { kind: 'known', dtype: a.dtype, shape, values };
    }
  }
  return op.where(n.tensor(0), n.tensor(1), n.tensor(2));
}

export const elementwiseImport: ImportTable = {
  Add: binary(op.add, foldPairs.add),
  Sub: binary(op.sub, foldPairs.sub),
  Mul: binary(op.mul, foldPairs.mul),
  Div: binary(op.div, foldPairs.div),
  Pow: (n) => {
    const exponent = n.singleNumber(1);
    if (exponent === undefined || n.known(0)) return binary(op.pow, foldPairs.pow)(n);
    return exponent === 2 ? op.square(n.tensor(0)) : op.pow(n.tensor(0), exponent);
  },
  Neg: unary(op.neg, (x) => -x),
  Exp: unary(op.exp),
  Log: unary(op.log),
  Sqrt: unary(op.sqrt, Math.sqrt),
  Abs: unary(op.abs, Math.abs),
  Sign: unary(op.sign),
  Relu: unary(op.relu),
  Tanh: unary(op.tanh),
  Sigmoid: unary(op.sigmoid),
  Erf: unary(op.erf),
  Softplus: unary((x) => op.softplus(x)),
  Reciprocal: unary(
    (x) => op.div(1, x),
    (x) => 1 / x,
  ),
  Gelu: gelu,
  LeakyRelu: (n) => op.leakyRelu(n.tensor(0), n.float('alpha', 0.01)),
  Clip: (n) => {
    const bound = (input: number) => (n.has(input) ? n.scalar(input, 'its bounds') : null);
    return op.clamp(n.tensor(0), bound(1), bound(2));
  },
  Sum: (n) => sumOf(n.tensors()),
  Mean: (n) => op.div(sumOf(n.tensors()), n.inputCount),
  Max: nary(larger, foldPairs.max),
  Min: nary(smaller, foldPairs.min),
  Greater: binary(op.greater, foldPairs.greater, 'bool'),
  GreaterOrEqual: binary(op.greaterEqual, foldPairs.greaterEqual, 'bool'),
  Less: binary(
    (a, b) => op.greater(b, a),
    (a, b, integer) => foldPairs.greater(b, a, integer),
    'bool',
  ),
  LessOrEqual: binary(
    (a, b) => op.greaterEqual(b, a),
    (a, b, integer) => foldPairs.greaterEqual(b, a, integer),
    'bool',
  ),
  Equal: binary(op.equal, foldPairs.equal, 'bool'),
  And: binary(op.and, foldPairs.and),
  Or: binary((a, b) => op.not(op.and(op.not(a), op.not(b))), foldPairs.or),
  Not: unary(op.not, (x) => Number(x === 0)),
  Where: where,
  Cast: cast,
};
