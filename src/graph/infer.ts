/**
 * Shape and type inference: one rule for each operation of the catalogue. A rule checks its inputs and says
 * what comes out; an error names the operation, the inputs and their shapes. Sources have no rule: whoever
 * creates them states their type.
 */
import { InternalError, UsageError } from '../base/index.ts';
import type {
  ComputedName,
  ConvAttributes,
  DType,
  OpName,
  Operations,
  ReduceAttributes,
} from './catalogue.ts';
import type { Tensor, TensorType } from './graph.ts';
import {
  broadcastShapes,
  isBatch,
  normalizeAxis,
  printShape,
  reshapeTo,
  sameDim,
  sameShape,
  windowLength,
  type Dim,
  type Shape,
} from './shape.ts';

type Rule<K extends OpName> = (
  inputs: readonly Tensor[],
  attributes: Operations[K],
  op: string,
) => TensorType[];

const float = (shape: Shape): TensorType => ({ shape, dtype: 'float32' });

function mismatch(op: string, inputs: readonly Tensor[], expected: string): UsageError {
  const actual = inputs.map((input) => `${input.label} ${input.dtype}${printShape(input.shape)}`).join(', ');
  return new UsageError(
    'SHAPE_MISMATCH',
    `${op}: expected ${expected}, got ${actual}. Check the layer before it.`,
    {
      op,
      expected,
      inputs: inputs.map((input) => printShape(input.shape)),
    },
  );
}

function require(condition: boolean, op: string, inputs: readonly Tensor[], expected: string): void {
  if (!condition) throw mismatch(op, inputs, expected);
}

function broadcast(
  dtype?: DType,
): (inputs: readonly Tensor[], attributes: unknown, op: string) => TensorType[] {
  return (inputs, _attributes, op) => {
    const [a, b] = inputs as [Tensor, Tensor];
    require(inputs.length === 2 && a.dtype === b.dtype, op, inputs, 'two tensors of one type');
    const shape = broadcastShapes(a.shape, b.shape);
    if (!shape) throw mismatch(op, inputs, 'shapes that broadcast');
    return [{ shape, dtype: dtype ?? a.dtype }];
  };
}

function unary(inputs: readonly Tensor[], _attributes: unknown, op: string): TensorType[] {
  require(inputs.length === 1 && inputs[0]!.dtype === 'float32', op, inputs, 'one float32 tensor');
  return [inputs[0]!];
}

function sameAsFirst(inputs: readonly Tensor[]): TensorType[] {
  return [inputs[0]!];
}

function reduce(inputs: readonly Tensor[], { axes, keepDims }: ReduceAttributes, op: string): TensorType[] {
  const x = inputs[0]!;
  const reduced = new Set(axes.map((axis) => normalizeAxis(axis, x.shape.length, op)));
  require(reduced.size === axes.length, op, inputs, 'every axis once');
  const shape = x.shape.flatMap((dim, i): Dim[] => (reduced.has(i) ? (keepDims ? [1] : []) : [dim]));
  return [float(shape)];
}

function alongAxis(inputs: readonly Tensor[], { axis }: { axis: number }, op: string): TensorType[] {
  normalizeAxis(axis, inputs[0]!.shape.length, op);
  return [inputs[0]!];
}

function spatial(dim: Dim, op: string, inputs: readonly Tensor[]): number {
  if (isBatch(dim)) throw mismatch(op, inputs, 'spatial axes that do not depend on the batch');
  return dim;
}

function windows(
  inputs: readonly Tensor[],
  op: string,
  kernel: readonly number[],
  {
    stride,
    padding,
    dilation,
  }: Pick<ConvAttributes, 'stride' | 'padding'> & { dilation?: readonly number[] },
): number[] {
  const x = inputs[0]!;
  const rank = x.shape.length - 2;
  require(kernel.length === rank &&
    stride.length === rank &&
    padding.length === rank, op, inputs, `kernel, stride and padding with ${rank} entries`);
  return kernel.map((size, i) => {
    const length = spatial(x.shape[i + 2]!, op, inputs);
    const out = windowLength(length, size, stride[i]!, padding[i]!, dilation?.[i] ?? 1);
    require(out > 0 &&
      stride[i]! > 0 &&
      padding[i]! >= 0, op, inputs, `a window of ${kernel.join('x')} inside the input`);
    return out;
  });
}

function matmulShape(op: string, inputs: readonly Tensor[], transposeA: boolean, transposeB: boolean): Shape {
  const [a, b] = inputs as [Tensor, Tensor];
  require(inputs.length === 2 &&
    a.shape.length >= 2 &&
    b.shape.length >= 2, op, inputs, 'two tensors of rank 2 or more');
  const [m, ka] = transposeA ? [a.shape.at(-1)!, a.shape.at(-2)!] : [a.shape.at(-2)!, a.shape.at(-1)!];
  const [kb, n] = transposeB ? [b.shape.at(-1)!, b.shape.at(-2)!] : [b.shape.at(-2)!, b.shape.at(-1)!];
  require(sameDim(ka, kb), op, inputs, `equal inner sizes (${printShape([ka])} and ${printShape([kb])})`);
  const batch = broadcastShapes(a.shape.slice(0, -2), b.shape.slice(0, -2));
  if (!batch) throw mismatch(op, inputs, 'leading axes that broadcast');
  return [...batch, m, n];
}

function recurrent(
  gates: number,
  op: string,
  inputs: readonly Tensor[],
  states: readonly Tensor[],
): [Dim, Dim, number] {
  const [x] = inputs as [Tensor];
  const [wIh, wHh, bIh, bHh] = inputs.slice(-4) as [Tensor, Tensor, Tensor, Tensor];
  const expected = `x [T, N, I], states [N, H], w_ih [${gates}H, I], w_hh [${gates}H, H], biases [${gates}H]`;
  require(x.shape.length === 3 &&
    wHh.shape.length === 2 &&
    typeof wHh.shape[1] === 'number', op, inputs, expected);
  const [steps, batch, size] = x.shape as [Dim, Dim, Dim];
  const hidden = wHh.shape[1] as number;
  require(typeof steps === 'number' && steps > 0, op, inputs, 'a fixed number of steps');
  require(states.every((state) => sameShape(state.shape, [batch, hidden])) &&
    sameShape(wIh.shape, [gates * hidden, size]) &&
    wHh.shape[0] === gates * hidden &&
    [bIh, bHh].every((bias) => sameShape(bias.shape, [gates * hidden])), op, inputs, expected);
  return [steps, batch, hidden];
}

const rules: { [K in ComputedName]: Rule<K> } = {
  add: broadcast(),
  sub: broadcast(),
  mul: broadcast(),
  div: broadcast(),
  pow: broadcast(),
  add_n: (inputs, _attributes, op) => {
    require(inputs.length > 0 &&
      inputs.every((x) => sameShape(x.shape, inputs[0]!.shape)), op, inputs, 'equal shapes');
    return [inputs[0]!];
  },
  neg: unary,
  exp: unary,
  log: unary,
  sqrt: unary,
  abs: unary,
  relu: unary,
  tanh: unary,
  sigmoid: unary,
  erf: unary,
  gelu: unary,
  softplus: unary,
  sign: unary,
  leaky_relu: unary,
  clamp: unary,
  where: (inputs, _attributes, op) => {
    const [condition, a, b] = inputs as [Tensor, Tensor, Tensor];
    const branches = broadcastShapes(a.shape, b.shape);
    const shape = branches && broadcastShapes(condition.shape, branches);
    require(condition.dtype === 'bool' &&
      a.dtype === b.dtype, op, inputs, 'a bool condition and two tensors of one type');
    if (!shape) throw mismatch(op, inputs, 'shapes that broadcast');
    return [{ shape, dtype: a.dtype }];
  },
  dropout: (inputs, _attributes, op) => {
    require(sameShape(inputs[0]!.shape, inputs[1]!.shape), op, inputs, 'a mask of the shape of x');
    return [inputs[0]!];
  },
  greater: broadcast('bool'),
  greater_equal: broadcast('bool'),
  equal: broadcast('bool'),
  logical_and: broadcast('bool'),
  logical_not: sameAsFirst,
  argmax: (inputs, { axis, keepDims }, op) => [
    { shape: reduce(inputs, { axes: [axis], keepDims }, op)[0]!.shape, dtype: 'int64' },
  ],
  cast: (inputs, { to }) => [{ shape: inputs[0]!.shape, dtype: to }],

  sum: reduce,
  mean: reduce,
  max: reduce,
  min: reduce,
  logsumexp: reduce,
  cumsum: alongAxis,
  reshape: (inputs, { shape }) => [{ shape: reshapeTo(inputs[0]!.shape, shape), dtype: inputs[0]!.dtype }],
  transpose: (inputs, { perm }, op) => {
    const x = inputs[0]!;
    const isPermutation = [...perm].sort((a, b) => a - b).every((axis, i) => axis === i);
    require(perm.length === x.shape.length &&
      isPermutation, op, inputs, `a permutation of ${x.shape.length} axes`);
    return [{ shape: perm.map((axis) => x.shape[axis]!), dtype: x.dtype }];
  },
  concat: (inputs, { axis }, op) => {
    const first = inputs[0]!;
    const at = normalizeAxis(axis, first.shape.length, op);
    let total: Dim = 0;
    for (const x of inputs) {
      const fits =
        x.shape.length === first.shape.length &&
        x.shape.every((dim, i) => i === at || sameDim(dim, first.shape[i]!));
      require(fits && x.dtype === first.dtype, op, inputs, `equal shapes but for axis ${at}`);
      total = addDims(total, x.shape[at]!, op, inputs);
    }
    return [{ shape: first.shape.map((dim, i) => (i === at ? total : dim)), dtype: first.dtype }];
  },
  split: (inputs, { axis, sizes }, op) => {
    const x = inputs[0]!;
    const at = normalizeAxis(axis, x.shape.length, op);
    const total = sizes.reduce((sum, size) => sum + size, 0);
    require(x.shape[at] === total &&
      sizes.every((size) => size >= 0), op, inputs, `sizes that add up to axis ${at}`);
    return sizes.map((size) => ({ shape: x.shape.map((dim, i) => (i === at ? size : dim)), dtype: x.dtype }));
  },
  slice: (inputs, { starts, ends, steps }, op) => {
    const x = inputs[0]!;
    const shape = x.shape.map((dim, i): Dim => {
      const [start, end, step] = [starts[i]!, ends[i]!, steps[i]!];
      if (isBatch(dim)) {
        require(start === 0 &&
          step === 1 &&
          end === Infinity, op, inputs, 'the whole batch axis (end Infinity)');
        return dim;
      }
      require(start >= 0 &&
        step > 0 &&
        start <= dim, op, inputs, `0 <= start <= ${dim} and step > 0 on axis ${i}`);
      return Math.max(0, Math.ceil((Math.min(end, dim) - start) / step));
    });
    require(starts.length ===
      x.shape.length, op, inputs, `starts, ends and steps for ${x.shape.length} axes`);
    return [{ shape, dtype: x.dtype }];
  },
  pad: (inputs, { pads }, op) => {
    const x = inputs[0]!;
    require(pads.length === x.shape.length &&
      pads.flat().every((p) => p >= 0), op, inputs, 'pads >= 0 for every axis');
    const shape = x.shape.map((dim, i): Dim => {
      const extra = pads[i]![0] + pads[i]![1];
      return extra === 0 ? dim : spatial(dim, op, inputs) + extra;
    });
    return [{ shape, dtype: x.dtype }];
  },
  expand: (inputs, { shape }, op) => {
    const result = broadcastShapes(inputs[0]!.shape, shape);
    require(result !== undefined &&
      sameShape(result, shape), op, inputs, `a shape that expands to ${printShape(shape)}`);
    return [{ shape, dtype: inputs[0]!.dtype }];
  },
  gather: (inputs, { axis }, op) => {
    const [x, index] = inputs as [Tensor, Tensor];
    normalizeAxis(axis, x.shape.length, op);
    require(index.shape.length === x.shape.length &&
      index.dtype !== 'float32', op, inputs, 'an integer index of the rank of x');
    return [{ shape: index.shape, dtype: x.dtype }];
  },
  index_select: (inputs, { axis }, op) => {
    const [x, index] = inputs as [Tensor, Tensor];
    const at = normalizeAxis(axis, x.shape.length, op);
    require(index.shape.length === 1 &&
      index.dtype !== 'float32', op, inputs, 'a vector of integers as index');
    return [{ shape: x.shape.map((dim, i) => (i === at ? index.shape[0]! : dim)), dtype: x.dtype }];
  },
  scatter_add: (inputs, { shape }, op) => {
    const [index, updates] = inputs as [Tensor, Tensor];
    require(sameShape(index.shape, updates.shape) &&
      shape.length === index.shape.length, op, inputs, 'an index of the shape of the updates');
    return [float(shape)];
  },

  matmul: (inputs, { transposeA, transposeB }, op) => [
    float(matmulShape(op, inputs, transposeA, transposeB)),
  ],
  affine: (inputs, _attributes, op) => {
    const shape = matmulShape(op, inputs.slice(0, 2), false, false);
    require(shape.length === 2, op, inputs, 'x and w of rank 2');
    const bias = inputs[2];
    require(!bias || sameShape(bias.shape, [shape[1]!]), op, inputs, `a bias of ${printShape([shape[1]!])}`);
    return [float(shape)];
  },
  unfold: (inputs, { width }, op) => {
    const [batch, steps, size] = inputs[0]!.shape as [Dim, number, number];
    require(inputs[0]!.shape.length === 3 &&
      width >= 1 &&
      steps >= width, op, inputs, `[N, T, D] with T >= ${width}`);
    return [float([batch, steps - width + 1, width * size])];
  },
  fold: (inputs, { width }, op) => {
    const [batch, windowCount, size] = inputs[0]!.shape as [Dim, number, number];
    require(inputs[0]!.shape.length === 3 && size % width === 0, op, inputs, `[N, windows, ${width} * D]`);
    return [float([batch, windowCount + width - 1, size / width])];
  },
  conv: (inputs, attributes, op) => {
    const [x, w, bias] = inputs as [Tensor, Tensor, Tensor | undefined];
    const { groups } = attributes;
    require(x.shape.length >= 3 &&
      w.shape.length === x.shape.length, op, inputs, 'x [N, C, ...] and w [O, C / groups, ...]');
    const [out, inGroup, ...kernel] = w.shape as number[];
    const channels = x.shape[1];
    require(channels === inGroup! * groups &&
      out! % groups === 0, op, inputs, `${groups} group(s) of channels that fit`);
    require(!bias || sameShape(bias.shape, [out!]), op, inputs, `a bias of [${out}]`);
    return [float([x.shape[0]!, out!, ...windows(inputs, op, kernel, attributes)])];
  },
  max_pool: (inputs, attributes, op) => {
    const shape = [...inputs[0]!.shape.slice(0, 2), ...windows(inputs, op, attributes.kernel, attributes)];
    return [float(shape), { shape, dtype: 'int64' }];
  },
  avg_pool: (inputs, attributes, op) => [
    float([...inputs[0]!.shape.slice(0, 2), ...windows(inputs, op, attributes.kernel, attributes)]),
  ],
  batch_norm: (inputs, _attributes, op) => {
    const [x, gamma, beta] = inputs as [Tensor, Tensor, Tensor];
    const channels = [x.shape[1]!];
    require(x.shape.length >= 2 &&
      sameShape(gamma.shape, channels) &&
      sameShape(beta.shape, channels), op, inputs, 'gamma and beta of the channels');
    // y, the normalised x, the mean, the biased variance and 1 / deviation.
    return [float(x.shape), float(x.shape), float(channels), float(channels), float(channels)];
  },
  batch_norm_inference: (inputs, _attributes, op) => {
    const channels = [inputs[0]!.shape[1]!];
    require(inputs.length === 5 &&
      inputs.slice(1).every((s) => sameShape(s.shape, channels)), op, inputs, 'four vectors of the channels');
    return [inputs[0]!];
  },
  layer_norm: (inputs, { axis }, op) => {
    const x = inputs[0]!;
    const at = normalizeAxis(axis, x.shape.length, op);
    const normalized = x.shape.slice(at);
    require(inputs
      .slice(1)
      .every((p) =>
        sameShape(p.shape, normalized),
      ), op, inputs, `gamma and beta of ${printShape(normalized)}`);
    const rows = x.shape.map((dim, i) => (i < at ? dim : 1));
    return [x, float(rows), float(rows)];
  },
  softmax: alongAxis,
  log_softmax: alongAxis,
  cross_entropy: (inputs, { labelSmoothing }, op) => {
    const [logits, labels] = inputs as [Tensor, Tensor];
    require(logits.shape.length === 2 &&
      sameShape(labels.shape, logits.shape.slice(0, 1)), op, inputs, 'logits [M, C] and labels [M]');
    require(labels.dtype === 'int32' &&
      labelSmoothing >= 0 &&
      labelSmoothing < 1, op, inputs, 'int32 labels and a smoothing in [0, 1)');
    // The loss, the probabilities and the weight of each row in the loss.
    return [float([]), float(logits.shape), float(labels.shape)];
  },
  embedding: (inputs, _attributes, op) => {
    const [table, indices] = inputs as [Tensor, Tensor];
    require(table.shape.length === 2 &&
      indices.dtype === 'int32', op, inputs, 'a table [rows, size] and int32 indices');
    return [float([...indices.shape, table.shape[1]!])];
  },
  lstm: (inputs, _attributes, op) => {
    const [steps, batch, hidden] = recurrent(4, op, inputs, inputs.slice(1, 3));
    const state = float([batch, hidden]);
    // y, the last h and c; kept for the backward pass: the gates and the cells of every step.
    return [
      float([steps, batch, hidden]),
      state,
      state,
      float([steps, batch, 4 * hidden]),
      float([steps, batch, hidden]),
    ];
  },
  gru: (inputs, _attributes, op) => {
    const [steps, batch, hidden] = recurrent(3, op, inputs, inputs.slice(1, 2));
    // y, the last h; kept for the backward pass: r, z, n and the recurrent part of n.
    return [float([steps, batch, hidden]), float([batch, hidden]), float([steps, batch, 4 * hidden])];
  },

  relu_grad: sameAsFirst,
  conv_input_grad: (_inputs, { shape }) => [float(shape)],
  conv_filter_grad: (_inputs, { shape }) => [float(shape)],
  max_pool_grad: (_inputs, { shape }) => [float(shape)],
  avg_pool_grad: (_inputs, { shape }) => [float(shape)],
  // dy, probabilities, row weights, labels
  cross_entropy_grad: (inputs) => [float(inputs[1]!.shape)],
  // dy, dh_n, dc_n, x, h0, c0, w_ih, w_hh, y, gates, cells -> dx, dh0, dc0, dw_ih, dw_hh, db
  lstm_grad: (inputs) => {
    const [x, h0, c0, wIh, wHh] = inputs.slice(3) as [Tensor, Tensor, Tensor, Tensor, Tensor];
    return [x, h0, c0, wIh, wHh, float([wIh.shape[0]!])];
  },
  // dy, dh_n, x, h0, w_ih, w_hh, y, gates -> dx, dh0, dw_ih, dw_hh, db_ih, db_hh
  gru_grad: (inputs) => {
    const [x, h0, wIh, wHh] = inputs.slice(2) as [Tensor, Tensor, Tensor, Tensor];
    return [x, h0, wIh, wHh, float([wIh.shape[0]!]), float([wIh.shape[0]!])];
  },
};

function addDims(a: Dim, b: Dim, op: string, inputs: readonly Tensor[]): Dim {
  if (a === 0) return b;
  if (isBatch(a) && isBatch(b)) return { multiple: a.multiple + b.multiple };
  if (!isBatch(a) && !isBatch(b)) return a + b;
  throw mismatch(op, inputs, 'an axis that is either fixed or of the batch');
}

export function inferTypes<K extends OpName>(
  op: K,
  inputs: readonly Tensor[],
  attributes: Operations[K],
): TensorType[] {
  const rule = (rules as unknown as Record<string, Rule<K> | undefined>)[op];
  if (!rule) throw new InternalError('BROKEN_INVARIANT', `${op} is a source and cannot be applied.`);
  return rule(inputs, attributes, op).map(({ shape, dtype }) => ({
    shape: Object.freeze([...shape]),
    dtype,
  }));
}
