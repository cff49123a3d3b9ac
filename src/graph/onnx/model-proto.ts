/**
 * The wire form of an ONNX file: a minimal protobuf descriptor (names and field numbers of onnx.proto3) and the
 * types of its messages. It knows nothing of what the fields mean; `proto.ts` does.
 * Invariant: no message type contains itself. Fields that would recurse (subgraphs, sequence and map types) or that
 * are refused anyway are declared as bytes, so that hostile nesting is seen but never followed.
 */
import protobuf from 'protobufjs/light.js';

/** A 64-bit integer as the decoder gives it. */
export interface WireLong {
  readonly low: number;
  readonly high: number;
}
/** Read as WireLong, written as number. */
export type WireInt64 = WireLong | number;

export interface WireEntry {
  key?: string;
  value?: string;
}
export interface WireOpset {
  domain?: string;
  version?: WireInt64;
}
export interface WireTensor {
  dims?: WireInt64[];
  dataType?: number;
  segment?: Uint8Array;
  floatData?: number[];
  int32Data?: number[];
  int64Data?: WireInt64[];
  name?: string;
  rawData?: Uint8Array;
  doubleData?: number[];
  externalData?: Uint8Array[];
  dataLocation?: number;
}
export interface WireAttribute {
  name?: string;
  refAttrName?: string;
  type?: number;
  f?: number;
  i?: WireInt64;
  s?: Uint8Array;
  t?: WireTensor;
  g?: Uint8Array;
  floats?: number[];
  ints?: WireInt64[];
  strings?: Uint8Array[];
  tensors?: Uint8Array[];
  graphs?: Uint8Array[];
  tp?: Uint8Array;
  typeProtos?: Uint8Array[];
  sparseTensor?: Uint8Array;
  sparseTensors?: Uint8Array[];
}
export interface WireNode {
  input?: string[];
  output?: string[];
  name?: string;
  opType?: string;
  domain?: string;
  attribute?: WireAttribute[];
}
export interface WireDimension {
  dimValue?: WireInt64;
  dimParam?: string;
}
export interface WireType {
  tensorType?: { elemType?: number; shape?: { dim?: WireDimension[] } };
  sequenceType?: Uint8Array;
  mapType?: Uint8Array;
  opaqueType?: Uint8Array;
  sparseTensorType?: Uint8Array;
  optionalType?: Uint8Array;
}
export interface WireValue {
  name?: string;
  type?: WireType;
}
export interface WireGraph {
  node?: WireNode[];
  name?: string;
  initializer?: WireTensor[];
  input?: WireValue[];
  output?: WireValue[];
  sparseInitializer?: Uint8Array[];
}
export interface WireModel {
  irVersion?: WireInt64;
  producerName?: string;
  graph?: WireGraph;
  opsetImport?: WireOpset[];
  metadataProps?: WireEntry[];
  functions?: Uint8Array[];
}

type FieldSpec = { id: number; type: string; rule?: 'repeated' };
const one = (id: number, type: string): FieldSpec => ({ id, type });
const many = (id: number, type: string): FieldSpec => ({ id, type, rule: 'repeated' });

const messages: Record<string, Record<string, FieldSpec>> = {
  StringStringEntryProto: { key: one(1, 'string'), value: one(2, 'string') },
  OperatorSetIdProto: { domain: one(1, 'string'), version: one(2, 'int64') },
  TensorProto: {
    dims: many(1, 'int64'),
    dataType: one(2, 'int32'),
    segment: one(3, 'bytes'),
    floatData: many(4, 'float'),
    int32Data: many(5, 'int32'),
    int64Data: many(7, 'int64'),
    name: one(8, 'string'),
    rawData: one(9, 'bytes'),
    doubleData: many(10, 'double'),
    externalData: many(13, 'bytes'),
    dataLocation: one(14, 'int32'),
  },
  AttributeProto: {
    name: one(1, 'string'),
    f: one(2, 'float'),
    i: one(3, 'int64'),
    s: one(4, 'bytes'),
    t: one(5, 'TensorProto'),
    g: one(6, 'bytes'),
    floats: many(7, 'float'),
    ints: many(8, 'int64'),
    strings: many(9, 'bytes'),
    tensors: many(10, 'bytes'),
    graphs: many(11, 'bytes'),
    tp: one(14, 'bytes'),
    typeProtos: many(15, 'bytes'),
    type: one(20, 'int32'),
    refAttrName: one(21, 'string'),
    sparseTensor: one(22, 'bytes'),
    sparseTensors: many(23, 'bytes'),
  },
  NodeProto: {
    input: many(1, 'string'),
    output: many(2, 'string'),
    name: one(3, 'string'),
    opType: one(4, 'string'),
    attribute: many(5, 'AttributeProto'),
    domain: one(7, 'string'),
  },
  DimensionProto: { dimValue: one(1, 'int64'), dimParam: one(2, 'string') },
  TensorShapeProto: { dim: many(1, 'DimensionProto') },
  TensorTypeProto: { elemType: one(1, 'int32'), shape: one(2, 'TensorShapeProto') },
  TypeProto: {
    tensorType: one(1, 'TensorTypeProto'),
    sequenceType: one(4, 'bytes'),
    mapType: one(5, 'bytes'),
    opaqueType: one(7, 'bytes'),
    sparseTensorType: one(8, 'bytes'),
    optionalType: one(9, 'bytes'),
  },
  ValueInfoProto: { name: one(1, 'string'), type: one(2, 'TypeProto') },
  GraphProto: {
    node: many(1, 'NodeProto'),
    name: one(2, 'string'),
    initializer: many(5, 'TensorProto'),
    input: many(11, 'ValueInfoProto'),
    output: many(12, 'ValueInfoProto'),
    sparseInitializer: many(15, 'bytes'),
  },
  ModelProto: {
    irVersion: one(1, 'int64'),
    producerName: one(2, 'string'),
    graph: one(7, 'GraphProto'),
    opsetImport: many(8, 'OperatorSetIdProto'),
    metadataProps: many(14, 'StringStringEntryProto'),
    functions: many(25, 'bytes'),
  },
};

// Edition 2023 because a zero must be written and seen as given (a dimension of size 0, an attribute 0), strings must
// be UTF-8, and lists of numbers are packed; the reader takes unpacked ones too.
const root = protobuf.Root.fromJSON({
  nested: Object.fromEntries(
    Object.entries(messages).map(([name, fields]) => [name, { edition: '2023', fields }]),
  ),
});
const modelType = root.lookupType('ModelProto');

/** Serialises a message; fields that are undefined are left out. */
export function writeModel(model: WireModel): Uint8Array {
  return modelType.encode(model).finish();
}

/**
 * Parses a message; throws whatever the protobuf library throws on broken bytes. Absent fields are `undefined`,
 * absent lists are empty or `undefined`; byte fields are views into `bytes`.
 */
export function readModel(bytes: Uint8Array): WireModel {
  return modelType.toObject(modelType.decode(bytes), { defaults: false });
}
