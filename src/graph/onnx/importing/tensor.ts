/** Import of reductions, views, gathers and everything else that moves elements. */
import * as op from '../../operations/index.ts';
import type { Tensor } from '../../graph.ts';
import { broadcastShapes, isBatch, normalizeAxis, printShape, symbolicCount, type Dim } from '../../shape.ts';
import type { ImportNode, ImportResult, ImportRule, ImportTable } from './node.ts';
import { concatKnown, gatherKnown, reshapeKnown, sliceKnown, withAxes } from './shapes.ts';
import { numbersOf } from './value.ts';

/** Axes are an attribute in older operator sets and an input in newer ones. */
function axesOf(n: ImportNode, input = 1): number[] | undefined {
  if (n.has(input)) return n.integers(input, 'its axes');
  const axes = n.ints('axes');
  return axes ? [...axes] : undefined;
}

function reduce(build: (x: Tensor, axes: op.Axes, keepDims: boolean) => Tensor): ImportRule {
  return (n) => {
    const x = n.tensor(0);
    const axes = axesOf(n) ?? [];
    const keepDims = n.int('keepdims', 1) !== 0;
    const noop = n.int('noop_with_empty_axes', 0) !== 0;
    if (axes.length === 0) return noop ? x : build(x, null, keepDims);
    return build(x, axes, keepDims);
  };
}

function reshape(n: ImportNode): ImportResult {
  const target = n.dims(1, 'its shape');
  const allowZero = n.int('allowzero', 0) !== 0;
  const known = n.known(0);
  const from = known ? known.shape : n.tensor(0).shape;
  const shape = target.map((dim, i): Dim => {
    if (isBatch(dim)) return dim;
    if (!Number.isSafeInteger(dim) || dim < -1) throw n.broken(`has a shape with the entry ${dim}`);
    if (dim !== 0 || allowZero) return dim;
    const kept = from[i];
    if (kept === undefined) throw n.broken(`keeps axis ${i} of a tensor of rank ${from.length}`);
    return kept;
  });
  return known ? reshapeKnown(n, known, shape) : op.reshape(n.tensor(0), shape);
}

function flatten(n: ImportNode): Tensor {
  const x = n.tensor(0);
  const given = n.int('axis', 1);
  const axis = given === x.shape.length ? given : normalizeAxis(given, x.shape.length, 'Flatten');
  const { coefficient, power } = symbolicCount(x.shape.slice(0, axis));
  if (power > 1) throw n.unsupported('flattens axes that hold the batch twice');
  return op.reshape(x, [power === 1 ? { multiple: coefficient } : coefficient, -1]);
}

function transpose(n: ImportNode): Tensor {
  const x = n.tensor(0);
  const perm = n.ints('perm') ?? x.shape.map((_, i) => x.shape.length - 1 - i);
  const seen = new Set(perm);
  if (perm.length !== x.shape.length || !x.shape.every((_, i) => seen.has(i))) {
    throw n.broken(`permutes [${perm.join(', ')}] a tensor of rank ${x.shape.length}`);
  }
  return op.transpose(x, perm);
}

function concat(n: ImportNode): ImportResult {
  const axis = n.int('axis');
  if (n.inputCount === 0) throw n.broken('has no inputs');
  return concatKnown(n) ?? op.concat(n.tensors(), axis);
}

function split(n: ImportNode): readonly Tensor[] {
  const x = n.tensor(0);
  n.ignore('num_outputs');
  const axis = normalizeAxis(n.int('axis', 0), x.shape.length, 'Split');
  const length = x.shape[axis]!;
  if (isBatch(length)) throw n.unsupported('splits the batch');
  const parts = n.outputCount;
  if (n.has(1)) {
    const sizes = n.integers(1, 'its sizes');
    if (sizes.length !== parts || sizes.some((size) => size < 0))
      throw n.broken(`has ${sizes.length} sizes for ${parts} outputs`);
    return op.split(x, sizes, axis);
  }
  const size = Math.ceil(length / parts);
  const sizes = Array.from({ length: parts }, (_, i) => Math.max(0, Math.min(size, length - i * size)));
  return op.split(x, sizes, axis);
}

function slice(n: ImportNode): ImportResult {
  const starts = n.integers(1, 'its starts');
  const ends = n.integers(2, 'its ends');
  const axes = n.has(3) ? n.integers(3, 'its axes') : starts.map((_, i) => i);
  const steps = n.has(4) ? n.integers(4, 'its steps') : starts.map(() => 1);
  if (ends.length !== starts.length || axes.length !== starts.length || steps.length !== starts.length) {
    throw n.broken(
      `has ${starts.length} starts, ${ends.length} ends, ${axes.length} axes and ${steps.length} steps`,
    );
  }
  const known = n.known(0);
  if (known && starts.length === 1) {
    const part = sliceKnown(n, known, starts[0]!, ends[0]!, steps[0]!);
    if (part) return part;
  }
  const x = n.tensor(0);
  const from = x.shape.map(() => 0);
  const to = x.shape.map(() => Infinity);
  const by = x.shape.map(() => 1);
  axes.forEach((given, i) => {
    const axis = normalizeAxis(given, x.shape.length, 'Slice');
    const length = x.shape[axis]!;
    if (steps[i]! < 1) throw n.unsupported(`has the step ${steps[i]}; only positive ones are supported`);
    if (isBatch(length)) {
      if (starts[i] !== 0 || ends[i]! < 2 ** 31 - 1 || steps[i] !== 1)
        throw n.unsupported('cuts the batch axis');
      return;
    }
    const position = (at: number) => Math.min(Math.max(at < 0 ? at + length : at, 0), length);
    from[axis] = position(starts[i]!);
    to[axis] = Math.max(position(ends[i]!), from[axis]);
    by[axis] = steps[i]!;
  });
  return op.slice(x, from, to, by);
}

function pad(n: ImportNode): Tensor {
  const x = n.tensor(0);
  n.only('mode', 'constant');
  const amounts = n.integers(1, 'its pads');
  const value = n.has(2) ? n.scalar(2, 'its value') : 0;
  const axes = n.has(3) ? n.integers(3, 'its axes') : x.shape.map((_, i) => i);
  if (amounts.length !== 2 * axes.length)
    throw n.broken(`has ${amounts.length} pads for ${axes.length} axes`);
  if (amounts.some((amount) => amount < 0)) throw n.unsupported('has negative pads');
  const pads = x.shape.map((): [number, number] => [0, 0]);
  axes.forEach((axis, i) => {
    pads[normalizeAxis(axis, x.shape.length, 'Pad')] = [amounts[i]!, amounts[i + axes.length]!];
  });
  return op.pad(x, pads, value);
}

function expand(n: ImportNode): Tensor {
  const x = n.tensor(0);
  const target = n.dims(1, 'its shape');
  if (target.some((dim) => !isBatch(dim) && !(Number.isSafeInteger(dim) && dim >= 0)))
    throw n.broken('has a negative shape');
  const shape = broadcastShapes(x.shape, target);
  if (!shape) throw n.broken(`expands ${printShape(x.shape)} to ${printShape(target)}`);
  return op.expand(x, shape);
}

function squeeze(n: ImportNode): ImportResult {
  const axes = axesOf(n);
  const value = n.value(0);
  const shape: readonly Dim[] = value.kind === 'tensor' ? value.tensor.shape : value.shape;
  const gone = new Set(
    axes?.map((axis) => normalizeAxis(axis, shape.length, 'Squeeze')) ??
      shape.flatMap((dim, i) => (dim === 1 ? [i] : [])),
  );
  const wrong = [...gone].find((axis) => shape[axis] !== 1);
  if (wrong !== undefined) throw n.broken(`removes axis ${wrong} of ${printShape(shape)}, which is not 1`);
  const rest = shape.filter((_, i) => !gone.has(i));
  return value.kind === 'known' ? reshapeKnown(n, value, rest) : op.reshape(n.tensor(0), rest);
}

function unsqueeze(n: ImportNode): ImportResult {
  const axes = axesOf(n);
  if (!axes || new Set(axes).size !== axes.length) throw n.broken('has no axes, or one of them twice');
  const known = n.known(0);
  if (known) return { ...known, shape: withAxes(known.shape, axes) };
  return op.unsqueeze(n.tensor(0), axes);
}

function gather(n: ImportNode): ImportResult {
  const axisGiven = n.int('axis', 0);
  const data = n.known(0);
  const at = n.known(1);
  const folded = data && at ? gatherKnown(n, data, at) : undefined;
  if (folded) return folded;
  const x = n.tensor(0);
  const axis = normalizeAxis(axisGiven, x.shape.length, 'Gather');
  const length = x.shape[axis]!;
  const numbers = at && numbersOf(at);
  if (numbers && typeof length === 'number') {
    const outside = numbers.find((i) => !(i >= -length && i < length));
    if (outside !== undefined) throw n.broken(`reads index ${outside} of an axis of length ${length}`);
    if (at.shape.length === 0) {
      const start = numbers[0]! < 0 ? numbers[0]! + length : numbers[0]!;
      return op.squeeze(op.sliceAxis(x, axis, start, start + 1), [axis]);
    }
  }
  const index = n.tensor(1);
  if (index.dtype !== 'int32') throw n.broken(`has indices of type ${index.dtype}`);
  if (x.node.op === 'parameter' && axis === 0 && x.shape.length === 2) return op.lookup(x, index);
  const picked = op.indexSelect(x, op.reshape(index, [-1]), axis);
  return op.reshape(picked, [...x.shape.slice(0, axis), ...index.shape, ...x.shape.slice(axis + 1)]);
}

function cumsum(n: ImportNode): Tensor {
  const x = n.tensor(0);
  const axis = n.scalar(1, 'its axis');
  const sum = op.cumsum(x, axis, n.int('reverse', 0) !== 0);
  return n.int('exclusive', 0) !== 0 ? op.sub(sum, x) : sum;
}

function scatterElements(n: ImportNode): Tensor {
  const data = n.tensor(0);
  if (n.text('reduction', 'none') !== 'add') throw n.unsupported('has another reduction than add');
  const axis = normalizeAxis(n.int('axis', 0), data.shape.length, 'ScatterElements');
  return op.add(data, op.scatterAdd(n.tensor(1), n.tensor(2), axis, data.shape));
}

export const tensorImport: ImportTable = {
  Identity: (n) => n.value(0),
  ReduceSum: reduce(op.sum),
  ReduceMean: reduce(op.mean),
  ReduceMax: reduce(op.max),
  ReduceMin: reduce(op.min),
  ReduceLogSumExp: reduce(op.logsumexp),
  CumSum: cumsum,
  ArgMax: (n) => {
    n.only('select_last_index', 0);
    // All integers are int32 in the graph.
    return op.cast(op.argmax(n.tensor(0), n.int('axis', 0), n.int('keepdims', 1) !== 0), 'int32');
  },
  Reshape: reshape,
  Flatten: flatten,
  Transpose: transpose,
  Concat: concat,
  Split: split,
  Slice: slice,
  Pad: pad,
  Expand: expand,
  Squeeze: squeeze,
  Unsqueeze: unsqueeze,
  Gather: gather,
  GatherElements: (n) => op.gather(n.tensor(0), n.tensor(1), n.int('axis', 0)),
  ScatterElements: scatterElements,
};
