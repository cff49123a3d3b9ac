/**
 * What a session declares about its inputs and outputs, and the check of a caller's tensor against it. ONNX Runtime
 * checks shapes too, but only when it runs and not the size of the memory behind an address.
 * Invariant: a spec that passes `checkSpec` covers exactly the bytes its shape and type need.
 */
import koffi from 'koffi';
import { UsageError } from '../../base/index.ts';
import type { OrtApi, Pointer } from './api.ts';

export type NativeDType = 'float32' | 'float64' | 'int8' | 'uint8' | 'int32' | 'int64' | 'bool';

/** A tensor in memory that outlives the binding. */
export interface NativeTensorSpec {
  /** Name of the model's input or output. */
  name: string;
  dtype: NativeDType;
  shape: readonly number[];
  /** Address of the first byte. */
  address: bigint;
  /** Length of the memory at `address`; must be what shape and dtype need. */
  byteLength: number;
}

/** An input or output as the model declares it; -1 is a dimension that is free. */
export interface SessionValue {
  readonly name: string;
  /** undefined: a type that tensors here cannot have. */
  readonly dtype: NativeDType | undefined;
  readonly shape: readonly number[];
}

/** ONNXTensorElementDataType and the element size. */
export const nativeDTypes: Readonly<Record<NativeDType, { readonly code: number; readonly bytes: number }>> =
  {
    float32: { code: 1, bytes: 4 },
    uint8: { code: 2, bytes: 1 },
    int8: { code: 3, bytes: 1 },
    int32: { code: 6, bytes: 4 },
    int64: { code: 7, bytes: 8 },
    bool: { code: 9, bytes: 1 },
    float64: { code: 11, bytes: 8 },
  };

export function readSessionValues(
  api: OrtApi,
  session: Pointer,
  allocator: Pointer,
  kind: 'Input' | 'Output',
): SessionValue[] {
  const { call } = api;
  const doing = `describe the ${kind.toLowerCase()}s of a session`;
  const count = Number(api.pointer((out) => call[`sessionGet${kind}Count`](session, out), doing));
  return Array.from({ length: count }, (_, index) => {
    const text = api.pointer((out) => call[`sessionGet${kind}Name`](session, index, allocator, out), doing);
    const name = takeString(api, allocator, text);
    const typeInfo = api.pointer((out) => call[`sessionGet${kind}TypeInfo`](session, index, out), doing);
    try {
      return { name, ...readTensorType(api, typeInfo, doing) };
    } finally {
      call.releaseTypeInfo(typeInfo);
    }
  });
}

/** Copies a string that the runtime allocated, and gives it back. */
export function takeString(api: OrtApi, allocator: Pointer, text: Pointer): string {
  try {
    return koffi.decode(text, 'char', -1) as string;
  } finally {
    api.check(api.call.allocatorFree(allocator, text), 'free a string');
  }
}

function readTensorType(api: OrtApi, typeInfo: Pointer, doing: string): Omit<SessionValue, 'name'> {
  const { call } = api;
  // The tensor info belongs to the type info; it is null for sequences and maps.
  const info = api.pointer((out) => call.castTypeInfoToTensorInfo(typeInfo, out), doing);
  if (info === 0n) return { dtype: undefined, shape: [] };
  const type = new Int32Array(1);
  api.check(call.getTensorElementType(info, type), doing);
  const rank = Number(api.pointer((out) => call.getDimensionsCount(info, out), doing));
  const dimensions = new BigInt64Array(rank);
  if (rank > 0) api.check(call.getDimensions(info, dimensions, rank), doing);
  const dtype = (Object.keys(nativeDTypes) as NativeDType[]).find((d) => nativeDTypes[d].code === type[0]);
  return { dtype, shape: Array.from(dimensions, Number) };
}

export function checkSpec(spec: NativeTensorSpec, declared: SessionValue, kind: 'input' | 'output'): void {
  const mismatch = (expected: string, actual: string): UsageError =>
    new UsageError(
      'SHAPE_MISMATCH',
      `The ${kind} "${spec.name}" expects ${expected}, got ${actual}. Bind a tensor that fits the model.`,
      { tensor: spec.name, expected, actual },
    );
  if (declared.dtype !== spec.dtype) {
    throw mismatch(declared.dtype ?? 'a type that cannot be bound', spec.dtype);
  }
  const { shape } = spec;
  const valid = shape.every((dimension) => Number.isSafeInteger(dimension) && dimension >= 0);
  // A model may leave the rank of an output open; it then shows as no dimensions, like a scalar.
  const fits =
    declared.shape.length === 0 ||
    (declared.shape.length === shape.length &&
      declared.shape.every((dimension, i) => dimension < 0 || dimension === shape[i]));
  if (!valid || !fits) throw mismatch(shapeText(declared.shape), shapeText(shape));
  const bytes = shape.reduce((product, dimension) => product * dimension, nativeDTypes[spec.dtype].bytes);
  if (spec.byteLength !== bytes) {
    throw mismatch(`${bytes} bytes for ${spec.dtype} ${shapeText(shape)}`, `${spec.byteLength} bytes`);
  }
  if (spec.address <= 0n && bytes > 0) throw mismatch('an address', String(spec.address));
}

function shapeText(shape: readonly number[]): string {
  return `[${shape.map((dimension) => (dimension < 0 ? 'any' : dimension)).join(', ')}]`;
}
