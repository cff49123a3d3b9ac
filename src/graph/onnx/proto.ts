/**
 * ONNX models as plain typed data, to and from the bytes of an ONNX file. Not the meaning of operators: shapes,
 * catalogue and opset rules live elsewhere. Left out on reading: doc strings, value_info, training_info.
 * Invariant: `decodeModel(encodeModel(m))` equals `m` (float attributes in float32), and `decodeModel` on any bytes
 * gives a model or a `UsageError` that names the source and the place.
 */
import { TributaryError, UsageError } from '../../base/index.ts';
import { readModel, writeModel } from './model-proto.ts';
import type {
  WireAttribute,
  WireDimension,
  WireGraph,
  WireNode,
  WireType,
  WireValue,
} from './model-proto.ts';
import {
  broken,
  decodeTensor,
  dtypeOf,
  encodeTensor,
  onnxDTypes,
  quoted,
  toSafeInteger,
  unsupported,
} from './tensor-proto.ts';
import type { OnnxDType, OnnxTensor, Place } from './tensor-proto.ts';

export { onnxDTypes } from './tensor-proto.ts';
export type { OnnxDType, OnnxTensor, OnnxTensorData } from './tensor-proto.ts';

export interface OnnxModel {
  irVersion: number;
  /** Operator sets; the standard one has the domain ''. */
  opsets: { domain: string; version: number }[];
  producer?: string;
  graph: OnnxGraph;
  metadata?: Record<string, string>;
}
export interface OnnxGraph {
  name: string;
  nodes: OnnxNode[];
  inputs: OnnxValue[];
  outputs: OnnxValue[];
  initializers: OnnxTensor[];
}
export interface OnnxNode {
  name: string;
  opType: string;
  /** Absent: the standard domain. */
  domain?: string;
  /** An empty name is an optional input that is left out. */
  inputs: string[];
  outputs: string[];
  attributes: Record<string, OnnxAttribute>;
}
export interface OnnxValue {
  name: string;
  dtype: OnnxDType;
  /** A string is a symbolic dimension, '' an unknown one; undefined: the rank is unknown. */
  shape: (number | string)[] | undefined;
}

export type OnnxAttribute =
  | { readonly type: 'int'; readonly value: number }
  | { readonly type: 'ints'; readonly value: readonly number[] }
  | { readonly type: 'float'; readonly value: number }
  | { readonly type: 'floats'; readonly value: readonly number[] }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'strings'; readonly value: readonly string[] }
  | { readonly type: 'tensor'; readonly value: OnnxTensor };

/** Constructors, so that a node reads `{ axis: attribute.int(1) }`. */
export const attribute = {
  int: (value: number): OnnxAttribute => ({ type: 'int', value }),
  ints: (value: readonly number[]): OnnxAttribute => ({ type: 'ints', value }),
  float: (value: number): OnnxAttribute => ({ type: 'float', value }),
  floats: (value: readonly number[]): OnnxAttribute => ({ type: 'floats', value }),
  string: (value: string): OnnxAttribute => ({ type: 'string', value }),
  strings: (value: readonly string[]): OnnxAttribute => ({ type: 'strings', value }),
  tensor: (value: OnnxTensor): OnnxAttribute => ({ type: 'tensor', value }),
} as const;

// AttributeProto.AttributeType.
const attributeTypes = { float: 1, int: 2, string: 3, tensor: 4, floats: 6, ints: 7, strings: 8 } as const;
const foreignAttributes = {
  g: 'a subgraph',
  graphs: 'subgraphs',
  tensors: 'a list of tensors',
  sparseTensor: 'a sparse tensor',
  sparseTensors: 'sparse tensors',
  tp: 'a type',
  typeProtos: 'types',
} as const;
const foreignValueTypes = {
  sequenceType: 'a sequence',
  mapType: 'a map',
  opaqueType: 'an opaque type',
  sparseTensorType: 'a sparse tensor',
  optionalType: 'an optional type',
} as const;

/** The bytes of an ONNX file. */
export function encodeModel(model: OnnxModel): Uint8Array {
  const { graph } = model;
  return writeModel({
    irVersion: model.irVersion,
    producerName: model.producer,
    opsetImport: model.opsets.map(({ domain, version }) => ({ domain, version })),
    metadataProps: Object.entries(model.metadata ?? {}).map(([key, value]) => ({ key, value })),
    graph: {
      name: graph.name,
      node: graph.nodes.map(encodeNode),
      input: graph.inputs.map(encodeValue),
      output: graph.outputs.map(encodeValue),
      initializer: graph.initializers.map(encodeTensor),
    },
  });
}

/** Reads an ONNX file. `source` is the name that errors give it. */
export function decodeModel(bytes: Uint8Array, source = 'the model'): OnnxModel {
  const place: Place = { source, what: 'the file' };
  try {
    const wire = readModel(bytes);
    if (wire.graph === undefined) throw broken(place, `(${bytes.length} bytes) has no graph`);
    const irVersion = toSafeInteger(wire.irVersion ?? 0, place);
    if (irVersion < 1) throw broken(place, `has the IR version ${irVersion}`);
    if ((wire.functions?.length ?? 0) > 0) throw unsupported(place, 'defines functions of its own');
    const opsets = (wire.opsetImport ?? []).map(({ domain, version }) => ({
      domain: domain ?? '',
      version: toSafeInteger(version ?? 0, place),
    }));
    if (opsets.length === 0) throw broken(place, 'imports no operator set');
    const model: OnnxModel = { irVersion, opsets, graph: decodeGraph(wire.graph, source) };
    if (wire.producerName !== undefined) model.producer = wire.producerName;
    if ((wire.metadataProps?.length ?? 0) > 0) {
      model.metadata = record(wire.metadataProps!.map(({ key, value }) => [key ?? '', value ?? '']));
    }
    return model;
  } catch (error) {
    if (error instanceof TributaryError) throw error;
    throw new UsageError(
      'INVALID_MODEL_FILE',
      `${source} (${bytes.length} bytes) is not a readable ONNX model: ${error instanceof Error ? error.message : String(error)}. ` +
        'It may be truncated or of another format; export it again.',
      { source, bytes: bytes.length },
      error,
    );
  }
}

/** Keys come from the file, so the object has no prototype to collide with. */
function record<T>(entries: readonly (readonly [string, T])[]): Record<string, T> {
  const result = Object.create(null) as Record<string, T>;
  for (const [key, value] of entries) result[key] = value;
  return result;
}

function decodeGraph(wire: WireGraph, source: string): OnnxGraph {
  if ((wire.sparseInitializer?.length ?? 0) > 0) {
    throw unsupported({ source, what: `graph ${quoted(wire.name ?? '')}` }, 'has sparse initializers');
  }
  return {
    name: wire.name ?? '',
    nodes: (wire.node ?? []).map((node, index) => decodeNode(node, index, source)),
    inputs: (wire.input ?? []).map((value) => decodeValue(value, 'input', source)),
    outputs: (wire.output ?? []).map((value) => decodeValue(value, 'output', source)),
    initializers: (wire.initializer ?? []).map((t) => decodeTensor(t, { source, what: 'initializer' })),
  };
}

function encodeNode(node: OnnxNode): WireNode {
  return {
    input: node.inputs,
    output: node.outputs,
    name: node.name,
    opType: node.opType,
    domain: node.domain,
    attribute: Object.entries(node.attributes).map(([name, value]) => ({ name, ...encodeAttribute(value) })),
  };
}

function decodeNode(wire: WireNode, index: number, source: string): OnnxNode {
  const name = wire.name ?? '';
  const opType = wire.opType ?? '';
  const place: Place = { source, what: `node ${index} ${quoted(name)} (${quoted(opType)})` };
  if (opType === '') throw broken(place, 'has no operator type');
  const attributes = new Map<string, OnnxAttribute>();
  for (const wireAttribute of wire.attribute ?? []) {
    const key = wireAttribute.name ?? '';
    const at: Place = { source, what: `${place.what}, attribute ${quoted(key)}` };
    if (key === '' || attributes.has(key)) throw broken(at, key === '' ? 'has no name' : 'is given twice');
    attributes.set(key, decodeAttribute(wireAttribute, at));
  }
  const node: OnnxNode = {
    name,
    opType,
    inputs: wire.input ?? [],
    outputs: wire.output ?? [],
    attributes: record([...attributes]),
  };
  if (wire.domain !== undefined && wire.domain !== '') node.domain = wire.domain;
  return node;
}

function encodeAttribute(value: OnnxAttribute): WireAttribute {
  const type = attributeTypes[value.type];
  switch (value.type) {
    case 'int':
      return { type, i: value.value };
    case 'ints':
      return { type, ints: [...value.value] };
    case 'float':
      return { type, f: value.value };
    case 'floats':
      return { type, floats: [...value.value] };
    case 'string':
      return { type, s: new TextEncoder().encode(value.value) };
    case 'strings':
      return { type, strings: value.value.map((text) => new TextEncoder().encode(text)) };
    case 'tensor':
      return { type, t: encodeTensor(value.value) };
  }
}

function decodeAttribute(wire: WireAttribute, place: Place): OnnxAttribute {
  if (wire.refAttrName !== undefined && wire.refAttrName !== '') {
    throw unsupported(place, 'refers to an attribute of a function');
  }
  for (const [field, what] of Object.entries(foreignAttributes)) {
    const found = wire[field as keyof typeof foreignAttributes];
    if (found !== undefined && (!Array.isArray(found) || found.length > 0))
      throw unsupported(place, `is ${what}`);
  }
  switch (wire.type) {
    case attributeTypes.int:
      return attribute.int(toSafeInteger(wire.i ?? 0, place));
    case attributeTypes.ints:
      return attribute.ints((wire.ints ?? []).map((value) => toSafeInteger(value, place)));
    case attributeTypes.float:
      return attribute.float(wire.f ?? 0);
    case attributeTypes.floats:
      return attribute.floats(wire.floats ?? []);
    case attributeTypes.string:
      return attribute.string(utf8(wire.s ?? new Uint8Array(0), place));
    case attributeTypes.strings:
      return attribute.strings((wire.strings ?? []).map((value) => utf8(value, place)));
    case attributeTypes.tensor:
      if (wire.t === undefined) throw broken(place, 'is a tensor without a value');
      return attribute.tensor(decodeTensor(wire.t, { ...place, what: `${place.what}, tensor` }));
    default:
      throw unsupported(place, `has the attribute type number ${wire.type ?? 0}`);
  }
}

function utf8(bytes: Uint8Array, place: Place): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw broken(place, 'is a string that is not UTF-8');
  }
}

function encodeValue(value: OnnxValue): WireValue {
  const dim = value.shape?.map((dimension): WireDimension => {
    if (typeof dimension === 'number') return { dimValue: dimension };
    return dimension === '' ? {} : { dimParam: dimension };
  });
  const shape = dim === undefined ? undefined : { dim };
  return { name: value.name, type: { tensorType: { elemType: onnxDTypes[value.dtype].code, shape } } };
}

function decodeValue(wire: WireValue, kind: string, source: string): OnnxValue {
  const name = wire.name ?? '';
  const place: Place = { source, what: `${kind} ${quoted(name)}` };
  const type: WireType = wire.type ?? {};
  for (const [field, what] of Object.entries(foreignValueTypes)) {
    if (type[field as keyof typeof foreignValueTypes] !== undefined) throw unsupported(place, `is ${what}`);
  }
  if (type.tensorType === undefined) throw broken(place, 'has no type');
  const dtype = dtypeOf(type.tensorType.elemType, place);
  const wireShape = type.tensorType.shape;
  if (wireShape === undefined) return { name, dtype, shape: undefined };
  const shape = (wireShape.dim ?? []).map((dimension) => {
    if (dimension.dimValue === undefined) return dimension.dimParam ?? '';
    const size = toSafeInteger(dimension.dimValue, place);
    // Some exporters write -1 where they mean 'unknown'.
    return size < 0 ? '' : size;
  });
  return { name, dtype, shape };
}
