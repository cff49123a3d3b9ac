/**
 * What a push log holds, and its layout: a head of 64 bytes, a text (the key's name, a plan or an optimizer as JSON),
 * whole numbers (starts and lengths of the pieces, or row indices), the elements, and a CRC-32 of all before it;
 * little-endian, each part a multiple of 4 bytes long. Behind the head, the first word of each sector of the file is
 * masked. No files here. Invariants: the length of a record follows from its head alone; a sector of zeros was never
 * written.
 */
import { UsageError } from '../../base/index.ts';
import { crc32 } from './crc32.ts';
import { isCount, isName } from './server-state.ts';

interface Pushed {
  readonly worker: number;
  readonly key: string;
  /** Number of this push of the key by this worker, from 1. */
  readonly step: number;
  readonly samples: number;
}

/** Elements `start` and following of the key's gradient. */
export interface GradientPiece {
  readonly start: number;
  readonly values: Float32Array;
}

export interface DensePushRecord extends Pushed {
  readonly kind: 'dense';
  /** Only what belongs to the core: a key's chunks may be spread over several. */
  readonly pieces: readonly GradientPiece[];
}

export interface RowsPushRecord extends Pushed {
  readonly kind: 'rows';
  readonly indices: Int32Array;
  /** [indices.length, row length] */
  readonly rows: Float32Array;
}

/** A push that counts although its values are left out: without it, those that follow would not fit. */
export interface SkippedPushRecord extends Pushed {
  readonly kind: 'skipped';
}

export type PushRecord = DensePushRecord | RowsPushRecord | SkippedPushRecord;

/** Records behind it were applied by this optimizer. */
export interface OptimizerRecord {
  readonly kind: 'optimizer';
  /** As JSON brings it back; null for none. */
  readonly spec: unknown;
}

/** Keys that were opened together, and their first values. */
export interface ValuesRecord {
  readonly kind: 'values';
  readonly batch: number;
  /** The keys and the pieces of them that belong to the core, as JSON. */
  readonly plan: string;
  /** The elements of all pieces; one array or several that follow each other. Read back as one. */
  readonly values: readonly Float32Array[];
}

export type LogRecord = PushRecord | OptimizerRecord | ValuesRecord;

export const HEAD_BYTES = 64;
export const CHECKSUM_BYTES = 4;
/** A checksum of the head alone: lengths that can be trusted tell a torn record from a damaged one. */
const HEAD_SUM_AT = 60;
export const RECORD_MARK = 0x50495254;
/** What a device writes whole or not at all. */
export const SECTOR_BYTES = 512;
/**
 * As a number negative, as a text no UTF-8, as an element a NaN that no arithmetic gives: none of the words that are
 * masked.
 */
const SECTOR_MASK = 0xffad5eed;
const KINDS = ['dense', 'rows', 'optimizer', 'values', 'skipped'] as const;

export interface RecordHead {
  readonly kind: (typeof KINDS)[number];
  readonly worker: number;
  /** Of values: the number of the batch. */
  readonly step: number;
  readonly samples: number;
  readonly textBytes: number;
  readonly numbers: number;
  readonly elements: number;
  /** Bytes of the log that had been flushed when the record was written: no power cut takes any of them. */
  readonly flushedBytes: number;
}

/** Bytes of the whole record. */
export function recordBytes({ textBytes, numbers, elements }: RecordHead): number {
  return HEAD_BYTES + padded(textBytes) + 4 * (numbers + elements) + CHECKSUM_BYTES;
}

/** The record's parts without the checksum, to be written one after the other; the elements are not copied. */
export function recordParts(record: LogRecord, flushedBytes: number): Uint8Array[] {
  const { text, numbers, arrays, ...fields } = contentOf(record);
  const bytes = Buffer.from(text);
  const elements = arrays.reduce((sum, { length }) => sum + length, 0);
  const front = Buffer.alloc(HEAD_BYTES + padded(bytes.length));
  front.writeUInt32LE(RECORD_MARK, 0);
  front.writeUInt32LE(KINDS.indexOf(record.kind), 4);
  front.writeDoubleLE(fields.worker, 8);
  front.writeDoubleLE(fields.step, 16);
  front.writeDoubleLE(fields.samples, 24);
  front.writeDoubleLE(numbers.length, 32);
  front.writeDoubleLE(elements, 40);
  front.writeUInt32LE(bytes.length, 48);
  front.writeDoubleLE(flushedBytes, 52);
  front.writeUInt32LE(crc32(front.subarray(0, HEAD_SUM_AT), 0), HEAD_SUM_AT);
  bytes.copy(front, HEAD_BYTES);
  return [front, bytesOf(numbers), ...arrays.map(bytesOf)];
}

/**
 * Masks, or unmasks, the first word of each sector in bytes that lie at `position` of the file and belong to no head.
 * Gradients have long runs of zeros; a power cut leaves zeros, too, and only those may be taken for bytes that were
 * never written.
 */
export function maskSectors(bytes: Buffer, position: number): void {
  const first = (SECTOR_BYTES - (position % SECTOR_BYTES)) % SECTOR_BYTES;
  for (let at = first; at < bytes.length; at += SECTOR_BYTES) {
    bytes.writeUInt32LE((bytes.readUInt32LE(at) ^ SECTOR_MASK) >>> 0, at);
  }
}

/**
 * The head at the beginning of `bytes`, or undefined if there is none. Its lengths are not yet compared with
 * anything.
 */
export function readHead(bytes: Buffer): RecordHead | undefined {
  if (crc32(bytes.subarray(0, HEAD_SUM_AT), 0) !== bytes.readUInt32LE(HEAD_SUM_AT)) return undefined;
  const kind = KINDS[bytes.readUInt32LE(4)];
  const head = {
    worker: bytes.readDoubleLE(8),
    step: bytes.readDoubleLE(16),
    samples: bytes.readDoubleLE(24),
    numbers: bytes.readDoubleLE(32),
    elements: bytes.readDoubleLE(40),
    textBytes: bytes.readUInt32LE(48),
    flushedBytes: bytes.readDoubleLE(52),
  };
  const { worker, step, samples, numbers, elements, flushedBytes } = head;
  const isSound = [worker, step, numbers, elements, flushedBytes].every(isCount);
  if (bytes.readUInt32LE(0) !== RECORD_MARK || kind === undefined || !isSound || !isWeight(samples))
    return undefined;
  return { kind, ...head };
}

/** The record of a head and of the bytes between head and checksum, or undefined if they do not fit together. */
export function readBody(head: RecordHead, body: Buffer): LogRecord | undefined {
  const { kind, worker, step, samples, textBytes, numbers, elements } = head;
  const text = body.toString('utf8', 0, textBytes);
  const numbersAt = body.byteOffset + padded(textBytes);
  const values = new Float32Array(body.buffer as ArrayBuffer, numbersAt + 4 * numbers, elements);
  const whole = new Int32Array(body.buffer as ArrayBuffer, numbersAt, numbers);
  if (kind === 'optimizer') return readOptimizer(text);
  if (kind === 'values') return { kind, batch: step, plan: text, values: [values] };
  if (!isName(text)) return undefined;
  const pushed = { worker, key: text, step, samples };
  if (kind === 'skipped') return { kind, ...pushed };
  if (kind === 'rows') return { kind, ...pushed, indices: whole, rows: values };
  const pieces: GradientPiece[] = [];
  let at = 0;
  for (let i = 0; i + 1 < whole.length; i += 2) {
    const [start, length] = [whole[i]!, whole[i + 1]!];
    if (start < 0 || length < 0 || at + length > elements) return undefined;
    pieces.push({ start, values: values.subarray(at, at + length) });
    at += length;
  }
  if (at !== elements || whole.length % 2 !== 0) return undefined;
  return { kind, ...pushed, pieces };
}

interface Content {
  readonly text: string;
  readonly worker: number;
  readonly step: number;
  readonly samples: number;
  readonly numbers: Int32Array;
  readonly arrays: readonly Float32Array[];
}

function contentOf(record: LogRecord): Content {
  const none = { worker: 0, step: 0, samples: 0, numbers: new Int32Array(), arrays: [] };
  if (record.kind === 'optimizer') return { ...none, text: JSON.stringify(record.spec ?? null) };
  if (record.kind === 'values')
    return { ...none, text: record.plan, step: record.batch, arrays: record.values };
  checkPush(record);
  const { worker, step, samples, key: text } = record;
  const pushed = { ...none, text, worker, step, samples };
  if (record.kind === 'skipped') return pushed;
  if (record.kind === 'rows') return { ...pushed, numbers: record.indices, arrays: [record.rows] };
  const arrays = record.pieces.map(({ values }) => values);
  return { ...pushed, numbers: piecesTable(record.pieces), arrays };
}

function readOptimizer(text: string): OptimizerRecord | undefined {
  try {
    return { kind: 'optimizer', spec: JSON.parse(text) as unknown };
  } catch {
    return undefined;
  }
}

function checkPush(record: PushRecord): void {
  const { worker, key, step, samples } = record;
  const isPlaced =
    record.kind !== 'dense' ||
    record.pieces.every(({ start, values }) => isCount(start) && start + values.length < 2 ** 31);
  if (isCount(worker) && isName(key) && isCount(step) && isWeight(samples) && isPlaced) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `A push of key '${key}' by worker ${worker} cannot be logged: step ${step}, samples ${samples}; ` +
      'give whole numbers from 0 for worker and step, a finite number from 0 for samples, and pieces that start within the key.',
    { worker, key, step, samples },
  );
}

function isWeight(samples: number): boolean {
  return samples >= 0 && samples < Infinity;
}

function piecesTable(pieces: readonly GradientPiece[]): Int32Array {
  const table = new Int32Array(2 * pieces.length);
  pieces.forEach(({ start, values }, i) => {
    table[2 * i] = start;
    table[2 * i + 1] = values.length;
  });
  return table;
}

function bytesOf({ buffer, byteOffset, byteLength }: Int32Array | Float32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

function padded(bytes: number): number {
  return Math.ceil(bytes / 4) * 4;
}
