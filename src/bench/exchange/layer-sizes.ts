/**
 * What the models of `bench exchange` are made of: a trained tensor by name and length, and the layers that have several.
 * Sizes only; nothing here computes. Invariant: lengths are those of PyTorch's layers of the same kind.
 */
export interface ModelTensor {
  /** As PyTorch names it. */
  readonly key: string;
  /** Elements, float32. */
  readonly length: number;
  /** Elements of a row, where the tensor is a table of which a step touches some rows only. */
  readonly rowLength?: number;
}

/** Height and width, or one number for both. */
export type KernelSize = number | readonly [number, number];

/** A layer with a bias: fully connected, or a convolution with a kernel. */
export function layer(key: string, inputs: number, outputs: number, kernel: KernelSize = 1): ModelTensor[] {
  return [
    { key: `${key}.weight`, length: outputs * inputs * area(kernel) },
    { key: `${key}.bias`, length: outputs },
  ];
}

/** A convolution without a bias, then batch normalization; each has its name. */
export function normalized(
  convolution: string,
  normalization: string,
  inputs: number,
  outputs: number,
  kernel: KernelSize,
): ModelTensor[] {
  return [
    { key: `${convolution}.weight`, length: outputs * inputs * area(kernel) },
    { key: `${normalization}.weight`, length: outputs },
    { key: `${normalization}.bias`, length: outputs },
  ];
}

/** The same as a block of its own. */
export function block(key: string, inputs: number, outputs: number, kernel: KernelSize = 1): ModelTensor[] {
  return normalized(`${key}.conv`, `${key}.bn`, inputs, outputs, kernel);
}

function area(kernel: KernelSize): number {
  return typeof kernel === 'number' ? kernel * kernel : kernel[0] * kernel[1];
}
