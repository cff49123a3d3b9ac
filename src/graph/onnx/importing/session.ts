/**
 * What one import builds up: the graph and the sources that its weights became. A weight turns into a trainable
 * parameter when it is first read as a tensor; a weight that is clearly a mask stays a constant.
 */
import { Graph, type Tensor } from '../../graph.ts';
import { isBatch } from '../../shape.ts';
import { unsupported, type Place } from '../tensor-proto.ts';
import type { Known, Value, Weight } from './value.ts';

export interface ImportSessionOptions {
  readonly source: string;
  readonly version: number;
  readonly trainable: (name: string) => boolean;
  readonly dropout: boolean;
}

/** Additive attention masks hide by numbers of this size; no weight has them. */
const MASK_MAGNITUDE = 1e9;
const INT32_LIMIT = 2 ** 31;

export class ImportSession {
  readonly graph = new Graph();
  readonly source: string;
  /** Of the standard operator set. */
  readonly version: number;
  readonly dropout: boolean;
  readonly #trainable: (name: string) => boolean;
  readonly #sources = new Map<string, Tensor>();

  constructor({ source, version, trainable, dropout }: ImportSessionOptions) {
    this.source = source;
    this.version = version;
    this.dropout = dropout;
    this.#trainable = trainable;
  }

  tensorOf(value: Value, place: Place): Tensor {
    if (value.kind === 'tensor') return value.tensor;
    if (value.kind === 'known') return this.#constant(value, place);
    if (value.data.some((x) => !(Math.abs(x) < MASK_MAGNITUDE))) {
      return this.once(`constant ${value.name}`, () => this.graph.constant(value.data, value.shape));
    }
    return this.parameter(value, 'plain', value.name, value.shape, () => value.data);
  }

  /** A parameter made of a weight, once for each `layout`: gates are reordered, biases split. */
  parameter(
    weight: Weight,
    layout: string,
    name: string,
    shape: readonly number[],
    arrange: (data: Float32Array) => Float32Array,
  ): Tensor {
    return this.once(`${layout} ${weight.name}`, () => {
      const initialiser = { kind: 'data', data: arrange(weight.data) } as const;
      return this.graph.parameter(this.#freeName(name), shape, initialiser, {
        trainable: this.#trainable(weight.name),
      });
    });
  }

  /** A state made of a weight: running statistics. */
  state(weight: Weight): Tensor {
    return this.once(`state ${weight.name}`, () =>
      this.graph.state(this.#freeName(weight.name), weight.shape, { kind: 'data', data: weight.data }),
    );
  }

  once(key: string, make: () => Tensor): Tensor {
    const known = this.#sources.get(key);
    if (known) return known;
    const made = make();
    this.#sources.set(key, made);
    return made;
  }

  #freeName(name: string): string {
    const { inputs, parameters, states } = this.graph;
    let free = name === '' ? 'weight' : name;
    for (let i = 2; inputs.has(free) || parameters.has(free) || states.has(free); i++) free = `${name}_${i}`;
    return free;
  }

  #constant({ dtype, shape, values }: Known, place: Place): Tensor {
    if (values.some(isBatch)) {
      const [only] = values;
      if (shape.length === 0 && dtype === 'float32' && isBatch(only!))
        return this.graph.batchScalar(only.multiple, 1);
      throw unsupported(place, 'computes with the batch size outside of a shape');
    }
    const numbers = values as readonly number[];
    if (dtype === 'float32') return this.graph.constant(Float32Array.from(numbers), shape);
    if (dtype === 'bool') return this.graph.constant(Uint8Array.from(numbers), shape);
    const outside = numbers.find((x) => !(x >= -INT32_LIMIT && x < INT32_LIMIT));
    if (outside !== undefined)
      throw unsupported(place, `uses the integer ${outside}, which does not fit into int32`);
    return this.graph.constant(Int32Array.from(numbers), shape);
  }
}
