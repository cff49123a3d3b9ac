/** Operations on shape and position: reductions, views, gathers. Axes may be negative. */
import type { ReduceAttributes } from '../catalogue.ts';
import { isNode, type Tensor } from '../graph.ts';
import {
  hasBatch,
  isBatch,
  normalizeAxis,
  reshapeTo,
  sameDim,
  sameShape,
  type Dim,
  type Shape,
} from '../shape.ts';
import { cast } from './elementwise.ts';

type ReduceName = 'sum' | 'mean' | 'max' | 'min' | 'logsumexp';

/** All axes where `axes` is null. */
export type Axes = number | readonly number[] | null;

function reduce(op: ReduceName, x: Tensor, axes: Axes, keepDims: boolean): Tensor {
  const rank = x.shape.length;
  const list = axes === null ? x.shape.map((_, i) => i) : typeof axes === 'number' ? [axes] : axes;
  const attributes: ReduceAttributes = {
    axes: list.map((axis) => normalizeAxis(axis, rank, op)).sort((a, b) => a - b),
    keepDims,
  };
  return x.graph.apply(op, [x], attributes)[0]!;
}

export const sum = (x: Tensor, axes: Axes = null, keepDims = false): Tensor =>
  reduce('sum', x, axes, keepDims);
export const mean = (x: Tensor, axes: Axes = null, keepDims = false): Tensor =>
  reduce('mean', x, axes, keepDims);
/** Equal extrema share the gradient equally. */
export const max = (x: Tensor, axes: Axes = null, keepDims = false): Tensor =>
  reduce('max', x, axes, keepDims);
export const min = (x: Tensor, axes: Axes = null, keepDims = false): Tensor =>
  reduce('min', x, axes, keepDims);
export const logsumexp = (x: Tensor, axes: Axes = null, keepDims = false): Tensor =>
  reduce('logsumexp', x, axes, keepDims);

/** The position of the first largest element. */
export function argmax(x: Tensor, axis: number, keepDims = false): Tensor {
  return x.graph.apply('argmax', [x], { axis: normalizeAxis(axis, x.shape.length, 'argmax'), keepDims })[0]!;
}

export function cumsum(x: Tensor, axis: number, reverse = false): Tensor {
  return x.graph.apply('cumsum', [x], { axis: normalizeAxis(axis, x.shape.length, 'cumsum'), reverse })[0]!;
}

/** One entry may be -1. */
export function reshape(x: Tensor, shape: readonly Dim[]): Tensor {
  const target = reshapeTo(x.shape, shape);
  return sameShape(target, x.shape) ? x : x.graph.apply('reshape', [x], { shape: target })[0]!;
}

/** Keeps the first `axis` axes and makes one of the others. */
export function flatten(x: Tensor, axis = 1): Tensor {
  return reshape(x, [...x.shape.slice(0, axis), -1]);
}

/** A transpose of a transpose is one, or none. */
export function transpose(x: Tensor, perm: readonly number[]): Tensor {
  if (perm.length === x.shape.length && perm.every((axis, i) => axis === i)) return x;
  if (isNode(x.node, 'transpose') && perm.length === x.shape.length) {
    const inner = x.node.attributes.perm;
    return transpose(
      x.node.inputs[0]!,
      perm.map((axis) => inner[axis]!),
    );
  }
  return x.graph.apply('transpose', [x], { perm })[0]!;
}

export function concat(tensors: readonly Tensor[], axis: number): Tensor {
  const first = tensors[0]!;
  if (tensors.length === 1) return first;
  return first.graph.apply('concat', tensors, {
    axis: normalizeAxis(axis, first.shape.length, 'concat'),
  })[0]!;
}

export function split(x: Tensor, sizes: readonly number[], axis: number): readonly Tensor[] {
  return x.graph.apply('split', [x], { axis: normalizeAxis(axis, x.shape.length, 'split'), sizes });
}

/** `[start, end)` with a step for every axis; `end` may be Infinity. */
export function slice(
  x: Tensor,
  starts: readonly number[],
  ends: readonly number[],
  steps: readonly number[] = starts.map(() => 1),
): Tensor {
  return x.graph.apply('slice', [x], { starts, ends, steps })[0]!;
}

/** A part of one axis. */
export function sliceAxis(x: Tensor, axis: number, start: number, end: number): Tensor {
  const at = normalizeAxis(axis, x.shape.length, 'slice');
  return slice(
    x,
    x.shape.map((_, i) => (i === at ? start : 0)),
    x.shape.map((_, i) => (i === at ? end : Infinity)),
  );
}

export function pad(x: Tensor, pads: readonly (readonly [number, number])[], value = 0): Tensor {
  return pads.flat().every((p) => p === 0) ? x : x.graph.apply('pad', [x], { pads, value })[0]!;
}

export function expand(x: Tensor, shape: Shape): Tensor {
  return sameShape(x.shape, shape) ? x : x.graph.apply('expand', [x], { shape })[0]!;
}

export function squeeze(x: Tensor, axes: readonly number[]): Tensor {
  const gone = new Set(axes.map((axis) => normalizeAxis(axis, x.shape.length, 'squeeze')));
  return reshape(
    x,
    x.shape.filter((_, i) => !gone.has(i)),
  );
}

export function unsqueeze(x: Tensor, axes: readonly number[]): Tensor {
  const rank = x.shape.length + axes.length;
  const added = new Set(axes.map((axis) => normalizeAxis(axis, rank, 'unsqueeze')));
  const rest = [...x.shape];
  return reshape(
    x,
    Array.from({ length: rank }, (_, i): Dim => (added.has(i) ? 1 : rest.shift()!)),
  );
}

/** Takes along an axis; the index has the rank of x. */
export function gather(x: Tensor, index: Tensor, axis: number): Tensor {
  return x.graph.apply('gather', [x, index], { axis: normalizeAxis(axis, x.shape.length, 'gather') })[0]!;
}

/** Takes whole slices; the index is a vector. */
export function indexSelect(x: Tensor, index: Tensor, axis: number): Tensor {
  return x.graph.apply('index_select', [x, index], {
    axis: normalizeAxis(axis, x.shape.length, 'index_select'),
  })[0]!;
}

/** Adds `updates` into zeros of `shape` at `index` along an axis. */
export function scatterAdd(index: Tensor, updates: Tensor, axis: number, shape: Shape): Tensor {
  return index.graph.apply('scatter_add', [index, updates], { axis, shape })[0]!;
}

/** Adds whole slices into zeros of `shape`: the transpose of `indexSelect`. */
export function indexAdd(index: Tensor, updates: Tensor, axis: number, shape: Shape): Tensor {
  const lifted = reshape(
    index,
    updates.shape.map((dim, i) => (i === axis ? dim : 1)),
  );
  return scatterAdd(expand(lifted, updates.shape), updates, axis, shape);
}

/** Sums `x` over the axes that broadcasting stretched, so that it has `shape`: the transpose of broadcasting. */
export function sumTo(x: Tensor, shape: Shape): Tensor {
  if (sameShape(x.shape, shape)) return x;
  const lead = x.shape.length - shape.length;
  const stretched = x.shape.flatMap((dim, i) => (i < lead || !sameDim(dim, shape[i - lead]!) ? [i] : []));
  return reshape(stretched.length > 0 ? sum(x, stretched, true) : x, shape);
}

/** A tensor of zeros. */
export function zerosLike(x: Tensor): Tensor {
  return cast(expand(x.graph.scalar(0), x.shape), x.dtype);
}

/** The number of elements along axes, as a tensor, because the batch size may be among them. */
export function countAlong(x: Tensor, axes: readonly number[]): { coefficient: number; power: number } {
  let coefficient = 1;
  let power = 0;
  for (const axis of axes) {
    const dim = x.shape[axis]!;
    coefficient *= isBatch(dim) ? dim.multiple : dim;
    if (hasBatch([dim])) power++;
  }
  return { coefficient, power };
}
