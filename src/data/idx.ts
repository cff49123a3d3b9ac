/**
 * The IDX format of the MNIST files: two zero bytes, a type code, the number of dimensions, each extent as a
 * big-endian uint32, then the elements, big-endian. Only uint8, int32 and float32 are read.
 * Invariant: a result has exactly as many elements as its shape says; anything else is INVALID_DATA.
 */
import { UsageError } from '../base/index.ts';
import { allocate } from './dataset.ts';
import type { ColumnData, ColumnType } from './dataset.ts';
import { readBytes } from './text-file.ts';

export interface IdxArray {
  readonly dtype: ColumnType;
  readonly shape: readonly number[];
  /** On a SharedArrayBuffer. */
  readonly data: ColumnData;
}

const TYPES: Readonly<Record<number, { readonly dtype: ColumnType; readonly bytes: number }>> = {
  0x08: { dtype: 'uint8', bytes: 1 },
  0x0c: { dtype: 'int32', bytes: 4 },
  0x0d: { dtype: 'float32', bytes: 4 },
};

export function readIdx(path: string): IdxArray {
  return parseIdx(readBytes(path), path);
}

/** Parses IDX bytes; `file` is the name used in errors. */
export function parseIdx(bytes: Uint8Array, file: string): IdxArray {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) {
    throw fail(file, 'it is compressed with gzip', 'Decompress it with gunzip');
  }
  const type = bytes.length >= 4 && view.getUint16(0) === 0 ? TYPES[view.getUint8(2)] : undefined;
  const rank = bytes[3] ?? 0;
  if (type === undefined || rank === 0) {
    const found = Buffer.from(bytes.subarray(0, 4)).toString('hex');
    throw fail(
      file,
      `it starts with 0x${found}, not with an IDX magic number (0x000008.. for uint8, 0x00000c.. for int32, 0x00000d.. for float32)`,
      'Give an IDX file',
    );
  }
  const headerBytes = 4 + 4 * rank;
  if (bytes.length < headerBytes) {
    throw fail(file, `its header needs ${headerBytes} bytes but it has ${bytes.length}`, 'Download it again');
  }
  const shape = Array.from({ length: rank }, (_, axis) => view.getUint32(4 + 4 * axis));
  const elements = shape.reduce((product, extent) => product * extent, 1);
  const expected = headerBytes + elements * type.bytes;
  if (bytes.length !== expected) {
    throw fail(
      file,
      `its shape [${shape.join(', ')}] needs ${expected} bytes but it has ${bytes.length}`,
      'Download it again',
    );
  }
  const data = allocate(type.dtype, elements);
  if (type.dtype === 'uint8') {
    data.set(bytes.subarray(headerBytes));
  } else {
    for (let i = 0; i < elements; i++) {
      const offset = headerBytes + 4 * i;
      data[i] = type.dtype === 'int32' ? view.getInt32(offset) : view.getFloat32(offset);
    }
  }
  return { dtype: type.dtype, shape, data };
}

function fail(file: string, fault: string, nextStep: string): UsageError {
  return new UsageError('INVALID_DATA', `${file} is not usable: ${fault}. ${nextStep}.`, { file });
}
