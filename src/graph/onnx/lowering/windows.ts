/**
 * Lowering of convolutions and pools with their gradients. ONNX has no filter gradient: the channels-last input is
 * unfolded into its windows by one Gather, and a product with the output's gradient gives it. Measured for 32x32x26x26
 * and 64 filters of 3x3: unfolding 2.5 ms, by slices and a concat of the channels-first input 8.1 ms.
 * The input gradient is ConvTranspose.
 */
import type {
  BackwardOperations,
  ConvAttributes,
  NeuralOperations,
  PoolAttributes,
} from '../../catalogue.ts';

import { MICROSOFT, type AttributeValues, type Emitter } from '../emitter.ts';
import type { LoweringTable } from './rule.ts';
import { zeros } from './tensor.ts';

type Names =
  | Extract<keyof NeuralOperations, 'conv' | 'max_pool' | 'avg_pool'>
  | Extract<keyof BackwardOperations, `conv_${string}` | `${string}_pool_grad`>;

function convAttributes({ stride, padding, dilation, groups }: ConvAttributes): AttributeValues {
  return { strides: stride, pads: [...padding, ...padding], dilations: dilation, group: groups };
}

function poolAttributes({ kernel, stride, padding }: PoolAttributes): AttributeValues {
  return { kernel_shape: kernel, strides: stride, pads: [...padding, ...padding] };
}

/** Every position inside the kernel, in row-major order. */
function offsets(kernel: readonly number[]): number[][] {
  return kernel.reduce<number[][]>(
    (prefixes, size) => prefixes.flatMap((prefix) => Array.from({ length: size }, (_, i) => [...prefix, i])),
    [[]],
  );
}

const count = (values: readonly number[]) => values.reduce((product, value) => product * value, 1);

export const windowLowering: LoweringTable<Names> = {
  conv: (e, inputs, { attributes }) => [e.op('Conv', inputs, convAttributes(attributes))],
  conv_input_grad: (e, [dy, w], { inputs, attributes }) => {
    const { stride, padding, dilation, shape } = attributes;
    const out = e.known(inputs[0]!.shape).slice(2);
    const kernel = e.known(inputs[1]!.shape).slice(2);
    const output_padding = e
      .known(shape)
      .slice(2)
      .map((length, i) => {
        const reached = (out[i]! - 1) * stride[i]! - 2 * padding[i]! + dilation[i]! * (kernel[i]! - 1) + 1;
        return length - reached;
      });
    return [e.op('ConvTranspose', [dy!, w!], { ...convAttributes(attributes), output_padding })];
  },
  conv_filter_grad: (e, [x, dy], { inputs, attributes }) => {
    const [outChannels, inGroup, ...kernel] = e.known(attributes.shape) as [number, number, ...number[]];
    const [batch, channels, ...lengths] = e.known(inputs[0]!.shape) as [number, number, ...number[]];
    const out = e.known(inputs[1]!.shape).slice(2);
    const { padding, groups } = attributes;
    const padded = padding.some((p) => p > 0)
      ? e.op('Pad', [x!, e.ints([0, 0, ...padding, 0, 0, ...padding])])
      : x!;
    const paddedLengths = lengths.map((length, i) => length + 2 * padding[i]!);
    const [rows, size] = [batch * count(out), count(kernel)];
    if (groups === 1 && channels < MIN_CHANNELS_LAST) {
      const columns = slicedWindows(e, padded, [batch, channels, ...out], kernel, attributes);
      const gradients = e.op('Reshape', [dy!, e.ints([batch, outChannels, count(out)])]);
      const perSample = e.op('FusedMatMul', [gradients, columns], { transB: 1 }, MICROSOFT);
      const total = e.op('ReduceSum', [perSample, e.ints([0])], { keepdims: 0 });
      return [e.op('Reshape', [total, e.ints([outChannels, inGroup, ...kernel])])];
    }
    // Windows of the channels-last input, one row each: [batch, positions, kernel, channels].
    const pixels = channelsLast(e, padded, [batch, channels, count(paddedLengths)]);
    const table = windowPositions(paddedLengths, out, kernel, attributes);
    const isWhole = table.every((position, i) => position === i) && table.length === count(paddedLengths);
    const windows = isWhole ? pixels : e.op('Gather', [pixels, e.int32(table, [table.length])], { axis: 1 });
    if (groups === 1) {
      // One product for each sample and a sum: the gradient of the output stays channels-first, and no operand is transposed.
      const columns = e.op('Reshape', [windows, e.ints([batch, count(out), size * channels])]);
      const gradients = e.op('Reshape', [dy!, e.ints([batch, outChannels, count(out)])]);
      const perSample = e.op('MatMul', [gradients, columns]);
      const total = e.op('ReduceSum', [perSample, e.ints([0])], { keepdims: 0 });
      const cube = e.op('Reshape', [total, e.ints([outChannels, size, channels])]);
      const filters = e.op('Transpose', [cube], { perm: [0, 2, 1] });
      return [e.op('Reshape', [filters, e.ints([outChannels, inGroup, ...kernel])])];
    }
    const outputs = channelsLast(e, dy!, [batch, outChannels, count(out)]);
    const perGroup = (value: string, middle: number, last: number) => {
      const split = e.op('Reshape', [value, e.ints([rows, middle, groups, last])]);
      const first = e.op('Transpose', [split], { perm: [2, 0, 1, 3] });
      return e.op('Reshape', [first, e.ints([groups, rows, middle * last])]);
    };
    const columns = perGroup(windows, size, inGroup);
    const gradients = perGroup(outputs, 1, outChannels / groups);
    const product = e.op('FusedMatMul', [columns, gradients], { transA: 1 }, MICROSOFT);
    const cube = e.op('Reshape', [product, e.ints([groups, size, inGroup, outChannels / groups])]);
    const filters = e.op('Transpose', [cube], { perm: [0, 3, 2, 1] });
    return [e.op('Reshape', [filters, e.ints([outChannels, inGroup, ...kernel])])];
  },
  max_pool: (e, [x], { outputs, attributes }) => {
    const used = e.options.isUsed(outputs[1]!);
    const names = e.multi('MaxPool', [x!], used ? 2 : 1, poolAttributes(attributes));
    return used ? names : [names[0]!, ''];
  },
  max_pool_grad: (e, [dy, indices], { attributes }) => {
    const { kernel, stride, shape } = attributes;
    const full = e.known(shape);
    // Windows that do not overlap write each place at most once: nothing has to be added.
    if (kernel.every((size, i) => size <= stride[i]!)) {
      return [e.op('MaxUnpool', [dy!, indices!, e.ints(full)], poolAttributes(attributes))];
    }
    const flat = (value: string) => e.op('Reshape', [value, e.ints([-1])]);
    const inputs = [zeros(e, [count(full)]), flat(indices!), flat(dy!)];
    return [e.op('Reshape', [e.op('ScatterElements', inputs, { axis: 0, reduction: 'add' }), e.ints(full)])];
  },
  avg_pool: (e, [x], { attributes }) => [
    e.op('AveragePool', [x!], {
      ...poolAttributes(attributes),
      count_include_pad: Number(attributes.countPadding),
    }),
  ],
  avg_pool_grad: (e, [dy], { inputs, attributes }) => {
    const { kernel, stride, padding, countPadding, shape } = attributes;
    const [batch, channels, ...lengths] = e.known(shape) as [number, number, ...number[]];
    const out = e.known(inputs[0]!.shape).slice(2);
    const share = e.op('Mul', [dy!, e.floats(cellShares(lengths, out, attributes, countPadding), out)]);
    const images = e.op('Reshape', [share, e.ints([batch * channels, 1, ...out])]);
    const ones = e.floats(new Float32Array(count(kernel)).fill(1), [1, 1, ...kernel]);
    const output_padding = lengths.map(
      (length, i) => length - ((out[i]! - 1) * stride[i]! - 2 * padding[i]! + kernel[i]!),
    );
    const spread = e.op('ConvTranspose', [images, ones], {
      strides: stride,
      pads: [...padding, ...padding],
      output_padding,
    });
    return [e.op('Reshape', [spread, e.ints([batch, channels, ...lengths])])];
  },
};

/** `[N, C, pixels] -> [N, pixels, C]`. */
function channelsLast(e: Emitter, value: string, shape: readonly [number, number, number]): string {
  return e.op('Transpose', [e.op('Reshape', [value, e.ints(shape)])], { perm: [0, 2, 1] });
}

/** Below this, rows of channels are too short to gather: slices of whole image rows are copied instead (3x faster for 1). */
const MIN_CHANNELS_LAST = 8;

/** The windows as columns, `[N, C * kernel, positions]`: one slice for each place in the kernel. */
function slicedWindows(
  e: Emitter,
  padded: string,
  [batch, channels, ...out]: readonly [number, number, ...number[]],
  kernel: readonly number[],
  { stride, dilation }: ConvAttributes,
): string {
  const axes = e.ints(out.map((_, i) => i + 2));
  const parts = offsets(kernel).map((place) => {
    const starts = place.map((at, i) => at * dilation[i]!);
    const ends = starts.map((start, i) => start + (out[i]! - 1) * stride[i]! + 1);
    const part = e.op('Slice', [padded, e.ints(starts), e.ints(ends), axes, e.ints(stride)]);
    return e.op('Reshape', [part, e.ints([batch, channels, 1, count(out)])]);
  });
  const stacked = parts.length === 1 ? parts[0]! : e.op('Concat', parts, { axis: 2 });
  return e.op('Reshape', [stacked, e.ints([batch, channels * count(kernel), count(out)])]);
}

/** For each output position and each place in the kernel: which pixel of the padded input it reads. */
function windowPositions(
  lengths: readonly number[],
  out: readonly number[],
  kernel: readonly number[],
  { stride, dilation }: ConvAttributes,
): Int32Array<ArrayBuffer> {
  const places = offsets(kernel);
  return Int32Array.from(
    offsets(out).flatMap((position) =>
      places.map((place) =>
        position.reduce((flat, at, i) => flat * lengths[i]! + at * stride[i]! + place[i]! * dilation[i]!, 0),
      ),
    ),
  );
}

/** One over the number of elements that each output cell averages. */
function cellShares(
  lengths: readonly number[],
  out: readonly number[],
  { kernel, stride, padding }: PoolAttributes,
  countPadding: boolean,
): Float32Array<ArrayBuffer> {
  const perAxis = out.map((cells, axis) =>
    Array.from({ length: cells }, (_, cell) => {
      if (countPadding) return kernel[axis]!;
      const start = cell * stride[axis]! - padding[axis]!;
      return Math.min(start + kernel[axis]!, lengths[axis]!) - Math.max(start, 0);
    }),
  );
  return Float32Array.from(
    offsets(out),
    (cell) => 1 / cell.reduce((product, at, axis) => product * perAxis[axis]![at]!, 1),
  );
}
