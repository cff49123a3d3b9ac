/**
 * Shapes with one symbolic dimension: the batch. A dimension is a number or a multiple of the batch size,
 * so that `[N, 20, 256]` reshapes to `[20N, 256]` and still prints, compares and divides exactly.
 * Shapes are frozen data; nothing here knows operations.
 */
import { UsageError } from '../base/index.ts';

/** `multiple * N`, where N is the batch size, known only when a graph is compiled. */
export interface BatchDim {
  readonly multiple: number;
}

export type Dim = number | BatchDim;
export type Shape = readonly Dim[];

/** The batch dimension itself. */
export const N: BatchDim = Object.freeze({ multiple: 1 });

export function isBatch(dim: Dim): dim is BatchDim {
  return typeof dim !== 'number';
}

export function sameDim(a: Dim, b: Dim): boolean {
  if (isBatch(a)) return isBatch(b) && a.multiple === b.multiple;
  return a === b;
}

export function sameShape(a: Shape, b: Shape): boolean {
  return a.length === b.length && a.every((dim, i) => sameDim(dim, b[i]!));
}

export function printShape(shape: Shape): string {
  const print = (dim: Dim) => (isBatch(dim) ? (dim.multiple === 1 ? 'N' : `${dim.multiple}N`) : String(dim));
  return `[${shape.map(print).join(', ')}]`;
}

/** Replaces N by a number. */
export function resolveShape(shape: Shape, batch: number): number[] {
  return shape.map((dim) => (isBatch(dim) ? dim.multiple * batch : dim));
}

export function hasBatch(shape: Shape): boolean {
  return shape.some(isBatch);
}

/** The shape as plain numbers; an error if it depends on the batch. */
export function staticShape(shape: Shape, what: string): number[] {
  return shape.map((dim) => {
    if (!isBatch(dim)) return dim;
    throw new UsageError(
      'SHAPE_MISMATCH',
      `${what} must not depend on the batch, but is ${printShape(shape)}.`,
      {
        shape: printShape(shape),
      },
    );
  });
}

export function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

/** The number of elements as `coefficient * N^power`. */
export function symbolicCount(shape: Shape): { coefficient: number; power: number } {
  let coefficient = 1;
  let power = 0;
  for (const dim of shape) {
    coefficient *= isBatch(dim) ? dim.multiple : dim;
    if (isBatch(dim)) power++;
  }
  return { coefficient, power };
}

/** NumPy broadcasting of two shapes, or undefined where they do not fit. */
export function broadcastShapes(a: Shape, b: Shape): Shape | undefined {
  const rank = Math.max(a.length, b.length);
  const result: Dim[] = [];
  for (let i = 0; i < rank; i++) {
    const left = a[i - (rank - a.length)] ?? 1;
    const right = b[i - (rank - b.length)] ?? 1;
    if (sameDim(left, right) || right === 1) result.push(left);
    else if (left === 1) result.push(right);
    else return undefined;
  }
  return result;
}

/** A possibly negative axis as a position; an error names the operation. */
export function normalizeAxis(axis: number, rank: number, op: string): number {
  const position = axis < 0 ? axis + rank : axis;
  if (!Number.isInteger(axis) || position < 0 || position >= Math.max(rank, 1)) {
    throw new UsageError('INVALID_ARGUMENT', `${op}: axis ${axis} is outside a tensor of rank ${rank}.`, {
      axis,
      rank,
    });
  }
  return position;
}

/** The shape of a reshape: one target entry may be -1 and is inferred. Element counts must agree for every N. */
export function reshapeTo(from: Shape, to: readonly Dim[]): Shape {
  const source = symbolicCount(from);
  const known = symbolicCount(to.filter((dim) => dim !== -1));
  const holes = to.filter((dim) => dim === -1).length;
  const fail = () =>
    new UsageError(
      'SHAPE_MISMATCH',
      `reshape: ${printShape(from)} has another number of elements than ${printShape(to)}.`,
      { from: printShape(from), to: printShape(to) },
    );
  if (holes === 0) {
    if (source.coefficient !== known.coefficient || source.power !== known.power) throw fail();
    return to;
  }
  const multiple = known.coefficient === 0 ? 0 : source.coefficient / known.coefficient;
  const power = source.power - known.power;
  if (holes > 1 || !Number.isInteger(multiple) || power < 0 || power > 1) throw fail();
  const inferred: Dim = power === 1 ? { multiple } : multiple;
  return to.map((dim) => (dim === -1 ? inferred : dim));
}

/** Output length of a sliding window (convolution, pooling). */
export function windowLength(
  length: number,
  kernel: number,
  stride: number,
  padding: number,
  dilation: number,
): number {
  return Math.floor((length + 2 * padding - dilation * (kernel - 1) - 1) / stride) + 1;
}
