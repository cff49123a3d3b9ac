/** Lowering of reductions, views and gathers. */
import type { ReduceAttributes, TensorOperations } from '../../catalogue.ts';
import type { Emitter } from '../emitter.ts';
import type { LoweringTable } from './rule.ts';

function reduce(e: Emitter, opType: string, x: string, { axes, keepDims }: ReduceAttributes): string {
  if (axes.length === 0) return e.op('Identity', [x]);
  return e.op(opType, [x], { axes, keepdims: Number(keepDims) });
}

export const tensorLowering: LoweringTable<keyof TensorOperations> = {
  sum: (e, [x], { attributes: { axes, keepDims } }) => [
    axes.length === 0
      ? e.op('Identity', [x!])
      : e.op('ReduceSum', [x!, e.ints(axes)], { keepdims: Number(keepDims) }),
  ],
  mean: (e, [x], { attributes }) => [reduce(e, 'ReduceMean', x!, attributes)],
  max: (e, [x], { attributes }) => [reduce(e, 'ReduceMax', x!, attributes)],
  min: (e, [x], { attributes }) => [reduce(e, 'ReduceMin', x!, attributes)],
  logsumexp: (e, [x], { attributes: { axes, keepDims }, outputs: [y] }) => {
    // The largest element is taken out first: exp never overflows.
    const largest = reduce(e, 'ReduceMax', x!, { axes, keepDims: true });
    const scaled = e.op('Exp', [e.op('Sub', [x!, largest])]);
    const total = axes.length === 0 ? scaled : e.op('ReduceSum', [scaled, e.ints(axes)], { keepdims: 1 });
    const result = e.op('Add', [e.op('Log', [total]), largest]);
    return [keepDims ? result : e.reshape(result, y!.shape)];
  },
  cumsum: (e, [x], { attributes: { axis, reverse } }) => [
    e.op('CumSum', [x!, e.ints([axis])], { reverse: Number(reverse) }),
  ],
  reshape: (e, [x], { attributes: { shape } }) => [e.reshape(x!, shape)],
  transpose: (e, inputs, { attributes: { perm } }) => [e.op('Transpose', inputs, { perm })],
  concat: (e, inputs, { attributes: { axis } }) => [e.op('Concat', inputs, { axis })],
  split: (e, [x], { attributes: { axis, sizes } }) =>
    e.multi('Split', [x!, e.ints(sizes)], sizes.length, { axis }),
  slice: (e, [x], { attributes: { starts, ends, steps } }) => [
    e.op('Slice', [x!, e.ints(starts), e.ints(ends), e.ints(starts.map((_, i) => i)), e.ints(steps)]),
  ],
  pad: (e, [x], { attributes: { pads, value } }) => {
    const flat = [...pads.map(([before]) => before), ...pads.map(([, after]) => after)];
    return [e.op('Pad', [x!, e.ints(flat), e.scalar(value)])];
  },
  expand: (e, [x], { attributes: { shape } }) => [e.op('Expand', [x!, e.fullShape(shape)])],
  gather: (e, inputs, { attributes: { axis } }) => [e.op('GatherElements', inputs, { axis })],
  index_select: (e, inputs, { attributes: { axis } }) => [e.op('Gather', inputs, { axis })],
  scatter_add: (e, [index, updates], { attributes: { axis, shape } }) => [
    e.op('ScatterElements', [zeros(e, e.known(shape)), index!, updates!], { axis, reduction: 'add' }),
  ],
};

/** Zeros made at run time: a constant would be copied before it is written to anyway. */
export function zeros(e: Emitter, shape: readonly number[]): string {
  return e.op('ConstantOfShape', [e.ints(shape)]);
}
