/**
 * Element types of the space: their sizes and their typed arrays. Not a conversion layer: a region never
 * changes its type. Invariant: every table here covers every `DType`, so that a new one does not compile
 * until it is complete.
 */

export interface TypedArrays {
  float32: Float32Array<SharedArrayBuffer>;
  float64: Float64Array<SharedArrayBuffer>;
  int32: Int32Array<SharedArrayBuffer>;
  uint32: Uint32Array<SharedArrayBuffer>;
  uint8: Uint8Array<SharedArrayBuffer>;
  uint16: Uint16Array<SharedArrayBuffer>;
  int64: BigInt64Array<SharedArrayBuffer>;
}

export type DType = keyof TypedArrays;
export type TypedArrayOf<T extends DType> = TypedArrays[T];

type Constructors = {
  readonly [T in DType]: {
    readonly BYTES_PER_ELEMENT: number;
    new (buffer: SharedArrayBuffer, byteOffset: number, length: number): TypedArrayOf<T>;
  };
};

const CONSTRUCTORS: Constructors = {
  float32: Float32Array,
  float64: Float64Array,
  int32: Int32Array,
  uint32: Uint32Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  int64: BigInt64Array,
};

export function isDType(value: string): value is DType {
  return Object.hasOwn(CONSTRUCTORS, value);
}

/** Size of one element in bytes. */
export function bytesPerElement(dtype: DType): number {
  return CONSTRUCTORS[dtype].BYTES_PER_ELEMENT;
}

export function typedArray<T extends DType>(
  dtype: T,
  buffer: SharedArrayBuffer,
  byteOffset: number,
  length: number,
): TypedArrayOf<T> {
  return new CONSTRUCTORS[dtype](buffer, byteOffset, length);
}

/** The smallest multiple of `alignment` (a power of two or not) that is not below `value`. */
export function alignUp(value: number, alignment: number): number {
  return Math.ceil(value / alignment) * alignment;
}
