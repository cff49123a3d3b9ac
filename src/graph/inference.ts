/**
 * The inference form of a graph: a copy in which dropout is gone and batch normalisation uses its running
 * statistics. Pure: the given graph is untouched. Sources keep their names, so that a value is found by name in
 * both graphs.
 */
import { InternalError, UsageError } from '../base/index.ts';
import { Graph, isNode, type Node, type Tensor } from './graph.ts';

/** The same outputs in a new graph, in inference form; it holds only what they need. */
export function forInference(outputs: readonly Tensor[]): Tensor[] {
  const [first] = outputs;
  if (!first) return [];
  const stray = outputs.find((output) => output.graph !== first.graph);
  if (stray)
    throw new UsageError(
      'INVALID_GRAPH',
      `forInference: ${stray.label} is of another graph than ${first.label}.`,
    );
  const copies = new Map<Tensor, Tensor>();
  const copyOf = (tensor: Tensor): Tensor => {
    const copy = copies.get(tensor);
    if (copy) return copy;
    // Only batch_norm leaves outputs out: its statistics of the batch.
    throw new UsageError(
      'INVALID_GRAPH',
      `forInference: ${tensor.label} is a statistic of the batch, which inference does not compute. Ask for other outputs.`,
    );
  };
  const graph = new Graph();
  // Sources first: running statistics may have been created after the node that they belong to.
  const nodes = neededNodes(outputs).sort(
    (a, b) => Number(a.inputs.length > 0) - Number(b.inputs.length > 0) || a.id - b.id,
  );
  for (const node of nodes) {
    const made = copyNode(graph, node, copyOf);
    made.forEach((copy, i) => copies.set(node.outputs[i]!, copy));
  }
  return outputs.map(copyOf);
}

/** What the inference form of a node reads. */
function dependencies(node: Node): readonly Tensor[] {
  if (isNode(node, 'dropout')) return node.inputs.slice(0, 1);
  if (!isNode(node, 'batch_norm')) return node.inputs;
  const statistics = node.outputs[0]!.graph.statistics.get(node);
  if (!statistics) {
    throw new UsageError(
      'INVALID_GRAPH',
      `forInference: ${node.outputs[0]!.label} has no running statistics. Use the layer batchNorm, or call graph.linkStatistics.`,
    );
  }
  return [...node.inputs, statistics.mean, statistics.variance];
}

function neededNodes(outputs: readonly Tensor[]): Node[] {
  const nodes = new Set<Node>();
  const stack = outputs.map((output) => output.node);
  while (stack.length > 0) {
    const node = stack.pop()!;
    if (nodes.has(node)) continue;
    nodes.add(node);
    for (const tensor of dependencies(node)) stack.push(tensor.node);
  }
  return [...nodes];
}

function copyNode(graph: Graph, node: Node, copyOf: (tensor: Tensor) => Tensor): readonly Tensor[] {
  if (node.inputs.length === 0) return [copySource(graph, node)];
  const inputs = dependencies(node).map(copyOf);
  if (isNode(node, 'dropout')) return inputs;
  if (isNode(node, 'batch_norm')) return graph.apply('batch_norm_inference', inputs, node.attributes);
  return graph.apply(node.op, inputs, node.attributes);
}

function copySource(graph: Graph, node: Node): Tensor {
  const source = node.outputs[0]!;
  const { shape, label } = source;
  if (isNode(node, 'input')) return graph.input(label, shape, source.dtype);
  if (isNode(node, 'parameter')) {
    const parameter = source.graph.parameters.get(label)!;
    return graph.parameter(label, parameter.shape, parameter.initialiser, { trainable: parameter.trainable });
  }
  if (isNode(node, 'state')) {
    const state = source.graph.states.get(label)!;
    return graph.state(label, state.shape, state.initialiser);
  }
  if (isNode(node, 'constant')) return graph.constant(node.attributes.data, shape as readonly number[]);
  if (isNode(node, 'batch_scalar'))
    return graph.batchScalar(node.attributes.coefficient, node.attributes.power);
  if (isNode(node, 'dropout_mask')) {
    throw new UsageError(
      'INVALID_GRAPH',
      `forInference: the mask ${label} is read by something other than dropout.`,
    );
  }
  throw new InternalError('BROKEN_INVARIANT', `${node.op} is no source.`);
}
