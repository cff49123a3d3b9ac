/**
 * Writes the inference form of a graph as an ONNX file for others: standard operators only, the batch size open,
 * parameters and state as initializers under their own names. Constants of the model are Constant nodes, so that a
 * reader can tell them from what was trained.
 */
import { UsageError } from '../../base/index.ts';
import type { Tensor } from '../graph.ts';
import { forInference } from '../inference.ts';
import { elementCount } from '../shape.ts';
import { lower } from './lower.ts';
import { attribute, encodeModel, type OnnxNode, type OnnxTensor, type OnnxValue } from './proto.ts';

export interface ExportOptions {
  /** Names of inputs in the file, by their names in the graph. Default: the same. */
  readonly inputNames?: Readonly<Record<string, string>>;
  /** Free text that goes with the model, for example its labels. Default none. */
  readonly metadata?: Readonly<Record<string, string>>;
}

/** Operations that need the batch size when they are lowered: losses and what only a backward pass holds. */
const TRAINING_ONLY = new Set<string>(['cross_entropy', 'scatter_add']);

/**
 * `outputs` names the tensors of the file; `valueOf` gives the current value of a parameter or state of their graph.
 */
export function exportOnnx(
  outputs: Readonly<Record<string, Tensor>>,
  valueOf: (source: Tensor) => Float32Array,
  options: ExportOptions = {},
): Uint8Array {
  const entries = Object.entries(outputs);
  const origin = entries[0]?.[1].graph;
  if (!origin) throw new UsageError('INVALID_ARGUMENT', 'exportOnnx: name at least one output.');
  const targets = forInference(entries.map(([, tensor]) => tensor));
  refuseTrainingOnly(targets);
  const lowered = lower({ outputs: targets, batch: undefined, portable: true });

  const names = new Map<string, string>();
  const taken = new Set<string>();
  const name = (inModel: string, wanted: string) => {
    if (wanted === '' || taken.has(wanted)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `exportOnnx: the name ${JSON.stringify(wanted)} is empty or used twice; rename one.`,
      );
    }
    taken.add(wanted);
    names.set(inModel, wanted);
  };
  const { inputNames = {} } = options;
  for (const port of lowered.inputs) {
    const { label, node } = port.tensor;
    name(port.name, node.op === 'input' && Object.hasOwn(inputNames, label) ? inputNames[label]! : label);
  }
  entries.forEach(([wanted], i) => name(lowered.outputs[i]!.name, wanted));

  const rename = (inModel: string): string => {
    const known = names.get(inModel);
    if (known !== undefined || inModel === '') return known ?? '';
    let free = inModel;
    while (taken.has(free)) free = `${free}_`;
    taken.add(free);
    names.set(inModel, free);
    return free;
  };
  const { graph } = lowered.model;
  const renameValue = (value: OnnxValue): OnnxValue => ({ ...value, name: rename(value.name) });
  const weights = lowered.inputs.filter((port) => port.tensor.node.op !== 'input');
  const weightNames = new Set(weights.map((port) => port.name));
  const model = {
    ...lowered.model,
    ...(options.metadata ? { metadata: { ...options.metadata } } : {}),
    graph: {
      name: graph.name,
      inputs: graph.inputs.filter((value) => !weightNames.has(value.name)).map(renameValue),
      outputs: graph.outputs.map(renameValue),
      initializers: [
        ...weights.map((port) => weightTensor(rename(port.name), originOf(port.tensor, origin), valueOf)),
        ...graph.initializers
          .filter((tensor) => tensor.dtype !== 'float32')
          .map((t) => ({ ...t, name: rename(t.name) })),
      ],
      nodes: [
        ...graph.initializers
          .filter((tensor) => tensor.dtype === 'float32')
          .map((t) => constantNode(t, rename(t.name))),
        ...graph.nodes.map((node) => ({
          ...node,
          inputs: node.inputs.map(rename),
          outputs: node.outputs.map(rename),
        })),
      ],
    },
  };
  return encodeModel(model);
}

function refuseTrainingOnly(outputs: readonly Tensor[]): void {
  const found = outputs[0]?.graph.nodes.find((node) => TRAINING_ONLY.has(node.op));
  if (!found) return;
  throw new UsageError(
    'UNSUPPORTED_OPERATOR',
    `exportOnnx: an output needs ${found.outputs[0]!.label}, which has no form for an open batch size. Export the values before the loss.`,
    { op: found.op },
  );
}

/** The source of the caller's graph that a source of the inference form was copied from. */
function originOf(copy: Tensor, origin: Tensor['graph']): Tensor {
  const { label } = copy;
  return (origin.parameters.get(label) ?? origin.states.get(label))!.tensor;
}

function weightTensor(name: string, source: Tensor, valueOf: (source: Tensor) => Float32Array): OnnxTensor {
  const shape = [...(source.shape as readonly number[])];
  const given = valueOf(source);
  if (given.length !== elementCount(shape)) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `exportOnnx: ${source.label} of shape [${shape.join(', ')}] was given ${given.length} values. Pass its whole value.`,
    );
  }
  // A copy: the value may lie in memory that training writes to, or that encoders refuse.
  return { name, dtype: 'float32', shape, data: Float32Array.from(given) };
}

function constantNode(tensor: OnnxTensor, output: string): OnnxNode {
  return {
    name: `Constant_${output}`,
    opType: 'Constant',
    inputs: [],
    outputs: [output],
    attributes: { value: attribute.tensor({ ...tensor, name: output }) },
  };
}
