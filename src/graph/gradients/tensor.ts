/** Gradients of reductions, views and gathers. */
import { UsageError } from '../../base/index.ts';
import type { TensorOperations } from '../catalogue.ts';
import type { Tensor } from '../graph.ts';
import * as op from '../operations/index.ts';
import { isBatch, staticShape, type Dim } from '../shape.ts';
import type { GradientContext, GradientTable } from './rule.ts';

const { cast, div, expand, mul, reshape } = op;

/** The reduced tensor with its axes put back as ones, so that it broadcasts against x. */
function keepAxes(reduced: Tensor, x: Tensor, axes: readonly number[]): Tensor {
  return reshape(
    reduced,
    x.shape.map((dim, i): Dim => (axes.includes(i) ? 1 : dim)),
  );
}

function extremumGradient(context: GradientContext<'max'> | GradientContext<'min'>): readonly Tensor[] {
  const [x, y] = [context.inputs[0]!, context.outputs[0]!];
  const { axes } = context.attributes;
  const hits = cast(op.equal(x, keepAxes(y, x, axes)), 'float32');
  return [mul(hits, div(keepAxes(context.dy, x, axes), op.sum(hits, axes, true)))];
}

/** Puts the elements of a strided slice back to their places, zeros between them. */
function unslice(dy: Tensor, x: Tensor, starts: readonly number[], steps: readonly number[]): Tensor {
  let spread = dy;
  x.shape.forEach((dim, axis) => {
    const step = steps[axis]!;
    if (isBatch(dim) || step === 1) return;
    const count = spread.shape[axis] as number;
    const shape = [...spread.shape];
    const pads = [...shape, 1].map((): [number, number] => [0, 0]);
    pads[axis + 1] = [0, step - 1];
    const split = reshape(spread, [...shape.slice(0, axis), count, 1, ...shape.slice(axis + 1)]);
    spread = reshape(op.pad(split, pads), [...shape.slice(0, axis), count * step, ...shape.slice(axis + 1)]);
    const room = dim - starts[axis]!;
    if (count * step > room) spread = op.sliceAxis(spread, axis, 0, room);
  });
  const pads = x.shape.map((dim, axis): [number, number] => {
    if (isBatch(dim)) return [0, 0];
    return [starts[axis]!, dim - starts[axis]! - (spread.shape[axis] as number)];
  });
  return op.pad(spread, pads);
}

export const tensorGradients: GradientTable<keyof TensorOperations> = {
  sum: ({ dy, inputs: [x], attributes: { axes } }) => [expand(keepAxes(dy, x!, axes), x!.shape)],
  mean: ({ dy, inputs: [x], attributes: { axes } }) => {
    const { coefficient, power } = op.countAlong(x!, axes);
    const share = mul(dy, dy.graph.batchScalar(1 / coefficient, -power));
    return [expand(keepAxes(share, x!, axes), x!.shape)];
  },
  max: (context) => extremumGradient(context),
  min: (context) => extremumGradient(context),
  logsumexp: ({ dy, inputs: [x], outputs: [y], attributes: { axes } }) => [
    mul(keepAxes(dy, x!, axes), op.exp(op.sub(x!, keepAxes(y!, x!, axes)))),
  ],
  cumsum: ({ dy, attributes: { axis, reverse } }) => [op.cumsum(dy, axis, !reverse)],
  reshape: ({ dy, inputs: [x] }) => [reshape(dy, x!.shape)],
  transpose: ({ dy, attributes: { perm } }) => [
    op.transpose(
      dy,
      perm.map((_, axis) => perm.indexOf(axis)),
    ),
  ],
  concat: ({ dy, inputs, attributes: { axis } }) => {
    const sizes = inputs.map((x) => staticShape([x.shape[axis]!], 'The gradient of concat: the axis')[0]!);
    return op.split(dy, sizes, axis);
  },
  split: ({ adjoint, outputs, attributes: { axis } }) => [
    op.concat(
      outputs.map((_, i) => adjoint(i)),
      axis,
    ),
  ],
  slice: ({ dy, inputs: [x], attributes: { starts, steps } }) => [unslice(dy, x!, starts, steps)],
  pad: ({ dy, inputs: [x], attributes: { pads } }) => [
    op.slice(
      dy,
      pads.map(([before]) => before),
      x!.shape.map((dim, i) => (isBatch(dim) ? Infinity : pads[i]![0] + dim)),
    ),
  ],
  expand: ({ dy, inputs: [x] }) => [op.sumTo(dy, x!.shape)],
  gather: ({ dy, inputs: [x, index], attributes: { axis } }) => [
    op.scatterAdd(index!, dy, axis, x!.shape),
    undefined,
  ],
  index_select: ({ dy, inputs: [x, index], attributes: { axis } }) => [
    op.indexAdd(index!, dy, axis, x!.shape),
    undefined,
  ],
  scatter_add: ({ dy, inputs: [index, updates], attributes: { axis } }) => {
    const fits = updates!.shape.length === dy.shape.length;
    if (!fits) throw new UsageError('NOT_DIFFERENTIABLE', 'scatter_add: the ranks differ.');
    return [undefined, op.gather(dy, index!, axis)];
  },
};
