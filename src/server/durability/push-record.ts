/**
 * What a push log holds, a push or the optimizer of those that follow, and its layout: a head of 56 bytes, the key's name
 * (of an optimizer its specification as JSON), whole numbers (starts and lengths
 * of the pieces, or row indices), the elements, and a CRC-32 of all before it; little-endian, each part a multiple of 4
 * bytes long. No files here. Invariant: the length of a record follows from its head alone.
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

export type PushRecord = DensePushRecord | RowsPushRecord;

/** Records behind it were applied by this optimizer, at its learning rate. */
export interface OptimizerRecord {
  readonly kind: 'optimizer';
  /** As JSON brings it back; null for none. */
  readonly spec: unknown;
}

export type LogRecord = PushRecord | OptimizerRecord;

export const HEAD_BYTES = 56;
export const CHECKSUM_BYTES = 4;
/** A checksum of the head alone: lengths that can be trusted tell a torn record from a damaged one. */
const HEAD_SUM_AT = 52;
const MARK = 0x50495254;
const KINDS = ['dense', 'rows', 'optimizer'] as const;

export interface RecordHead {
  readonly kind: (typeof KINDS)[number];
  readonly worker: number;
  readonly step: number;
  readonly samples: number;
  readonly keyBytes: number;
  readonly numbers: number;
  readonly elements: number;
}

/** Bytes of the whole record. */
export function recordBytes({ keyBytes, numbers, elements }: RecordHead): number {
  return HEAD_BYTES + padded(keyBytes) + 4 * (numbers + elements) + CHECKSUM_BYTES;
}

/** The record's parts without the checksum, to be written one after the other; the elements are not copied. */
export function recordParts(record: LogRecord): Uint8Array[] {
  if (record.kind === 'optimizer') return [frontOf({ ...NO_PUSH, kind: record.kind }, textOf(record.spec))];
  checkRecord(record);
  const key = Buffer.from(record.key);
  const [numbers, arrays] =
    record.kind === 'dense'
      ? [piecesTable(record.pieces), record.pieces.map(({ values }) => values)]
      : [record.indices, [record.rows]];
  const elements = arrays.reduce((sum, { length }) => sum + length, 0);
  const { kind, worker, step, samples } = record;
  const front = frontOf({ kind, worker, step, samples, numbers: numbers.length, elements }, key);
  return [front, bytesOf(numbers), ...arrays.map(bytesOf)];
}

const NO_PUSH = { worker: 0, step: 0, samples: 0, numbers: 0, elements: 0 };

/** The head, and the key behind it. */
function frontOf(head: Omit<RecordHead, 'keyBytes'>, key: Buffer): Buffer {
  const front = Buffer.alloc(HEAD_BYTES + padded(key.length));
  front.writeUInt32LE(MARK, 0);
  front.writeUInt32LE(KINDS.indexOf(head.kind), 4);
  front.writeDoubleLE(head.worker, 8);
  front.writeDoubleLE(head.step, 16);
  front.writeDoubleLE(head.samples, 24);
  front.writeDoubleLE(head.numbers, 32);
  front.writeDoubleLE(head.elements, 40);
  front.writeUInt32LE(key.length, 48);
  front.writeUInt32LE(crc32(front.subarray(0, HEAD_SUM_AT), 0), HEAD_SUM_AT);
  key.copy(front, HEAD_BYTES);
  return front;
}

function textOf(spec: unknown): Buffer {
  return Buffer.from(JSON.stringify(spec ?? null));
}

/** The head at the beginning of `bytes`, or undefined if there is none. Its lengths are not yet compared with anything. */
export function readHead(bytes: Buffer): RecordHead | undefined {
  if (crc32(bytes.subarray(0, HEAD_SUM_AT), 0) !== bytes.readUInt32LE(HEAD_SUM_AT)) return undefined;
  const kind = KINDS[bytes.readUInt32LE(4)];
  const head = {
    worker: bytes.readDoubleLE(8),
    step: bytes.readDoubleLE(16),
    samples: bytes.readDoubleLE(24),
    numbers: bytes.readDoubleLE(32),
    elements: bytes.readDoubleLE(40),
    keyBytes: bytes.readUInt32LE(48),
  };
  const { worker, step, samples, numbers, elements } = head;
  const isSound = isCount(worker) && isCount(step) && isCount(numbers) && isCount(elements);
  if (bytes.readUInt32LE(0) !== MARK || kind === undefined || !isSound || !isWeight(samples))
    return undefined;
  return { kind, ...head };
}

/** The record of a head and of the bytes between head and checksum, or undefined if they do not fit together. */
export function readBody(head: RecordHead, body: Buffer): LogRecord | undefined {
  const { kind, worker, step, samples, keyBytes, numbers, elements } = head;
  const key = body.toString('utf8', 0, keyBytes);
  if (kind === 'optimizer') return readOptimizer(key);
  if (!isName(key)) return undefined;
  const numbersAt = body.byteOffset + padded(keyBytes);
  const values = new Float32Array(body.buffer as ArrayBuffer, numbersAt + 4 * numbers, elements);
  const whole = new Int32Array(body.buffer as ArrayBuffer, numbersAt, numbers);
  if (kind === 'rows') return { kind, worker, key, step, samples, indices: whole, rows: values };
  const pieces: GradientPiece[] = [];
  let at = 0;
  for (let i = 0; i + 1 < whole.length; i += 2) {
    const [start, length] = [whole[i]!, whole[i + 1]!];
    if (start < 0 || length < 0 || at + length > elements) return undefined;
    pieces.push({ start, values: values.subarray(at, at + length) });
    at += length;
  }
  if (at !== elements || whole.length % 2 !== 0) return undefined;
  return { kind, worker, key, step, samples, pieces };
}

function readOptimizer(text: string): OptimizerRecord | undefined {
  try {
    return { kind: 'optimizer', spec: JSON.parse(text) as unknown };
  } catch {
    return undefined;
  }
}

function checkRecord(record: PushRecord): void {
  const { worker, key, step, samples } = record;
  const isPlaced =
    record.kind === 'rows' ||
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
