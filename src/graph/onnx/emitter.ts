/**
 * Writes ONNX nodes while a graph is lowered: fresh names, interned constants, shapes for a known or a symbolic
 * batch size. It knows ONNX syntax, not our operations. `portable` keeps to the standard operators, for files
 * that leave the house; otherwise ONNX Runtime's own faster ones may be used.
 */
import { InternalError } from '../../base/index.ts';
import type { Tensor } from '../graph.ts';
import { hasBatch, isBatch, resolveShape, type BatchDim, type Shape } from '../shape.ts';
import { attribute, type OnnxAttribute, type OnnxNode, type OnnxTensor } from './proto.ts';

/** The operator set that lowered graphs use. */
export const OPSET = 17;
export const MICROSOFT = 'com.microsoft';

type AttributeValue = number | string | readonly number[] | OnnxAttribute;
export type AttributeValues = Readonly<Record<string, AttributeValue>>;

export interface EmitterOptions {
  /** Undefined: the batch size stays symbolic. */
  readonly batch: number | undefined;
  readonly portable: boolean;
  /** Whether anything reads a tensor; outputs that nobody reads need not be made. */
  readonly isUsed: (tensor: Tensor) => boolean;
}

export class Emitter {
  readonly options: EmitterOptions;
  readonly nodes: OnnxNode[] = [];
  readonly initializers: OnnxTensor[] = [];
  #names = new Map<Tensor, string>();
  #constants = new Map<string, string>();
  #next = 0;

  constructor(options: EmitterOptions) {
    this.options = options;
  }

  bind(tensor: Tensor, name: string): void {
    this.#names.set(tensor, name);
  }

  nameOf(tensor: Tensor): string {
    const name = this.#names.get(tensor);
    if (name === undefined)
      throw new InternalError('BROKEN_INVARIANT', `${tensor.label} was not lowered before its use.`);
    return name;
  }

  /** One node with one output. */
  op(opType: string, inputs: readonly string[], attributes: AttributeValues = {}, domain = ''): string {
    return this.multi(opType, inputs, 1, attributes, domain)[0]!;
  }

  /** One node with several outputs. */
  multi(
    opType: string,
    inputs: readonly string[],
    outputs: number,
    attributes: AttributeValues = {},
    domain = '',
  ): string[] {
    const names = Array.from({ length: outputs }, () => `v${this.#next++}`);
    this.node(opType, inputs, names, attributes, domain);
    return names;
  }

  node(
    opType: string,
    inputs: readonly string[],
    outputs: readonly string[],
    attributes: AttributeValues = {},
    domain = '',
  ): void {
    this.nodes.push({
      name: `${opType}_${this.nodes.length}`,
      opType,
      ...(domain === '' ? {} : { domain }),
      inputs: [...inputs],
      outputs: [...outputs],
      attributes: Object.fromEntries(
        Object.entries(attributes).map(([key, value]) => [key, toAttribute(key, value)]),
      ),
    });
  }

  /** A fresh name for a value that the caller emits itself. */
  fresh(): string {
    return `v${this.#next++}`;
  }

  scalar(value: number): string {
    return this.#intern(
      `f:${value}${Object.is(value, -0) ? '-' : ''}`,
      'float32',
      [],
      () => new Float32Array([value]),
    );
  }

  floats(data: Float32Array, shape: readonly number[]): string {
    return this.#add('float32', shape, data);
  }

  int32(data: Int32Array, shape: readonly number[]): string {
    return this.#add('int32', shape, data);
  }

  bools(data: Uint8Array, shape: readonly number[]): string {
    return this.#add('bool', shape, data);
  }

  int32Scalar(value: number): string {
    return this.#intern(`i32:${value}`, 'int32', [], () => new Int32Array([value]));
  }

  /** A vector of int64: axes, sizes, shapes. */
  ints(values: readonly number[]): string {
    return this.#intern(`i:${values.join()}`, 'int64', [values.length], () =>
      BigInt64Array.from(values.map(clampToInt64)),
    );
  }

  /** A shape for Reshape: -1 where the batch is symbolic. */
  reshapeTarget(shape: Shape): string {
    const { batch } = this.options;
    if (batch !== undefined) return this.ints(resolveShape(shape, batch));
    if (shape.filter(isBatch).length > 1)
      throw new InternalError('BROKEN_INVARIANT', 'A shape holds the batch twice.');
    return this.ints(shape.map((dim) => (isBatch(dim) ? -1 : dim)));
  }

  reshape(value: string, shape: Shape): string {
    return this.op('Reshape', [value, this.reshapeTarget(shape)]);
  }

  /** A shape for Expand and ConstantOfShape; a symbolic batch is read from a value that has it. */
  fullShape(shape: Shape): string {
    const { batch } = this.options;
    if (batch !== undefined || !hasBatch(shape)) return this.ints(resolveShape(shape, batch ?? 0));
    const size = this.batchSize();
    const parts = shape.map((dim) =>
      isBatch(dim)
        ? dim.multiple === 1
          ? size
          : this.op('Mul', [size, this.ints([dim.multiple])])
        : this.ints([dim]),
    );
    return this.op('Concat', parts, { axis: 0 });
  }

  /** The symbolic batch size as a vector of one int64, from the shape of the first value that has it. */
  batchSize(): string {
    for (const [tensor, name] of this.#names) {
      const axis = tensor.shape.findIndex(isBatch);
      if (axis < 0 || name === '') continue;
      const size = this.op('Slice', [this.op('Shape', [name]), this.ints([axis]), this.ints([axis + 1])]);
      const { multiple } = tensor.shape[axis] as BatchDim;
      return multiple === 1 ? size : this.op('Div', [size, this.ints([multiple])]);
    }
    throw new InternalError('BROKEN_INVARIANT', 'No value before this one has the batch size in its shape.');
  }

  /** A number for each axis, where the batch must be known. */
  known(shape: Shape): number[] {
    const { batch } = this.options;
    if (batch === undefined && hasBatch(shape)) {
      throw new InternalError('BROKEN_INVARIANT', 'This operation is lowered only for a known batch size.');
    }
    return resolveShape(shape, batch ?? 0);
  }

  #intern(key: string, dtype: OnnxTensor['dtype'], shape: number[], make: () => OnnxTensor['data']): string {
    const known = this.#constants.get(key);
    if (known !== undefined) return known;
    const name = this.#add(dtype, shape, make());
    this.#constants.set(key, name);
    return name;
  }

  #add(dtype: OnnxTensor['dtype'], shape: readonly number[], data: OnnxTensor['data']): string {
    const name = `c${this.initializers.length}`;
    this.initializers.push({ name, dtype, shape: [...shape], data });
    return name;
  }
}

function clampToInt64(value: number): bigint {
  if (value === Infinity) return 0x7fffffffffffffffn;
  return BigInt(value);
}

/** Attributes that ONNX wants as floats even when the number is whole. */
const FLOAT_ATTRIBUTES = new Set(['alpha', 'beta', 'epsilon', 'momentum']);

function toAttribute(key: string, value: AttributeValue): OnnxAttribute {
  if (typeof value === 'number')
    return FLOAT_ATTRIBUTES.has(key) ? attribute.float(value) : attribute.int(value);
  if (typeof value === 'string') return attribute.string(value);
  if ('type' in value) return value;
  return attribute.ints(value);
}
