/**
 * The safetensors format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes. Writing gives
 * pieces, so that a model is never copied as a whole; reading gives views on the caller's bytes. Touches no file.
 * Invariant: what `parseSafetensors` returns lies inside the bytes, without overlap or gap, as the format demands.
 */
import { endianness } from 'node:os';
import { TextDecoder } from 'node:util';
import { InternalError, UsageError } from '../../base/index.ts';
import { repeatedKey } from './json.ts';
import { KNOWN_CODES, KNOWN_TYPES, elementCount, typeCoded, typeNamed } from './tensor-data.ts';
import type { ElementType, StreamedTensor, TensorData, Tensors, TensorsToWrite } from './tensor-data.ts';

const LENGTH_BYTES = 8;
const MAX_HEADER_BYTES = 100_000_000;
const METADATA = '__metadata__';

export interface SafetensorsFile {
  readonly tensors: Tensors;
  readonly metadata: Readonly<Record<string, string>>;
}

/**
 * The file as pieces to be written one after the other: the header, then each tensor's bytes in place (not copied:
 * they must not change until written).
 */
export function formatSafetensors(
  tensors: Tensors,
  metadata: Readonly<Record<string, string>> = {},
): Uint8Array[] {
  return layOut(tensors, metadata) as Uint8Array[];
}

/** A part of the file: bytes, or a tensor that comes in pieces, of so many bytes in all. */
export type FilePart = Uint8Array | { readonly bytes: number; readonly pieces: StreamedTensor['pieces'] };

/** The same with tensors that are brought while they are written. */
export function layOut(tensors: TensorsToWrite, metadata: Readonly<Record<string, string>> = {}): FilePart[] {
  checkEndianness();
  const header: [string, unknown][] = [];
  if (Object.keys(metadata).length > 0) header.push([METADATA, metadata]);
  const entries = Object.entries(tensors).map(([name, tensor]) => ({
    name,
    tensor,
    type: checkTensor(name, tensor),
  }));
  // Wide elements first, so that each tensor is aligned in the file; then by name, so that equal models give equal files.
  entries.sort((a, b) => b.type.bytes - a.type.bytes || (a.name < b.name ? -1 : 1));

  const pieces: FilePart[] = [];
  let offset = 0;
  for (const { name, tensor, type } of entries) {
    const byteLength = elementCount(tensor.shape)! * type.bytes;
    header.push([
      name,
      { dtype: type.code, shape: tensor.shape, data_offsets: [offset, offset + byteLength] },
    ]);
    if ('pieces' in tensor) pieces.push({ bytes: byteLength, pieces: tensor.pieces });
    else pieces.push(new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, byteLength));
    offset += byteLength;
  }
  const json = Buffer.from(JSON.stringify(Object.fromEntries(header)));
  const padded = Math.ceil(json.length / 8) * 8;
  if (padded > MAX_HEADER_BYTES) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `The header of ${entries.length} tensors has ${padded} bytes; at most ${MAX_HEADER_BYTES} are allowed. Shorten the names or metadata.`,
      { expected: MAX_HEADER_BYTES, actual: padded },
    );
  }
  const head = Buffer.alloc(LENGTH_BYTES + padded, ' ');
  head.writeBigUInt64LE(BigInt(padded));
  json.copy(head, LENGTH_BYTES);
  return [head, ...pieces];
}

/** Reads the format; tensors are views of `bytes` where their alignment allows it. `file` is the name used in errors. */
export function parseSafetensors(bytes: Uint8Array, file: string): SafetensorsFile {
  const { places, metadata } = placesInFile(bytes, bytes.length, file);
  const tensors = [...places].map(([name, { type, shape, offset, length }]): [string, TensorData] => [
    name,
    { dtype: type.dtype, shape, data: elements(bytes, offset, type, length) },
  ]);
  return { tensors: Object.fromEntries(tensors), metadata };
}

/** Where a tensor lies in its file. */
export interface TensorPlace {
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** The first byte, in the file. */
  readonly offset: number;
  /** Elements. */
  readonly length: number;
}

/**
 * Bytes that a file begins with until its tensors do, by its first eight; `fileBytes`: all that it
 * has.
 */
export function bytesOfHead(first: Uint8Array, fileBytes: number, file: string): number {
  if (first.length < LENGTH_BYTES) {
    throw corrupt(file, `it has ${fileBytes} bytes, fewer than the ${LENGTH_BYTES} of the header length`);
  }
  const length = new DataView(first.buffer, first.byteOffset).getBigUint64(0, true);
  if (length > MAX_HEADER_BYTES) {
    throw corrupt(file, `its header length is ${length}; at most ${MAX_HEADER_BYTES} is allowed`);
  }
  const end = LENGTH_BYTES + Number(length);
  if (end > fileBytes) {
    throw corrupt(file, `its header needs ${end} bytes but the file has ${fileBytes}`);
  }
  return end;
}

/** Reads the beginning of a file of so many bytes, of which no more than the head need be given. */
export function placesInFile(
  head: Uint8Array,
  fileBytes: number,
  file: string,
): {
  readonly places: ReadonlyMap<string, TensorPlace>;
  readonly metadata: Readonly<Record<string, string>>;
} {
  checkEndianness();
  const header = readHeader(head, fileBytes, file);
  const dataBytes = fileBytes - header.end;
  const metadata = readMetadata(header.entries, file);
  const spans: { name: string; begin: number; end: number }[] = [];
  const places = new Map<string, TensorPlace>();
  for (const [name, entry] of Object.entries(header.entries)) {
    if (name === METADATA) continue;
    const { type, shape, begin, end, count } = readEntry(name, entry, dataBytes, file);
    spans.push({ name, begin, end });
    places.set(name, { type, shape: Object.freeze(shape), offset: header.end + begin, length: count });
  }
  checkCoverage(spans, dataBytes, file);
  return { places, metadata };
}

function readHeader(
  bytes: Uint8Array,
  fileBytes: number,
  file: string,
): { entries: Record<string, unknown>; end: number } {
  const end = bytesOfHead(bytes, fileBytes, file);
  let entries: unknown;
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(
      bytes.slice(LENGTH_BYTES, end),
    );
    entries = JSON.parse(text);
    const repeated = repeatedKey(text);
    if (repeated !== undefined) throw corrupt(file, `its header names ${JSON.stringify(repeated)} twice`);
  } catch (cause) {
    if (cause instanceof UsageError) throw cause;
    throw corrupt(file, `its header is not JSON in UTF-8 (${String(cause)})`, cause);
  }
  return { entries: asObject(entries, file, 'its header'), end };
}

function readMetadata(entries: Record<string, unknown>, file: string): Record<string, string> {
  if (!Object.hasOwn(entries, METADATA)) return {};
  const metadata = asObject(entries[METADATA], file, METADATA);
  for (const [key, value] of Object.entries(metadata)) {
    if (typeof value !== 'string') throw corrupt(file, `${METADATA}.${key} is not a string`);
  }
  return metadata as Record<string, string>;
}

interface Entry {
  readonly type: ElementType;
  readonly shape: readonly number[];
  readonly begin: number;
  readonly end: number;
  readonly count: number;
}

function readEntry(name: string, value: unknown, dataBytes: number, file: string): Entry {
  const what = `tensor ${JSON.stringify(name)}`;
  const entry = asObject(value, file, what);
  const type = typeCoded(entry.dtype);
  if (type === undefined) {
    throw corrupt(
      file,
      `${what} has dtype ${JSON.stringify(entry.dtype)}, not one of ${KNOWN_CODES.join(', ')}`,
    );
  }
  const count = elementCount(entry.shape);
  if (count === undefined) throw corrupt(file, `${what} has shape ${JSON.stringify(entry.shape)}`);
  const offsets: unknown = entry.data_offsets;
  const [begin, end] = (Array.isArray(offsets) ? offsets : []) as unknown[];
  const whole = Array.isArray(offsets) && offsets.length === 2 && offsets.every(Number.isSafeInteger);
  if (!whole || (begin as number) < 0 || (end as number) < (begin as number) || (end as number) > dataBytes) {
    throw corrupt(
      file,
      `${what} has data_offsets ${JSON.stringify(offsets)}; the data has ${dataBytes} bytes`,
    );
  }
  const span = { begin: begin as number, end: end as number };
  if (span.end - span.begin !== count * type.bytes) {
    throw corrupt(
      file,
      `${what} needs ${count * type.bytes} bytes for its shape ${JSON.stringify(entry.shape)} but has ${span.end - span.begin}`,
    );
  }
  return { type, shape: [...(entry.shape as number[])], count, ...span };
}

function checkCoverage(
  spans: { name: string; begin: number; end: number }[],
  dataBytes: number,
  file: string,
): void {
  spans.sort((a, b) => a.begin - b.begin || a.end - b.end);
  let covered = 0;
  for (const { name, begin, end } of spans) {
    if (begin < covered) throw corrupt(file, `tensor ${JSON.stringify(name)} overlaps the one before it`);
    if (begin > covered)
      throw corrupt(file, `${begin - covered} bytes before tensor ${JSON.stringify(name)} belong to none`);
    covered = end;
  }
  if (covered !== dataBytes)
    throw corrupt(file, `its tensors end at ${covered} but its data at ${dataBytes}`);
}

function elements(bytes: Uint8Array, start: number, type: ElementType, count: number): TensorData['data'] {
  const offset = bytes.byteOffset + start;
  if (offset % type.bytes === 0) return type.view(bytes.buffer, offset, count);
  const copy = new Uint8Array(count * type.bytes);
  copy.set(bytes.subarray(start, start + copy.length));
  return type.view(copy.buffer, 0, count);
}

function checkTensor(name: string, tensor: TensorData | StreamedTensor): ElementType {
  const type = typeNamed(tensor.dtype);
  const count = elementCount(tensor.shape);
  if ('pieces' in tensor) {
    if (name !== METADATA && type !== undefined && count !== undefined) return type;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `Tensor ${JSON.stringify(name)} cannot be stored: dtype ${tensor.dtype}, shape [${tensor.shape.join(', ')}]. Give known ones, and any name but ${METADATA}.`,
      { name, dtype: tensor.dtype, shape: tensor.shape },
    );
  }
  if (name === METADATA || type === undefined || !type.matches(tensor.data) || count !== tensor.data.length) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `Tensor ${JSON.stringify(name)} cannot be stored: dtype ${tensor.dtype} (known: ${KNOWN_TYPES.join(', ')}), ` +
        `shape [${tensor.shape.join(', ')}], data ${tensor.data?.constructor?.name} of ${tensor.data?.length}. ` +
        `Give matching ones, and any name but ${METADATA}.`,
      { name, dtype: tensor.dtype, shape: tensor.shape },
    );
  }
  return type;
}

function asObject(value: unknown, file: string, what: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw corrupt(file, `${what} is not an object`);
  }
  return value as Record<string, unknown>;
}

function checkEndianness(): void {
  // The format is little-endian, and so is every typed array on the machines this runs on.
  if (endianness() !== 'LE')
    throw new InternalError('BROKEN_INVARIANT', 'safetensors needs a little-endian machine.');
}

function corrupt(file: string, fault: string, cause?: unknown): UsageError {
  return new UsageError(
    'CHECKPOINT_CORRUPT',
    `${file} is not a readable safetensors file: ${fault}. Use an earlier checkpoint or another copy of the file.`,
    { file },
    cause,
  );
}
