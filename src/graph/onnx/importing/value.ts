/**
 * What a name of an ONNX file stands for while it is imported: a value known now (shapes, axes, scalars), a weight
 * not yet used, or a tensor of the graph. Known values hold numbers or multiples of the batch size, so that the
 * shape arithmetic that exporters write is evaluated here and never reaches the graph.
 * Invariant: `values.length` is the product of `shape`; integers of any width are 'int32'.
 */
import type { Tensor } from '../../graph.ts';
import { isBatch, sameDim, type Dim } from '../../shape.ts';
import type { OnnxTensor } from '../proto.ts';

export interface Known {
  readonly kind: 'known';
  readonly dtype: 'float32' | 'int32' | 'bool';
  readonly shape: readonly number[];
  readonly values: readonly Dim[];
}

/** A float initializer of rank 1 or more; it becomes a parameter, a state or a constant by its first use. */
export interface Weight {
  readonly kind: 'weight';
  readonly name: string;
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

export interface Computed {
  readonly kind: 'tensor';
  readonly tensor: Tensor;
}

export type Value = Known | Weight | Computed;

/** Known values are folded element by element; larger ones are left to the graph. */
export const MAX_FOLDED_ELEMENTS = 1 << 16;

export function knownInts(values: readonly Dim[]): Known {
  return { kind: 'known', dtype: 'int32', shape: [values.length], values };
}

export function knownScalar(value: Dim, dtype: Known['dtype'] = 'int32'): Known {
  return { kind: 'known', dtype, shape: [], values: [value] };
}

/** Undefined for element types outside the catalogue. */
export function knownFromTensor({ dtype, shape, data }: OnnxTensor): Known | undefined {
  if (dtype === 'int8' || dtype === 'uint8') return undefined;
  const kind = dtype === 'bool' ? 'bool' : dtype === 'int32' || dtype === 'int64' ? 'int32' : 'float32';
  const round = dtype === 'float64' ? Math.fround : Number;
  return {
    kind: 'known',
    dtype: kind,
    shape,
    values: Array.from(data as ArrayLike<number | bigint>, (v) => round(Number(v))),
  };
}

/** The values as plain numbers, or undefined if one depends on the batch. */
export function numbersOf({ values }: Known): number[] | undefined {
  return values.some(isBatch) ? undefined : (values as number[]);
}

/** The result of one pair, or undefined if it is not known before the batch size is. */
export type FoldPair = (a: Dim, b: Dim, integer: boolean) => Dim | undefined;

const numeric =
  (f: (a: number, b: number, integer: boolean) => number): FoldPair =>
  (a, b, integer) =>
    isBatch(a) || isBatch(b) ? undefined : f(a, b, integer);

const scaled = (dim: Dim, factor: number): Dim =>
  isBatch(dim) ? { multiple: dim.multiple * factor } : dim * factor;

export const foldPairs = {
  add: (a, b) => {
    if (a === 0 || b === 0) return a === 0 ? b : a;
    if (isBatch(a) && isBatch(b)) return { multiple: a.multiple + b.multiple };
    return isBatch(a) || isBatch(b) ? undefined : a + b;
  },
  sub: (a, b) => {
    if (b === 0) return a;
    if (isBatch(a) && isBatch(b)) {
      const multiple = a.multiple - b.multiple;
      return multiple > 0 ? { multiple } : multiple === 0 ? 0 : undefined;
    }
    return isBatch(a) || isBatch(b) ? undefined : a - b;
  },
  mul: (a, b) => {
    if (isBatch(a) && isBatch(b)) return undefined;
    const [dim, factor] = isBatch(a) ? [a, b as number] : [b, a];
    if (isBatch(dim) && factor < 1) return factor === 0 ? 0 : undefined;
    return scaled(dim, factor);
  },
  div: (a, b, integer) => {
    const divisor = isBatch(b) ? (isBatch(a) ? b.multiple : undefined) : b;
    if (divisor === undefined || (integer && divisor === 0)) return undefined;
    const quotient = (isBatch(a) ? a.multiple : a) / divisor;
    if (!isBatch(a)) return integer ? Math.trunc(quotient) : quotient;
    if (!Number.isInteger(quotient) || quotient < 1) return undefined;
    return isBatch(b) ? quotient : { multiple: quotient };
  },
  // The batch size is at least 1 and otherwise unknown.
  equal: (a, b) => {
    if (isBatch(a) === isBatch(b)) return Number(sameDim(a, b));
    return ((isBatch(a) ? b : a) as number) < 1 ? 0 : undefined;
  },
  pow: numeric((a, b) => a ** b),
  max: numeric((a, b) => Math.max(a, b)),
  min: numeric((a, b) => Math.min(a, b)),
  greater: numeric((a, b) => Number(a > b)),
  greaterEqual: numeric((a, b) => Number(a >= b)),
  and: numeric((a, b) => Number(a !== 0 && b !== 0)),
  or: numeric((a, b) => Number(a !== 0 || b !== 0)),
} satisfies Record<string, FoldPair>;

/** Folds two values of one shape, or one of them a single element; undefined where that is not possible. */
export function foldBinary(
  fold: FoldPair,
  a: Known,
  b: Known,
  dtype: Known['dtype'] = a.dtype,
): Known | undefined {
  const single = (value: Known) => value.values.length === 1;
  const same = a.shape.length === b.shape.length && a.shape.every((dim, i) => dim === b.shape[i]);
  if (!same && !single(a) && !single(b)) return undefined;
  if (Math.max(a.values.length, b.values.length) > MAX_FOLDED_ELEMENTS) return undefined;
  const rank = Math.max(a.shape.length, b.shape.length);
  const larger = same || single(b) ? a : b;
  const shape = [...new Array<number>(rank - larger.shape.length).fill(1), ...larger.shape];
  const values: Dim[] = [];
  for (let i = 0; i < larger.values.length; i++) {
    const left = a.values[single(a) ? 0 : i]!;
    const right = b.values[single(b) ? 0 : i]!;
    const result = fold(left, right, a.dtype !== 'float32');
    if (result === undefined) return undefined;
    values.push(dtype === 'float32' && !isBatch(result) ? Math.fround(result) : result);
  }
  return { kind: 'known', dtype, shape, values };
}
