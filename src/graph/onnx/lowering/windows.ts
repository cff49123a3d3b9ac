/**
 * Lowering of convolutions and pools with their gradients. ONNX has no filter gradient: the input is unfolded
 * into its windows by slices, and one batched product with the output's gradient gives it (measured faster than a
 * convolution of transposes). The input gradient is ConvTranspose.
 */
import type {
  BackwardOperations,
  ConvAttributes,
  NeuralOperations,
  PoolAttributes,
} from '../../catalogue.ts';

import { MICROSOFT, type AttributeValues } from '../emitter.ts';
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
    const { stride, padding, dilation, groups, shape } = attributes;
    const [batch, channels] = e.known(inputs[0]!.shape) as [number, number];
    const [outChannels, inGroup, ...kernel] = e.known(shape) as [number, number, ...number[]];
    const out = e.known(inputs[1]!.shape).slice(2);
    const positions = count(out);
    const spatialAxes = out.map((_, i) => i + 2);
    const padded = padding.some((p) => p > 0)
      ? e.op('Pad', [x!, e.ints([0, 0, ...padding, 0, 0, ...padding])])
      : x!;
    const windows = offsets(kernel).map((offset) => {
      const starts = offset.map((at, i) => at * dilation[i]!);
      const ends = starts.map((start, i) => start + (out[i]! - 1) * stride[i]! + 1);
      const part = e.op('Slice', [padded, e.ints(starts), e.ints(ends), e.ints(spatialAxes), e.ints(stride)]);
      return e.op('Reshape', [part, e.ints([batch, channels, 1, positions])]);
    });
    const stacked = windows.length === 1 ? windows[0]! : e.op('Concat', windows, { axis: 2 });
    const columns = e.op('Reshape', [stacked, e.ints([batch, groups, inGroup * count(kernel), positions])]);
    const rows = e.op('Reshape', [dy!, e.ints([batch, groups, outChannels / groups, positions])]);
    const perSample = e.op('FusedMatMul', [rows, columns], { transB: 1 }, MICROSOFT);
    const total = e.op('ReduceSum', [perSample, e.ints([0])], { keepdims: 0 });
    return [e.op('Reshape', [total, e.ints([outChannels, inGroup, ...kernel])])];
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
