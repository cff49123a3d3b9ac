/**
 * Import of convolutions and pools. Our windows have the same padding on both sides and round sizes down; whatever
 * else ONNX can say is written as a pad before them, or refused.
 */
import * as op from '../../operations/index.ts';
import type { Tensor } from '../../graph.ts';
import { staticShape } from '../../shape.ts';
import type { ImportNode, ImportTable } from './node.ts';

interface Window {
  readonly kernel: readonly number[];
  readonly stride: readonly number[];
  readonly dilation: readonly number[];
  /** `[before, after]` for each spatial axis. */
  readonly pads: readonly (readonly [number, number])[];
}

function spatialSizes(n: ImportNode, x: Tensor): number[] {
  if (x.shape.length !== 3 && x.shape.length !== 4) {
    throw n.unsupported(
      `works on rank ${x.shape.length}; supported are [N, C, length] and [N, C, height, width]`,
    );
  }
  return staticShape(x.shape.slice(2), `${n.place.what}: the spatial axes`);
}

function perAxis(
  n: ImportNode,
  name: string,
  count: number,
  fallback: number,
  least: number,
): readonly number[] {
  const given = n.ints(name) ?? new Array<number>(count).fill(fallback);
  if (given.length !== count || given.some((value) => !Number.isSafeInteger(value) || value < least)) {
    throw n.broken(`has ${name} = [${given.join(', ')}], expected ${count} entries of at least ${least}`);
  }
  return given;
}

function windowOf(n: ImportNode, x: Tensor, kernel: readonly number[]): Window {
  const lengths = spatialSizes(n, x);
  const axes = lengths.length;
  const stride = perAxis(n, 'strides', axes, 1, 1);
  const dilation = perAxis(n, 'dilations', axes, 1, 1);
  const flat = perAxis(n, 'pads', 2 * axes, 0, 0);
  const automatic = n.text('auto_pad', 'NOTSET');
  const pads = lengths.map((length, i): [number, number] => {
    if (automatic === 'NOTSET' || automatic === 'VALID')
      return automatic === 'VALID' ? [0, 0] : [flat[i]!, flat[i + axes]!];
    const reach = dilation[i]! * (kernel[i]! - 1) + 1;
    const total = Math.max(0, (Math.ceil(length / stride[i]!) - 1) * stride[i]! + reach - length);
    const half = Math.floor(total / 2);
    if (automatic === 'SAME_UPPER') return [half, total - half];
    if (automatic === 'SAME_LOWER') return [total - half, half];
    throw n.unsupported(`has auto_pad = ${JSON.stringify(automatic)}`);
  });
  return { kernel, stride, dilation, pads };
}

const isSymmetric = ({ pads }: Window) => pads.every(([before, after]) => before === after);
const before = ({ pads }: Window) => pads.map(([first]) => first);
const none = ({ pads }: Window) => pads.map(() => 0);

/** Pads x so that the window needs no padding of its own. */
function padded(x: Tensor, { pads }: Window, value: number): Tensor {
  return op.pad(x, [[0, 0], [0, 0], ...pads], value);
}

function conv(n: ImportNode): Tensor {
  const x = n.tensor(0);
  const w = n.tensor(1);
  const kernel = staticShape(w.shape.slice(2), `${n.place.what}: the kernel`);
  const declared = n.ints('kernel_shape');
  if (declared && (declared.length !== kernel.length || declared.some((size, i) => size !== kernel[i]))) {
    throw n.broken(`has kernel_shape [${declared.join(', ')}] and weights of [${kernel.join(', ')}]`);
  }
  const window = windowOf(n, x, kernel);
  const { stride, dilation } = window;
  const groups = n.int('group', 1);
  if (!Number.isSafeInteger(groups) || groups < 1) throw n.broken(`has ${groups} groups`);
  const bias = n.has(2) ? n.tensor(2) : undefined;
  const symmetric = isSymmetric(window);
  const padding = symmetric ? before(window) : none(window);
  return op.convolve(symmetric ? x : padded(x, window, 0), w, bias, { stride, dilation, groups, padding });
}

function poolWindow(n: ImportNode, x: Tensor): Window {
  const lengths = spatialSizes(n, x);
  if (!n.hasAttribute('kernel_shape')) throw n.broken('lacks the attribute kernel_shape');
  const window = windowOf(n, x, perAxis(n, 'kernel_shape', lengths.length, 1, 1));
  if (window.dilation.some((step) => step !== 1)) throw n.unsupported('has dilations');
  if (n.int('ceil_mode', 0) === 0) return window;
  // Rounding up is padding behind the end, as long as a window still starts inside.
  const pads = window.pads.map(([first, last], i): [number, number] => {
    const [length, stride, size] = [lengths[i]!, window.stride[i]!, window.kernel[i]!];
    let count = Math.ceil((length + first + last - size) / stride) + 1;
    if ((count - 1) * stride >= length + first) count--;
    return [first, Math.max(last, (count - 1) * stride + size - length - first)];
  });
  return { ...window, pads };
}

function maxPool(n: ImportNode): Tensor {
  const x = n.tensor(0);
  n.ignore('storage_order');
  const window = poolWindow(n, x);
  const { kernel, stride } = window;
  if (isSymmetric(window)) return op.maxPool(x, { kernel, stride, padding: before(window) });
  return op.maxPool(padded(x, window, -Infinity), { kernel, stride });
}

function averagePool(n: ImportNode): Tensor {
  const x = n.tensor(0);
  const countPadding = n.int('count_include_pad', 0) !== 0;
  if (n.int('ceil_mode', 0) !== 0) throw n.unsupported('rounds sizes up (ceil_mode)');
  const window = poolWindow(n, x);
  const { kernel, stride } = window;
  if (isSymmetric(window)) return op.avgPool(x, { kernel, stride, padding: before(window), countPadding });
  if (!countPadding) throw n.unsupported('has different pads on both sides and does not count them');
  return op.avgPool(padded(x, window, 0), { kernel, stride });
}

function globalPool(n: ImportNode, reduce: (x: Tensor, axes: number[], keepDims: boolean) => Tensor): Tensor {
  const x = n.tensor(0);
  if (x.shape.length < 3) throw n.broken(`pools a tensor of rank ${x.shape.length}`);
  return reduce(x, x.shape.slice(2).map((_, i) => i + 2), true); // prettier-ignore
}

export const windowImport: ImportTable = {
  Conv: conv,
  MaxPool: maxPool,
  AveragePool: averagePool,
  GlobalAveragePool: (n) => globalPool(n, op.mean),
  GlobalMaxPool: (n) => globalPool(n, op.max),
};
