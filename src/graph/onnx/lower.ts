/**
 * Lowers a part of a graph to an ONNX model: everything between the given tensors (or sources) and the wanted
 * outputs. For a known batch size all shapes are static. Inputs and outputs keep their tensors, so that the caller
 * can bind memory to each; an output that is only a reshaped value is delivered under the value's own shape,
 * which spares a copy.
 */
import { InternalError } from '../../base/index.ts';
import type { ComputedName, DType, SourceName } from '../catalogue.ts';
import { isNode, type Node, type Tensor } from '../graph.ts';
import { isBatch, resolveShape, type Shape } from '../shape.ts';
import { Emitter, MICROSOFT, OPSET } from './emitter.ts';
import { loweringTable, type LoweringRule } from './lowering/index.ts';
import type { OnnxModel, OnnxNode, OnnxValue } from './proto.ts';

export interface LowerRequest {
  readonly outputs: readonly Tensor[];
  /** Undefined: the batch size stays symbolic (inference only). */
  readonly batch: number | undefined;
  /** Computed tensors that are given from outside: the model starts at them. */
  readonly given?: readonly Tensor[];
  /** Keep to standard operators, for files that others read. Default false. */
  readonly portable?: boolean;
  /**
   * How many rows of a table are given, where it is not all of them: then each lookup in it takes
   * the numbers of these rows as an input of its own, in place of its indices. Default: all.
   */
  readonly heldRows?: ((table: Tensor) => number | undefined) | undefined;
  /** Names for inputs and outputs; default `in<i>`, `out<i>`. */
  readonly nameOf?: (tensor: Tensor, role: 'input' | 'output', index: number) => string;
}

export interface Port {
  readonly name: string;
  readonly tensor: Tensor;
  /**
   * Where it is not the tensor itself, the indices of a lookup, but which of the held rows of this
   * table they are.
   */
  readonly numbersIn?: Tensor | undefined;
  /** As the model has it; the element count is the tensor's. */
  readonly shape: Shape;
  readonly dtype: DType;
}

export interface LoweredModel {
  readonly model: OnnxModel;
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
}

const EXTERNAL_SOURCES = new Set<string>([
  'input',
  'parameter',
  'state',
  'dropout_mask',
] satisfies SourceName[]);

export function lower(request: LowerRequest): LoweredModel {
  const { batch, portable = false } = request;
  const given = new Set(request.given ?? []);
  const nameOf = request.nameOf ?? ((_tensor, role, index) => `${role === 'input' ? 'in' : 'out'}${index}`);
  const targets = request.outputs.map((tensor) => (portable ? tensor : behindReshape(tensor, given)));
  const { nodes, used } = needed(targets, given);
  const emitter = new Emitter({ batch, portable, isUsed: (tensor) => used.has(tensor) });

  const inputs: Port[] = [];
  const heldRows = (tensor: Tensor | undefined) =>
    tensor && isNode(tensor.node, 'parameter') ? request.heldRows?.(tensor) : undefined;
  const addPort = (tensor: Tensor, shape: Shape, numbersIn?: Tensor): string => {
    const name = nameOf(tensor, 'input', inputs.length);
    inputs.push({ name, tensor, numbersIn, shape, dtype: tensor.dtype });
    return name;
  };
  const addInput = (tensor: Tensor) => {
    const rows = heldRows(tensor);
    const shape = rows === undefined ? tensor.shape : [rows, ...tensor.shape.slice(1)];
    emitter.bind(tensor, addPort(tensor, shape));
  };
  for (const tensor of given) if (used.has(tensor)) addInput(tensor);
  for (const node of nodes) {
    const [table, indices] = node.inputs;
    if (isNode(node, 'embedding') && heldRows(table) !== undefined) {
      const numbers = addPort(indices!, indices!.shape, table);
      lowerNode(emitter, node, [emitter.nameOf(table!), numbers]);
    } else if (node.inputs.length > 0) lowerNode(emitter, node);
    else if (EXTERNAL_SOURCES.has(node.op)) addInput(node.outputs[0]!);
    else lowerConstant(emitter, node);
  }

  // Every output is made by a node of its own: an input, a constant or a value that is an output already is copied.
  const renamed = new Map<string, string>();
  const produced = new Set(emitter.nodes.flatMap((node) => node.outputs));
  const outputs = targets.map((tensor, index): Port => {
    const name = nameOf(request.outputs[index]!, 'output', index);
    const value = emitter.nameOf(tensor);
    const earlier = renamed.get(value);
    if (earlier !== undefined || !produced.has(value)) emitter.node('Identity', [earlier ?? value], [name]);
    else renamed.set(value, name);
    return { name, tensor: request.outputs[index]!, shape: tensor.shape, dtype: tensor.dtype };
  });
  renameValues(emitter.nodes, renamed);

  const live = liveNodes(emitter.nodes, new Set(outputs.map((output) => output.name)));
  const read = new Set(live.flatMap((node) => node.inputs));
  const model: OnnxModel = {
    irVersion: 8,
    opsets: [{ domain: '', version: OPSET }, ...(portable ? [] : [{ domain: MICROSOFT, version: 1 }])],
    producer: 'tributary',
    graph: {
      name: 'tributary',
      nodes: live,
      inputs: inputs.filter((port) => read.has(port.name)).map((port) => value(port, batch)),
      outputs: outputs.map((port) => value(port, batch)),
      initializers: emitter.initializers.filter((tensor) => read.has(tensor.name)),
    },
  };
  return { model, inputs: inputs.filter((port) => read.has(port.name)), outputs };
}

function lowerNode(
  emitter: Emitter,
  node: Node,
  inputs = node.inputs.map((input) => emitter.nameOf(input)),
): void {
  const rule = (loweringTable as unknown as Record<string, LoweringRule<ComputedName>>)[node.op]!;
  const names = rule(emitter, inputs, node as Node<ComputedName>);
  node.outputs.forEach((output, index) => emitter.bind(output, names[index] ?? ''));
}

function lowerConstant(emitter: Emitter, node: Node): void {
  const output = node.outputs[0]!;
  if (isNode(node, 'batch_scalar')) {
    const { coefficient, power } = node.attributes;
    if (emitter.options.batch === undefined) {
      const size = emitter.op('Cast', [emitter.op('Reshape', [emitter.batchSize(), emitter.ints([])])], {
        to: 1,
      });
      const scaled = emitter.op('Pow', [size, emitter.scalar(power)]);
      emitter.bind(output, emitter.op('Mul', [scaled, emitter.scalar(coefficient)]));
      return;
    }
    const [batch] = emitter.known([{ multiple: 1 }]);
    emitter.bind(output, emitter.scalar(coefficient * batch! ** power));
  } else if (isNode(node, 'constant')) {
    const { data } = node.attributes;
    const shape = emitter.known(output.shape);
    if (data instanceof Float32Array) {
      emitter.bind(output, shape.length === 0 ? emitter.scalar(data[0]!) : emitter.floats(data, shape));
    } else if (data instanceof Int32Array) emitter.bind(output, emitter.int32(data, shape));
    else emitter.bind(output, emitter.bools(data, shape));
  } else {
    throw new InternalError('BROKEN_INVARIANT', `${node.op} is no constant.`);
  }
}

/** The value below trailing reshapes: same bytes, other shape. */
function behindReshape(tensor: Tensor, given: ReadonlySet<Tensor>): Tensor {
  let value = tensor;
  while (isNode(value.node, 'reshape') && !given.has(value) && value.node.inputs[0]!.node.inputs.length > 0) {
    value = value.node.inputs[0]!;
  }
  return value;
}

/** The nodes that the targets need, in order, and every tensor that something reads. */
function needed(
  targets: readonly Tensor[],
  given: ReadonlySet<Tensor>,
): { nodes: Node[]; used: Set<Tensor> } {
  const used = new Set<Tensor>();
  const nodes = new Set<Node>();
  const stack = [...targets];
  while (stack.length > 0) {
    const tensor = stack.pop()!;
    if (used.has(tensor)) continue;
    used.add(tensor);
    if (given.has(tensor)) continue;
    if (!nodes.has(tensor.node)) {
      nodes.add(tensor.node);
      stack.push(...tensor.node.inputs);
    }
  }
  return { nodes: [...nodes].sort((a, b) => a.id - b.id), used };
}

function renameValues(nodes: readonly OnnxNode[], names: ReadonlyMap<string, string>): void {
  for (const node of nodes) {
    node.inputs = node.inputs.map((name) => names.get(name) ?? name);
    node.outputs = node.outputs.map((name) => names.get(name) ?? name);
  }
}

/** Drops what no output needs: a rule may emit more than this request asks for. */
function liveNodes(nodes: readonly OnnxNode[], outputs: ReadonlySet<string>): OnnxNode[] {
  const wanted = new Set(outputs);
  const live: OnnxNode[] = [];
  for (const node of [...nodes].reverse()) {
    if (!node.outputs.some((name) => wanted.has(name))) continue;
    live.push(node);
    for (const name of node.inputs) wanted.add(name);
  }
  return live.reverse();
}

function value(port: Port, batch: number | undefined): OnnxValue {
  const shape =
    batch !== undefined
      ? resolveShape(port.shape, batch)
      : port.shape.map((dim) => (isBatch(dim) ? (dim.multiple === 1 ? 'N' : `${dim.multiple}N`) : dim));
  return { name: port.name, dtype: port.dtype, shape };
}
