/**
 * ONNX tensors: element types, their typed arrays, and the two wire forms of their data (raw bytes and typed lists).
 * We always write raw bytes; we read both. Data is little-endian, as on every platform Node runs on here.
 * Invariant: a tensor that leaves this file has exactly as many elements as its shape says.
 */
import { UsageError } from '../../base/index.ts';
import type { WireInt64, WireTensor } from './model-proto.ts';

export type OnnxDType = 'float32' | 'float64' | 'int8' | 'uint8' | 'int32' | 'int64' | 'bool';

export type OnnxTensorData =
  Float32Array | Float64Array | Int8Array | Uint8Array /* uint8 and bool */ | Int32Array | BigInt64Array;

export interface OnnxTensor {
  name: string;
  dtype: OnnxDType;
  shape: number[];
  data: OnnxTensorData;
}

interface DTypeInfo {
  /** Value of TensorProto.DataType, the same in the C API of ONNX Runtime. */
  readonly code: number;
  readonly bytes: number;
  readonly list: 'floatData' | 'doubleData' | 'int32Data' | 'int64Data';
  readonly array: new (buffer: ArrayBuffer) => OnnxTensorData;
}

export const onnxDTypes: Readonly<Record<OnnxDType, DTypeInfo>> = {
  float32: { code: 1, bytes: 4, list: 'floatData', array: Float32Array },
  uint8: { code: 2, bytes: 1, list: 'int32Data', array: Uint8Array },
  int8: { code: 3, bytes: 1, list: 'int32Data', array: Int8Array },
  int32: { code: 6, bytes: 4, list: 'int32Data', array: Int32Array },
  int64: { code: 7, bytes: 8, list: 'int64Data', array: BigInt64Array },
  bool: { code: 9, bytes: 1, list: 'int32Data', array: Uint8Array },
  float64: { code: 11, bytes: 8, list: 'doubleData', array: Float64Array },
};

const byCode = new Map(Object.entries(onnxDTypes).map(([dtype, info]) => [info.code, dtype as OnnxDType]));
const foreignTypes: Readonly<Record<number, string>> = {
  4: 'uint16',
  5: 'int16',
  8: 'string',
  10: 'float16',
  12: 'uint32',
  13: 'uint64',
  14: 'complex64',
  15: 'complex128',
  16: 'bfloat16',
};

/** Where in which file a value stands; every error names it. */
export interface Place {
  readonly source: string;
  readonly what: string;
}

export function broken(place: Place, problem: string): UsageError {
  return new UsageError(
    'INVALID_MODEL_FILE',
    `${place.source}: ${place.what} ${problem}. Export the model again, or check it with onnx.checker.check_model.`,
    { source: place.source, where: place.what },
  );
}

export function unsupported(place: Place, problem: string): UsageError {
  return new UsageError(
    'UNSUPPORTED_OPERATOR',
    `${place.source}: ${place.what} ${problem}. Export the model without it.`,
    { source: place.source, where: place.what },
  );
}

/** Names come from the file: quoted, and cut so that a message stays readable. */
export function quoted(name: string): string {
  return JSON.stringify(name.length > 80 ? `${name.slice(0, 77)}...` : name);
}

export function toBigInt(value: WireInt64): bigint {
  return typeof value === 'number' ? BigInt(value) : (BigInt(value.high) << 32n) | BigInt(value.low >>> 0);
}

export function toSafeInteger(value: WireInt64, place: Place): number {
  const exact = toBigInt(value);
  const number = Number(exact);
  if (!Number.isSafeInteger(number)) throw broken(place, `holds the integer ${exact}, outside +-2^53`);
  return number;
}

export function dtypeOf(code: number | undefined, place: Place): OnnxDType {
  if (code === undefined || code === 0) throw broken(place, 'has no element type');
  const dtype = byCode.get(code);
  if (dtype !== undefined) return dtype;
  const known = Object.keys(onnxDTypes).join(', ');
  throw unsupported(
    place,
    `has the element type ${foreignTypes[code] ?? `number ${code}`}; supported are ${known}`,
  );
}

export function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, dimension) => product * dimension, 1);
}

export function encodeTensor(tensor: OnnxTensor): WireTensor {
  const info = onnxDTypes[tensor.dtype];
  const fits = tensor.shape.every((dimension) => Number.isSafeInteger(dimension) && dimension >= 0);
  if (!fits || !(tensor.data instanceof info.array) || tensor.data.length !== elementCount(tensor.shape)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `Tensor ${quoted(tensor.name)} of type ${tensor.dtype} and shape [${tensor.shape.join(', ')}] holds a ` +
        `${tensor.data.constructor.name} of length ${tensor.data.length}; expected a ${info.array.name} of length ` +
        `${elementCount(tensor.shape)}. Pass data that fits the shape.`,
      { tensor: tensor.name, dtype: tensor.dtype, shape: tensor.shape, length: tensor.data.length },
    );
  }
  return {
    dims: tensor.shape,
    dataType: info.code,
    name: tensor.name,
    rawData: new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength),
  };
}

export function decodeTensor(wire: WireTensor, place: Place): OnnxTensor {
  const name = wire.name ?? '';
  const at: Place = { source: place.source, what: `${place.what} ${quoted(name)}` };
  if ((wire.dataLocation ?? 0) !== 0 || (wire.externalData?.length ?? 0) > 0) {
    throw unsupported(at, 'keeps its data in another file (external_data)');
  }
  if (wire.segment !== undefined) throw unsupported(at, 'is split into segments');
  const dtype = dtypeOf(wire.dataType, at);
  const shape = (wire.dims ?? []).map((dimension) => toSafeInteger(dimension, at));
  if (shape.some((dimension) => dimension < 0)) throw broken(at, `has the shape [${shape.join(', ')}]`);
  const count = elementCount(shape);
  const data =
    wire.rawData !== undefined && wire.rawData.length > 0
      ? fromRawBytes(wire.rawData, dtype, count, at)
      : fromList(wire, dtype, count, at);
  if (dtype === 'bool' && (data as Uint8Array).some((value) => value > 1)) {
    throw broken(at, 'is bool and holds values other than 0 and 1');
  }
  return { name, dtype, shape, data };
}

function fromRawBytes(raw: Uint8Array, dtype: OnnxDType, count: number, place: Place): OnnxTensorData {
  const info = onnxDTypes[dtype];
  // Compared before anything is allocated: the shape is hostile, the bytes are really there.
  if (raw.length !== count * info.bytes) {
    throw broken(place, `has ${raw.length} bytes of data, expected ${count} elements of ${info.bytes} bytes`);
  }
  const copy = new Uint8Array(raw.length);
  copy.set(raw);
  return new info.array(copy.buffer);
}

function fromList(wire: WireTensor, dtype: OnnxDType, count: number, place: Place): OnnxTensorData {
  const info = onnxDTypes[dtype];
  const list = wire[info.list] ?? [];
  if (list.length !== count) throw broken(place, `has ${list.length} elements of data, expected ${count}`);
  const data = new info.array(new ArrayBuffer(count * info.bytes));
  if (data instanceof BigInt64Array) {
    for (let i = 0; i < count; i++) data[i] = toBigInt(list[i]!);
    return data;
  }
  for (let i = 0; i < count; i++) {
    const value = list[i] as number;
    data[i] = value;
    if (info.bytes === 1 && data[i] !== value)
      throw broken(place, `is ${dtype} and holds the value ${value}`);
  }
  return data;
}
