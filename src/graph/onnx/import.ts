/**
 * Reads an ONNX model into a graph that can be trained: float initializers become parameters, running statistics
 * state, and shape arithmetic is evaluated. The first symbolic axis of an input is the batch. Integers are int32.
 * Invariant: any bytes give a model or a UsageError that names the file and the place; nothing is ignored silently.
 */
import { TributaryError, UsageError } from '../../base/index.ts';
import { Tensor, type Graph } from '../graph.ts';
import { N, type Dim } from '../shape.ts';
import {
  ImportNode,
  importTable,
  ImportSession,
  knownFromTensor,
  placeOf,
  type ImportResult,
  type Value,
} from './importing/index.ts';
import {
  decodeModel,
  type OnnxGraph,
  type OnnxModel,
  type OnnxNode,
  type OnnxTensor,
  type OnnxValue,
} from './proto.ts';
import { broken, quoted, unsupported, type Place } from './tensor-proto.ts';

export interface ImportOptions {
  /** The name that errors give the file. Default 'the model'. */
  readonly source?: string;
  /** Which weights are trained, by the name of their initializer. Default all. */
  readonly trainable?: (name: string) => boolean;
  /** Whether axis 0 of the inputs is the batch where the file has only fixed sizes. Default true. */
  readonly batchAxis?: boolean;
  /** Whether Dropout nodes drop while training. Default false: they are left out. */
  readonly dropout?: boolean;
  /** Sizes for symbolic dimensions other than the batch, by their names in the file. Default none. */
  readonly dimensions?: Readonly<Record<string, number>>;
}

export interface ImportedModel {
  readonly graph: Graph;
  readonly inputs: Readonly<Record<string, Tensor>>;
  /** In training form; `forInference` gives what the file computes. */
  readonly outputs: Readonly<Record<string, Tensor>>;
  /** What differs from the file in a way its users see. */
  readonly notes: readonly string[];
}

const OLDEST_OPSET = 13;

export function importOnnx(bytes: Uint8Array, options: ImportOptions = {}): ImportedModel {
  const { source = 'the model', trainable = () => true, batchAxis = true, dropout = false } = options;
  const model = decodeModel(bytes, source);
  const session = new ImportSession({ source, version: standardVersion(model, source), trainable, dropout });
  const notes: string[] = [];
  const values = new Map<string, Value>();
  readInitializers(model.graph, values, source);
  const fixedBatch = readInputs(
    model.graph,
    values,
    session,
    { batchAxis, dimensions: options.dimensions ?? {} },
    notes,
  );

  const nodes = neededNodes(model.graph, values, source);
  for (const { node, index } of nodes) {
    try {
      importNode(session, node, index, values);
    } catch (error) {
      throw located(error, session, node, index, fixedBatch);
    }
  }
  const outputs = model.graph.outputs.map(({ name }): [string, Tensor] => {
    const place: Place = { source, what: `output ${quoted(name)}` };
    return [name, session.tensorOf(valueOf(name, values, place), place)];
  });
  return { graph: session.graph, inputs: record([...session.graph.inputs]), outputs: record(outputs), notes };
}

function standardVersion({ opsets }: OnnxModel, source: string): number {
  const version = opsets.find(({ domain }) => isStandard(domain))?.version;
  if (version === undefined)
    throw unsupported({ source, what: 'the file' }, 'does not use the standard operator set');
  if (version < OLDEST_OPSET) {
    throw new UsageError(
      'UNSUPPORTED_OPERATOR',
      `${source} uses operator set ${version}; supported are ${OLDEST_OPSET} and newer. ` +
        `Export it with opset_version=17, or convert it with onnx.version_converter.convert_version(model, 17).`,
      { source, version },
    );
  }
  return version;
}

const isStandard = (domain: string | undefined) =>
  domain === undefined || domain === '' || domain === 'ai.onnx';

/** Names come from the file, so the object has no prototype to collide with. */
function record<T>(entries: readonly (readonly [string, T])[]): Record<string, T> {
  const result = Object.create(null) as Record<string, T>;
  for (const [key, value] of entries) result[key] = value;
  return result;
}

function readInitializers({ initializers }: OnnxGraph, values: Map<string, Value>, source: string): void {
  for (const tensor of initializers) {
    const place: Place = { source, what: `initializer ${quoted(tensor.name)}` };
    if (tensor.name === '' || values.has(tensor.name))
      throw broken(place, 'has no name or one that is taken');
    values.set(tensor.name, initialValue(tensor, place));
  }
}

function initialValue(tensor: OnnxTensor, place: Place): Value {
  const { name, dtype, shape, data } = tensor;
  if (dtype === 'float32' && shape.length > 0)
    return { kind: 'weight', name, shape, data: data as Float32Array };
  const known = dtype === 'float64' && shape.length > 0 ? undefined : knownFromTensor(tensor);
  if (!known) throw unsupported(place, `has the element type ${dtype}; convert weights to float32`);
  return known;
}

interface InputOptions {
  readonly batchAxis: boolean;
  readonly dimensions: Readonly<Record<string, number>>;
}

/** Creates the inputs; true if a fixed size was taken for the batch. */
function readInputs(
  graph: OnnxGraph,
  values: Map<string, Value>,
  session: ImportSession,
  options: InputOptions,
  notes: string[],
): boolean {
  const inputs = graph.inputs.filter(({ name }) => !values.has(name));
  const isSymbolic = (dim: number | string) =>
    typeof dim === 'string' && !Object.hasOwn(options.dimensions, dim);
  const fixedBatch = options.batchAxis && !inputs.some(({ shape }) => shape?.some(isSymbolic));
  for (const input of inputs) {
    const place: Place = { source: session.source, what: `input ${quoted(input.name)}` };
    if (input.name === '' || values.has(input.name)) throw broken(place, 'has no name or one that is taken');
    const dtype = input.dtype === 'int64' ? 'int32' : input.dtype;
    if (dtype !== 'float32' && dtype !== 'int32' && dtype !== 'bool') {
      throw unsupported(place, `has the element type ${dtype}; supported are float32, int32, int64 and bool`);
    }
    if (input.dtype === 'int64')
      notes.push(`Input ${input.name} is int64 in the file and int32 in the graph.`);
    const tensor = session.graph.input(input.name, inputShape(input, place, options, fixedBatch), dtype);
    values.set(input.name, { kind: 'tensor', tensor });
  }
  return fixedBatch;
}

function inputShape(
  { shape }: OnnxValue,
  place: Place,
  { dimensions }: InputOptions,
  fixedBatch: boolean,
): Dim[] {
  if (!shape) throw unsupported(place, 'has no shape');
  let seen: string | undefined;
  return shape.map((given, axis): Dim => {
    const dim = typeof given === 'string' && Object.hasOwn(dimensions, given) ? dimensions[given]! : given;
    if (typeof dim === 'number') {
      if (!Number.isSafeInteger(dim) || dim < 1) throw broken(place, `has size ${dim} on axis ${axis}`);
      return fixedBatch && axis === 0 ? N : dim;
    }
    if (seen !== undefined) {
      throw unsupported(
        place,
        `leaves axis ${axis} (${quoted(dim)}) open besides the batch (${quoted(seen)}); ` +
          'give its size by the option dimensions',
      );
    }
    seen = dim;
    const multiple = Number(/^(\d{1,9})N$/.exec(dim)?.[1] ?? 1);
    return multiple > 1 ? { multiple } : N;
  });
}

/** The nodes that the outputs need, in the order of the file, which must be a topological one. */
function neededNodes(
  graph: OnnxGraph,
  values: ReadonlyMap<string, Value>,
  source: string,
): { node: OnnxNode; index: number }[] {
  const makers = new Map<string, number>();
  graph.nodes.forEach((node, index) => {
    for (const name of node.outputs) {
      if (name === '') continue;
      if (values.has(name) || makers.has(name))
        throw broken({ source, what: `value ${quoted(name)}` }, 'is defined twice');
      makers.set(name, index);
    }
  });
  if (graph.outputs.length === 0) throw broken({ source, what: 'the graph' }, 'has no outputs');
  const needed = new Set<number>();
  const stack = graph.outputs.map(({ name }) => ({
    name,
    reader: graph.nodes.length,
    what: `output ${quoted(name)}`,
  }));
  while (stack.length > 0) {
    const { name, reader, what } = stack.pop()!;
    if (values.has(name)) continue;
    const maker = makers.get(name);
    if (maker === undefined) throw broken({ source, what }, `reads ${quoted(name)}, which nothing defines`);
    if (maker >= reader)
      throw broken(
        { source, what },
        `reads ${quoted(name)}, which is made later: the nodes are out of order or in a cycle`,
      );
    if (needed.has(maker)) continue;
    needed.add(maker);
    const node = graph.nodes[maker]!;
    const { what: place } = placeOf(source, node, maker);
    for (const input of node.inputs)
      if (input !== '') stack.push({ name: input, reader: maker, what: place });
  }
  return [...needed].sort((a, b) => a - b).map((index) => ({ node: graph.nodes[index]!, index }));
}

function importNode(session: ImportSession, node: OnnxNode, index: number, values: Map<string, Value>): void {
  const place = placeOf(session.source, node, index);
  const inputs = node.inputs.map((name) => (name === '' ? undefined : valueOf(name, values, place)));
  const reader = new ImportNode(session, node, index, inputs);
  const rule = isStandard(node.domain) ? importTable.get(node.opType) : undefined;
  if (!rule) {
    const known = [...importTable.keys()];
    throw reader.unsupported(
      `is not among the ${known.length} supported operators (${known.slice(0, 8).join(', ')}, ...)`,
    );
  }
  const result = rule(reader);
  const results: readonly ImportResult[] = Array.isArray(result)
    ? (result as ImportResult[])
    : [result as ImportResult];
  const unread = reader.unreadAttribute();
  if (unread !== undefined)
    throw reader.unsupported(`has the attribute ${quoted(unread)}, which is not supported`);
  node.outputs.forEach((name, i) => {
    if (name === '') return;
    const value = results[i];
    if (value) values.set(name, value instanceof Tensor ? { kind: 'tensor', tensor: value } : value);
  });
}

/** A node may have outputs that its rule does not make: the mask of Dropout, the indices of MaxPool. */
function valueOf(name: string, values: ReadonlyMap<string, Value>, place: Place): Value {
  const value = values.get(name);
  if (!value)
    throw unsupported(place, `reads ${quoted(name)}, a further output of its node that is not supported`);
  return value;
}

/** The error with the node's place in front; whatever a hostile file provokes leaves as a UsageError. */
function located(
  error: unknown,
  session: ImportSession,
  node: OnnxNode,
  index: number,
  fixedBatch: boolean,
): unknown {
  const { what } = placeOf(session.source, node, index);
  const hint = fixedBatch
    ? ' The batch of the inputs was made variable; set batchAxis to false to keep it fixed.'
    : '';
  if (error instanceof UsageError) {
    if (error.message.startsWith(session.source)) return error;
    const message = `${session.source}: ${what}: ${error.message}${hint}`;
    return new UsageError(
      error.code,
      message,
      { ...error.facts, source: session.source, node: index },
      error,
    );
  }
  if (error instanceof TributaryError) return error;
  const problem = error instanceof Error ? error.message : String(error);
  return broken({ source: session.source, what }, `cannot be read (${problem})`);
}
