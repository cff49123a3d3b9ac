/** Elementwise operations as functions of tensors; binary ones broadcast as NumPy does and accept numbers. */
import { UsageError } from '../../base/index.ts';
import type { DType } from '../catalogue.ts';
import type { Tensor } from '../graph.ts';

export type Operand = Tensor | number;
type BinaryName =
  'add' | 'sub' | 'mul' | 'div' | 'pow' | 'greater' | 'greater_equal' | 'equal' | 'logical_and';
type UnaryName =
  | 'neg' | 'exp' | 'log' | 'sqrt' | 'abs' | 'relu' | 'tanh' | 'sigmoid' | 'erf' | 'gelu' | 'softplus' | 'sign' | 'logical_not'; // prettier-ignore

function binary(op: BinaryName, a: Operand, b: Operand): Tensor {
  const graph = typeof a !== 'number' ? a.graph : typeof b !== 'number' ? b.graph : undefined;
  if (!graph) throw new UsageError('INVALID_ARGUMENT', `${op}: at least one operand must be a tensor.`);
  const left = typeof a === 'number' ? graph.scalar(a) : a;
  const right = typeof b === 'number' ? graph.scalar(b) : b;
  return graph.apply(op, [left, right], {})[0]!;
}

function unary(op: UnaryName, x: Tensor): Tensor {
  return x.graph.apply(op, [x], {})[0]!;
}

export const add = (a: Operand, b: Operand): Tensor => binary('add', a, b);
export const sub = (a: Operand, b: Operand): Tensor => binary('sub', a, b);
export const mul = (a: Operand, b: Operand): Tensor => binary('mul', a, b);
export const div = (a: Operand, b: Operand): Tensor => binary('div', a, b);
export const pow = (a: Operand, b: Operand): Tensor => binary('pow', a, b);
export const greater = (a: Operand, b: Operand): Tensor => binary('greater', a, b);
export const greaterEqual = (a: Operand, b: Operand): Tensor => binary('greater_equal', a, b);
export const equal = (a: Operand, b: Operand): Tensor => binary('equal', a, b);
export const and = (a: Tensor, b: Tensor): Tensor => binary('logical_and', a, b);
export const not = (x: Tensor): Tensor => unary('logical_not', x);

export const neg = (x: Tensor): Tensor => unary('neg', x);
export const exp = (x: Tensor): Tensor => unary('exp', x);
export const log = (x: Tensor): Tensor => unary('log', x);
export const sqrt = (x: Tensor): Tensor => unary('sqrt', x);
export const abs = (x: Tensor): Tensor => unary('abs', x);
export const relu = (x: Tensor): Tensor => unary('relu', x);
export const tanh = (x: Tensor): Tensor => unary('tanh', x);
export const sigmoid = (x: Tensor): Tensor => unary('sigmoid', x);
export const erf = (x: Tensor): Tensor => unary('erf', x);
/** The exact (erf) form. */
export const gelu = (x: Tensor): Tensor => unary('gelu', x);
export const sign = (x: Tensor): Tensor => unary('sign', x);
export const square = (x: Tensor): Tensor => mul(x, x);

export function leakyRelu(x: Tensor, slope = 0.01): Tensor {
  return x.graph.apply('leaky_relu', [x], { slope })[0]!;
}

/** `log(1 + exp(beta x)) / beta`. */
export function softplus(x: Tensor, beta = 1): Tensor {
  return beta === 1 ? unary('softplus', x) : div(unary('softplus', mul(x, beta)), beta);
}

/** Limits to [min, max]; null leaves a side open. The derivative at a bound is 1. */
export function clamp(x: Tensor, min: number | null, max: number | null): Tensor {
  return x.graph.apply('clamp', [x], { min, max })[0]!;
}

export function where(condition: Tensor, a: Operand, b: Operand): Tensor {
  const { graph } = condition;
  const left = typeof a === 'number' ? graph.scalar(a) : a;
  const right = typeof b === 'number' ? graph.scalar(b) : b;
  return graph.apply('where', [condition, left, right], {})[0]!;
}

export function cast(x: Tensor, to: DType): Tensor {
  return x.dtype === to ? x : x.graph.apply('cast', [x], { to })[0]!;
}

/** The sum of tensors of one shape. */
export function addN(terms: readonly Tensor[]): Tensor {
  const [first] = terms;
  if (!first) throw new UsageError('INVALID_ARGUMENT', 'addN: give at least one tensor.');
  if (terms.length === 1) return first;
  if (terms.length === 2) return add(first, terms[1]!);
  return first.graph.apply('add_n', terms, {})[0]!;
}
