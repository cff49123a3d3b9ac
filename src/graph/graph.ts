/**
 * A define-and-run graph: nodes in the order they were written, which is a topological order. A tensor is a
 * typed output of a node. The graph also holds what enters from outside (inputs, parameters, state) and which
 * state is replaced by which tensor after a step. It computes nothing.
 */
import { UsageError } from '../base/index.ts';
import type { DType, OpName, Operations } from './catalogue.ts';
import { inferTypes } from './infer.ts';
import { zeros, type Initialiser } from './initialisers.ts';
import { printShape, sameShape, staticShape, type Shape } from './shape.ts';
import type { MovingAverage, UpdateOperation } from './update.ts';

export interface TensorType {
  readonly shape: Shape;
  readonly dtype: DType;
}

export interface Node<K extends OpName = OpName> {
  readonly id: number;
  readonly op: K;
  readonly attributes: Operations[K];
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
}

export class Tensor implements TensorType {
  readonly graph: Graph;
  readonly node: Node;
  /** Which output of the node. */
  readonly index: number;
  readonly shape: Shape;
  readonly dtype: DType;

  constructor(graph: Graph, node: Node, index: number, type: TensorType) {
    this.graph = graph;
    this.node = node;
    this.index = index;
    this.shape = type.shape;
    this.dtype = type.dtype;
  }

  /** A name for messages: the source's own, or `op#id`. */
  get label(): string {
    const { attributes } = this.node;
    if ('name' in attributes) return attributes.name;
    return `${this.node.op}#${this.node.id}${this.index > 0 ? `:${this.index}` : ''}`;
  }
}

export interface Parameter {
  readonly name: string;
  readonly shape: readonly number[];
  readonly tensor: Tensor;
  readonly initialiser: Initialiser;
  /** False for parameters that are read but never updated. */
  readonly trainable: boolean;
}

/** A value that is not trained but kept between steps: running statistics, moving averages. */
export interface State {
  readonly name: string;
  readonly shape: readonly number[];
  readonly tensor: Tensor;
  readonly initialiser: Initialiser;
}

export interface StateUpdate {
  readonly state: State;
  readonly value: Tensor;
}

/** One number for each channel. */
export interface RunningStatistics {
  readonly mean: Tensor;
  readonly variance: Tensor;
}

export class Graph {
  readonly nodes: Node[] = [];
  readonly inputs = new Map<string, Tensor>();
  readonly parameters = new Map<string, Parameter>();
  readonly states = new Map<string, State>();
  readonly stateUpdates: StateUpdate[] = [];
  readonly dropoutMasks = new Map<string, Tensor>();
  /** The running statistics that inference uses in place of a batch_norm node's own. */
  readonly statistics = new Map<Node, RunningStatistics>();
  /** What happens to aggregated gradients before the update, in order; see `update.ts`. */
  readonly updateOperations: UpdateOperation[] = [];
  /** Averages of parameters that follow every update; see `update.ts`. */
  readonly movingAverages: MovingAverage[] = [];
  #layerCounts = new Map<string, number>();

  /** A value given with every batch; use `N` for the batch dimension. */
  input(name: string, shape: Shape, dtype: DType = 'float32'): Tensor {
    this.#claim(name);
    const tensor = this.#source('input', { name }, { shape, dtype });
    this.inputs.set(name, tensor);
    return tensor;
  }

  /** A trained value. */
  parameter(
    name: string,
    shape: readonly number[],
    initialiser: Initialiser = zeros,
    options: { trainable?: boolean } = {},
  ): Tensor {
    this.#claim(name);
    const tensor = this.#source(
      'parameter',
      { name },
      { shape: staticShape(shape, `parameter ${name}`), dtype: 'float32' },
    );
    this.parameters.set(name, { name, shape, tensor, initialiser, trainable: options.trainable ?? true });
    return tensor;
  }

  /** A value kept between steps but not trained; see `assign`. */
  state(name: string, shape: readonly number[], initialiser: Initialiser = zeros): Tensor {
    this.#claim(name);
    const tensor = this.#source('state', { name }, { shape, dtype: 'float32' });
    this.states.set(name, { name, shape, tensor, initialiser });
    return tensor;
  }

  /** After each step the state holds `value`. At most one assignment for each state. */
  assign(state: Tensor, value: Tensor): void {
    const entry = state.node.op === 'state' ? this.states.get(state.label) : undefined;
    if (!entry || this.stateUpdates.some((update) => update.state === entry)) {
      throw new UsageError('INVALID_GRAPH', `assign: ${state.label} is no state or is assigned twice.`);
    }
    if (!sameShape(state.shape, value.shape)) {
      throw new UsageError(
        'SHAPE_MISMATCH',
        `assign: state ${state.label} has shape ${printShape(state.shape)}, the value ${printShape(value.shape)}.`,
      );
    }
    this.stateUpdates.push({ state: entry, value });
  }

  /** Tells inference which running statistics belong to a batch_norm node. */
  linkStatistics(batchNorm: Node, statistics: RunningStatistics): void {
    const channels = batchNorm.inputs[1]?.shape;
    const { mean, variance } = statistics;
    const fits = channels && sameShape(mean.shape, channels) && sameShape(variance.shape, channels);
    if (batchNorm.op !== 'batch_norm' || this.nodes[batchNorm.id] !== batchNorm || !fits) {
      throw new UsageError(
        'INVALID_GRAPH',
        `linkStatistics: ${batchNorm.op}#${batchNorm.id} is no batch_norm of this graph, or the statistics ` +
          `${printShape(mean.shape)} and ${printShape(variance.shape)} are not one number for each channel.`,
      );
    }
    this.statistics.set(batchNorm, statistics);
  }

  constant(data: Float32Array | Int32Array | Uint8Array, shape: readonly number[]): Tensor {
    const dtype: DType =
      data instanceof Float32Array ? 'float32' : data instanceof Int32Array ? 'int32' : 'bool';
    const count = shape.reduce((product, dim) => product * dim, 1);
    if (count !== data.length) {
      throw new UsageError(
        'SHAPE_MISMATCH',
        `constant: ${data.length} values for shape ${printShape(shape)}.`,
      );
    }
    return this.#source('constant', { data }, { shape, dtype });
  }

  scalar(value: number): Tensor {
    return this.constant(new Float32Array([value]), []);
  }

  /** The scalar `coefficient * N^power`. */
  batchScalar(coefficient: number, power: number): Tensor {
    if (power === 0) return this.scalar(coefficient);
    return this.#source('batch_scalar', { coefficient, power }, { shape: [], dtype: 'float32' });
  }

  dropoutMask(shape: Shape, p: number): Tensor {
    const name = this.uniqueName('dropout');
    const tensor = this.#source('dropout_mask', { name, p }, { shape, dtype: 'float32' });
    this.dropoutMasks.set(name, tensor);
    return tensor;
  }

  /** Adds a node; shapes and types are inferred and checked. */
  apply<K extends OpName>(op: K, inputs: readonly Tensor[], attributes: Operations[K]): readonly Tensor[] {
    for (const input of inputs) {
      if (input.graph !== this)
        throw new UsageError('INVALID_GRAPH', `${op}: input ${input.label} is of another graph.`);
    }
    return this.#add(op, inputs, attributes, inferTypes(op, inputs, attributes)).outputs;
  }

  /** `linear1`, `linear2`, ...: a name no layer of this graph has. */
  uniqueName(prefix: string): string {
    const count = (this.#layerCounts.get(prefix) ?? 0) + 1;
    this.#layerCounts.set(prefix, count);
    return `${prefix}${count}`;
  }

  #claim(name: string): void {
    if (name === '' || this.inputs.has(name) || this.parameters.has(name) || this.states.has(name)) {
      throw new UsageError(
        'INVALID_GRAPH',
        `The name ${JSON.stringify(name)} is empty or taken; give another one.`,
      );
    }
  }

  #source<K extends OpName>(op: K, attributes: Operations[K], type: TensorType): Tensor {
    return this.#add(op, [], attributes, [type]).outputs[0]!;
  }

  #add<K extends OpName>(
    op: K,
    inputs: readonly Tensor[],
    attributes: Operations[K],
    types: readonly TensorType[],
  ): Node<K> {
    const outputs: Tensor[] = [];
    const node: Node<K> = { id: this.nodes.length, op, attributes, inputs, outputs };
    types.forEach((type, index) => outputs.push(new Tensor(this, node, index, type)));
    this.nodes.push(node);
    return node;
  }
}

/** Narrows a node by its operation. */
export function isNode<K extends OpName>(node: Node, op: K): node is Node<K> {
  return node.op === op;
}
