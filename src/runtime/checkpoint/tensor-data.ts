/**
 * A tensor as a checkpoint holds it: element type, shape and bytes; and the table of element types. No arithmetic.
 * Invariant: `data` has exactly as many elements as the shape says.
 */

/** float16 and bfloat16 are carried as their 16 bits, bool as bytes of 0 or 1. */
const TYPES = {
  float32: { code: 'F32', array: Float32Array },
  float64: { code: 'F64', array: Float64Array },
  float16: { code: 'F16', array: Uint16Array },
  bfloat16: { code: 'BF16', array: Uint16Array },
  int64: { code: 'I64', array: BigInt64Array },
  int32: { code: 'I32', array: Int32Array },
  uint32: { code: 'U32', array: Uint32Array },
  int8: { code: 'I8', array: Int8Array },
  uint8: { code: 'U8', array: Uint8Array },
  bool: { code: 'BOOL', array: Uint8Array },
} as const;

export type TensorType = keyof typeof TYPES;
/** Also on shared memory. */
export type TensorArray =
  | Float32Array
  | Float64Array
  | Uint16Array
  | BigInt64Array
  | Int32Array
  | Uint32Array
  | Int8Array
  | Uint8Array;

export interface TensorData {
  readonly dtype: TensorType;
  readonly shape: readonly number[];
  readonly data: TensorArray;
}

export type Tensors = Readonly<Record<string, TensorData>>;

/** A tensor that is nowhere as a whole: it is brought, in its order, while it is written. */
export interface StreamedTensor {
  readonly dtype: TensorType;
  readonly shape: readonly number[];
  /** Bytes that may change when the next ones are asked for. */
  readonly pieces: () => Iterable<Promise<Uint8Array>>;
}

export type TensorsToWrite = Readonly<Record<string, TensorData | StreamedTensor>>;

/** A tensor that was left in its file. */
export interface StoredTensor {
  readonly dtype: TensorType;
  readonly shape: readonly number[];
  /** Elements. */
  readonly length: number;
  /** Fills the target with elements from `first` on. */
  read(first: number, target: TensorArray): void;
}

export interface ElementType {
  readonly dtype: TensorType;
  /** The name in a safetensors header. */
  readonly code: string;
  readonly bytes: number;
  readonly matches: (data: unknown) => boolean;
  readonly view: (buffer: ArrayBufferLike, byteOffset: number, elements: number) => TensorArray;
}

const BY_TYPE = new Map<string, ElementType>();
const BY_CODE = new Map<string, ElementType>();
for (const [dtype, { code, array }] of Object.entries(TYPES)) {
  const type: ElementType = {
    dtype: dtype as TensorType,
    code,
    bytes: array.BYTES_PER_ELEMENT,
    matches: (data) => data instanceof array,
    view: (buffer, byteOffset, elements) => new array(buffer as ArrayBuffer, byteOffset, elements),
  };
  BY_TYPE.set(dtype, type);
  BY_CODE.set(code, type);
}

export const KNOWN_TYPES: readonly string[] = [...BY_TYPE.keys()];
export const KNOWN_CODES: readonly string[] = [...BY_CODE.keys()];

export function typeNamed(dtype: string): ElementType | undefined {
  return BY_TYPE.get(dtype);
}

export function typeCoded(code: unknown): ElementType | undefined {
  return typeof code === 'string' ? BY_CODE.get(code) : undefined;
}

/** The number of elements, or undefined if the shape is not a list of whole numbers or is too large to count. */
export function elementCount(shape: unknown): number | undefined {
  if (!Array.isArray(shape) || !shape.every((extent) => Number.isSafeInteger(extent) && extent >= 0))
    return undefined;
  // Zero extents first: 0 times an overflowing product is still 0.
  if (shape.includes(0)) return 0;
  const count = (shape as number[]).reduce((product, extent) => product * extent, 1);
  return Number.isSafeInteger(count) ? count : undefined;
}
