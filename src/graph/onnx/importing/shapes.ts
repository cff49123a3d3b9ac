/**
 * Import of the operators with which exporters compute shapes: they are evaluated now, on integers and multiples of
 * the batch size. `Gather`, `Concat` and the like serve tensors too; here is only what they do to known values.
 */
import * as op from '../../operations/index.ts';
import type { Tensor } from '../../graph.ts';
import { isBatch, normalizeAxis, symbolicCount, type Dim } from '../../shape.ts';
import type { ImportNode, ImportTable } from './node.ts';
import {
  knownFromTensor,
  knownInts,
  knownScalar,
  MAX_FOLDED_ELEMENTS,
  numbersOf,
  type Known,
  type Value,
} from './value.ts';

function shapeOf(n: ImportNode): readonly Dim[] {
  const value = n.value(0);
  return value.kind === 'tensor' ? value.tensor.shape : value.shape;
}

function shape(n: ImportNode): Known {
  const dims = shapeOf(n);
  const position = (at: number) => Math.min(Math.max(at < 0 ? at + dims.length : at, 0), dims.length);
  return knownInts(dims.slice(position(n.int('start', 0)), position(n.int('end', dims.length))));
}

function size(n: ImportNode): Known {
  const { coefficient, power } = symbolicCount(shapeOf(n));
  if (power > 1) throw n.unsupported('counts elements of a shape that holds the batch twice');
  return knownScalar(power === 1 ? { multiple: coefficient } : coefficient);
}

function constant(n: ImportNode): Value {
  const tensor = n.attribute('value');
  if (tensor) {
    if (tensor.type !== 'tensor') throw n.broken(`has a value of type ${tensor.type}, expected a tensor`);
    const known = knownFromTensor(tensor.value);
    if (!known) throw n.unsupported(`has the element type ${tensor.value.dtype}`);
    return known;
  }
  const single = n.attribute('value_int') ?? n.attribute('value_float');
  const list = n.attribute('value_ints') ?? n.attribute('value_floats');
  const found = single ?? list;
  if (!found || found.type === 'string' || found.type === 'strings' || found.type === 'tensor') {
    throw n.unsupported('has no value of numbers');
  }
  const dtype = found.type === 'int' || found.type === 'ints' ? 'int32' : 'float32';
  if (typeof found.value === 'number') return knownScalar(found.value, dtype);
  return { kind: 'known', dtype, shape: [found.value.length], values: found.value };
}

function constantOfShape(n: ImportNode): Known | Tensor {
  const dims = n.dims(0, 'its shape');
  const given = n.attribute('value');
  const value = given?.type === 'tensor' ? knownFromTensor(given.value) : knownScalar(0, 'float32');
  if (!value || value.values.length !== 1) throw n.unsupported('has a value that is not one number or bool');
  if (dims.some((dim) => !isBatch(dim) && !(Number.isSafeInteger(dim) && dim >= 0))) {
    throw n.broken('has a shape with a negative entry');
  }
  const count = dims.reduce<number>((product, dim) => (isBatch(dim) ? NaN : product * dim), 1);
  if (value.dtype !== 'float32' && count <= MAX_FOLDED_ELEMENTS) {
    const values = new Array<Dim>(count).fill(value.values[0]!);
    return { kind: 'known', dtype: value.dtype, shape: dims as readonly number[], values };
  }
  return op.expand(n.session.tensorOf({ ...value, shape: [] }, n.place), dims);
}

function range(n: ImportNode): Known {
  const [start, limit, delta] = [n.scalar(0, 'its start'), n.scalar(1, 'its limit'), n.scalar(2, 'its step')];
  const count = Math.max(0, Math.ceil((limit - start) / delta));
  if (!(count <= MAX_FOLDED_ELEMENTS))
    throw n.unsupported(`makes ${count} numbers; at most ${MAX_FOLDED_ELEMENTS} are folded`);
  const dtype = n.known(0)?.dtype ?? 'float32';
  return {
    kind: 'known',
    dtype,
    shape: [count],
    values: Array.from({ length: count }, (_, i) => start + i * delta),
  };
}

/** Entries of a known vector or scalar at known positions; undefined where the inputs are of another kind. */
export function gatherKnown(n: ImportNode, data: Known, index: Known): Known | undefined {
  const at = numbersOf(index);
  if (data.shape.length !== 1 || !at) return undefined;
  const values = at.map((i) => {
    const value = data.values[i < 0 ? i + data.values.length : i];
    if (value === undefined) throw n.broken(`reads entry ${i} of ${data.values.length}`);
    return value;
  });
  return { kind: 'known', dtype: data.dtype, shape: index.shape, values };
}

/** Known vectors behind one another. */
export function concatKnown(n: ImportNode): Known | undefined {
  const parts = Array.from({ length: n.inputCount }, (_, i) => n.known(i));
  const [first] = parts;
  if (!first || !parts.every((part) => part?.shape.length === 1 && part.dtype === first.dtype))
    return undefined;
  const values = parts.flatMap((part) => part!.values);
  return { ...first, shape: [values.length], values };
}

/** The same values under another shape. */
export function reshapeKnown(n: ImportNode, known: Known, shape: readonly Dim[]): Known {
  const open = shape.indexOf(-1);
  const rest = shape.reduce<number>(
    (product, dim) => (isBatch(dim) ? NaN : dim === -1 ? product : product * dim),
    1,
  );
  const full = shape.map((dim, i) => (i === open ? known.values.length / rest : (dim as number)));
  const count = full.reduce((product, dim) => product * dim, 1);
  if (count !== known.values.length || full.some((dim) => !Number.isInteger(dim) || dim < 0)) {
    throw n.broken(`reshapes ${known.values.length} numbers to [${full.join(', ')}]`);
  }
  return { ...known, shape: full };
}

/** A part of a known vector, as Slice has it. */
export function sliceKnown(
  n: ImportNode,
  known: Known,
  start: number,
  end: number,
  step: number,
): Known | undefined {
  if (known.shape.length !== 1 || step === 0) return undefined;
  const { length } = known.values;
  const bound = (at: number) =>
    Math.min(Math.max(at < 0 ? at + length : at, step < 0 ? -1 : 0), step < 0 ? length - 1 : length);
  const values: Dim[] = [];
  const last = bound(end);
  for (let i = bound(start); step > 0 ? i < last : i > last; i += step) values.push(known.values[i]!);
  return { ...known, shape: [values.length], values };
}

/** The shape with axes of length one put in; negative axes count in the result. */
export function withAxes<D extends Dim>(shape: readonly D[], axes: readonly number[]): (D | 1)[] {
  const rank = shape.length + axes.length;
  const added = new Set(axes.map((axis) => normalizeAxis(axis, rank, 'Unsqueeze')));
  const rest = [...shape];
  return Array.from({ length: rank }, (_, i) => (added.has(i) ? 1 : (rest.shift() ?? 1)));
}

export const shapeImport: ImportTable = {
  Shape: shape,
  Size: size,
  Constant: constant,
  ConstantOfShape: constantOfShape,
  Range: range,
};
