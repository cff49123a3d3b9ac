/**
 * Reads a push log back, one record at a time, up to the end or to the first bytes that are no whole record, and
 * tells what a kill or a power cut leaves behind from damage. Terms: torn is a tail that nobody was promised: the
 * file ends within a record, or bytes of it were never written; damaged is everything else. Invariants: what is given
 * is a prefix of what was appended, bit for bit; a log is never called torn before a byte that a later record says
 * was flushed.
 */
import { constants } from 'node:fs';
import { readFully, UsageError } from '../../base/index.ts';
import type { Files } from '../../base/index.ts';
import { crc32 } from './crc32.ts';
import {
  CHECKSUM_BYTES,
  HEAD_BYTES,
  maskSectors,
  readBody,
  readHead,
  RECORD_MARK,
  recordBytes,
  SECTOR_BYTES,
} from './push-record.ts';
import type { LogRecord } from './push-record.ts';

const LOG_MARK = Buffer.from('tributary-log-3\n');
/** Of this release or another. */
const ANY_MARK = /^tributary-log-\d\n$/;
const TEXT_AT = LOG_MARK.length + 8;
const MAX_TEXT_BYTES = 2 ** 20;
const PIECE_BYTES = 2 ** 20;
/** At the end of a file: more than a checksum can have by chance. */
const MANY_ZEROS = 16;

/** What a log says of itself before its first record. */
export interface LogOrigin {
  /** Cores of the server that wrote it. */
  readonly cores: number;
  /** How the service was trained, as JSON. */
  readonly settings: string;
  /** The log that it continues, and how many records that one has; null: it continues none. */
  readonly previous: { readonly number: number; readonly records: number } | null;
  /** Whether it is the first of all and begins with nothing; otherwise, if it continues none, with a checkpoint. */
  readonly isFirst: boolean;
  /**
   * Whether pushes count only after a flush, which makes them survive a power cut; first values and optimizers always
   * do.
   */
  readonly isFlushed: boolean;
}

export interface ReplayStop {
  /** Records that were given. */
  readonly records: number;
  /** Bytes of the log up to the end of the last one. */
  readonly atByte: number;
  readonly fileBytes: number;
  /**
   * 'end': all was read. 'torn': what follows is as a kill or a power cut leaves it, and nobody was promised that it
   * survives that. 'damaged': what follows may have been, but is no record.
   */
  readonly why: 'end' | 'torn' | 'damaged';
}

export class LogReplay implements Iterable<LogRecord> {
  readonly #files: Files;
  readonly #path: string;
  #stop: ReplayStop | undefined;

  constructor(files: Files, path: string) {
    this.#files = files;
    this.#path = path;
  }

  /** Where the last complete pass over the records stopped; undefined before. */
  get stop(): ReplayStop | undefined {
    return this.#stop;
  }

  *[Symbol.iterator](): Generator<LogRecord, void> {
    this.#stop = undefined;
    const files = this.#files;
    const file = openLog(files, this.#path);
    try {
      const fileBytes = files.size(file).bytes;
      const origin = readOrigin(files, file, fileBytes, this.#path);
      let atByte = typeof origin === 'string' ? 0 : origin.bytes;
      let records = 0;
      let next: Next = typeof origin === 'string' ? origin : readRecord(files, file, atByte, fileBytes);
      while (typeof next !== 'string') {
        atByte += next.bytes;
        records++;
        yield next.record;
        next = readRecord(files, file, atByte, fileBytes);
      }
      this.#stop = { records, atByte, fileBytes, why: next };
    } finally {
      files.close(file);
    }
  }
}

/** What a log says of itself; a reason if it does not. CHECKPOINT_MISMATCH if it is of another release. */
export function readLogOrigin(files: Files, path: string): LogOrigin | 'torn' | 'damaged' {
  const file = openLog(files, path);
  try {
    const found = readOrigin(files, file, files.size(file).bytes, path);
    return typeof found === 'string' ? found : found.origin;
  } finally {
    files.close(file);
  }
}

/** The bytes before the first record. */
export function originBytes(origin: LogOrigin): Uint8Array {
  const text = Buffer.from(JSON.stringify(origin));
  const bytes = Buffer.alloc(TEXT_AT + Math.ceil(text.length / 4) * 4);
  LOG_MARK.copy(bytes);
  bytes.writeUInt32LE(text.length, LOG_MARK.length);
  text.copy(bytes, TEXT_AT);
  bytes.writeUInt32LE(crc32(bytes.subarray(TEXT_AT), text.length), LOG_MARK.length + 4);
  return bytes;
}

type Next = ReplayStop['why'] | { readonly record: LogRecord; readonly bytes: number };

function readOrigin(
  files: Files,
  file: number,
  fileBytes: number,
  path: string,
): 'torn' | 'damaged' | { readonly origin: LogOrigin; readonly bytes: number } {
  const front = read(files, file, 0, Math.min(TEXT_AT, fileBytes)) ?? Buffer.alloc(0);
  const mark = front.subarray(0, LOG_MARK.length);
  if (ANY_MARK.test(mark.toString('latin1')) && !mark.equals(LOG_MARK)) throw otherRelease(path);
  const length = front.length === TEXT_AT ? front.readUInt32LE(LOG_MARK.length) : 0;
  const isSound = mark.equals(LOG_MARK) && length <= MAX_TEXT_BYTES;
  const padded = Math.ceil(length / 4) * 4;
  const text = isSound ? read(files, file, TEXT_AT, padded) : undefined;
  if (text && length > 0 && crc32(text, length) === front.readUInt32LE(LOG_MARK.length + 4)) {
    const origin = JSON.parse(text.toString('utf8', 0, length)) as LogOrigin;
    return { origin, bytes: TEXT_AT + padded };
  }
  // A log that was killed at its birth has no records, and nothing was acknowledged by it.
  return hasRecordBehind(files, file, 0, fileBytes, 0) || !isUnwritten(files, file, 0, fileBytes, front)
    ? 'damaged'
    : 'torn';
}

/** Of the beginning of a log: it is as far as it goes what a log begins with, and then it ends or has zeros. */
function isUnwritten(files: Files, file: number, at: number, fileBytes: number, front: Buffer): boolean {
  let same = 0;
  while (same < Math.min(front.length, LOG_MARK.length) && front[same] === LOG_MARK[same]) same++;
  if (same === LOG_MARK.length)
    return fileBytes < SECTOR_BYTES || isZero(files, file, SECTOR_BYTES, fileBytes);
  return isZero(files, file, at + same, fileBytes);
}

function readRecord(files: Files, file: number, at: number, fileBytes: number): Next {
  const left = fileBytes - at;
  if (left === 0) return 'end';
  if (left < HEAD_BYTES) return 'torn';
  const front = read(files, file, at, HEAD_BYTES);
  if (front === undefined) return 'torn';
  const head = readHead(front);
  if (head === undefined) return whyNot(files, file, at, fileBytes, hasLostSector(at, front));
  const bytes = recordBytes(head);
  // Also what keeps a damaged length from being allocated.
  if (!(bytes <= left)) return 'torn';
  const rest = read(files, file, at + HEAD_BYTES, bytes - HEAD_BYTES);
  if (rest === undefined) return 'torn';
  const body = rest.subarray(0, rest.length - CHECKSUM_BYTES);
  const sum = rest.readUInt32LE(body.length);
  if (crc32(body, crc32(front, 0)) !== sum) {
    return whyNot(files, file, at, fileBytes, sum === 0 || hasLostSector(at, Buffer.concat([front, rest])));
  }
  maskSectors(body, at + HEAD_BYTES);
  const record = readBody(head, body);
  return record === undefined ? 'damaged' : { record, bytes };
}

/**
 * A power cut leaves zeros where bytes were not flushed, at the end or, since they need not be lost in order, in
 * between. Whole records may follow: they were of the same flush, unless one of them knows better.
 */
function whyNot(
  files: Files,
  file: number,
  at: number,
  fileBytes: number,
  isLost: boolean,
): 'torn' | 'damaged' {
  const endsInZeros = isZero(files, file, Math.max(at, fileBytes - MANY_ZEROS), fileBytes);
  return (isLost || endsInZeros) && !hasRecordBehind(files, file, at + 4, fileBytes, at) ? 'torn' : 'damaged';
}

/**
 * Whether what a device writes together is all zeros, as far as it belongs to the record: `maskSectors` writes none.
 */
function hasLostSector(at: number, record: Buffer): boolean {
  const first = SECTOR_BYTES - (at % SECTOR_BYTES);
  for (let [from, to] = [0, first]; from < record.length; [from, to] = [to, to + SECTOR_BYTES]) {
    if (record.subarray(from, to).every((byte) => byte === 0)) return true;
  }
  return false;
}

/** Whether a record from there on was written when more than `limit` bytes had been flushed. */
function hasRecordBehind(
  files: Files,
  file: number,
  from: number,
  fileBytes: number,
  limit: number,
): boolean {
  for (let at = from; at + HEAD_BYTES <= fileBytes; at += PIECE_BYTES) {
    const piece = read(files, file, at, Math.min(PIECE_BYTES + HEAD_BYTES, fileBytes - at));
    if (piece === undefined) return false;
    const end = Math.min(PIECE_BYTES, piece.length - HEAD_BYTES + 1);
    for (let i = 0; i < end; i += 4) {
      if (piece.readUInt32LE(i) !== RECORD_MARK) continue;
      const head = readHead(piece.subarray(i, i + HEAD_BYTES));
      if (head && head.flushedBytes > limit) return true;
    }
  }
  return false;
}

function isZero(files: Files, file: number, from: number, to: number): boolean {
  for (let at = from; at < to; at += PIECE_BYTES) {
    const piece = read(files, file, at, Math.min(PIECE_BYTES, to - at));
    if (!piece?.every((byte) => byte === 0)) return false;
  }
  return true;
}

/**
 * Memory of its own, so that the record's arrays are aligned and stay as they are; undefined if the file is shorter.
 */
function read(files: Files, file: number, at: number, length: number): Buffer | undefined {
  if (length < 0) return undefined;
  const bytes = Buffer.from(new ArrayBuffer(length));
  return readFully(files, file, bytes, at) === length ? bytes : undefined;
}

function openLog(files: Files, path: string): number {
  try {
    return files.open(path, constants.O_RDONLY);
  } catch (cause) {
    throw new UsageError(
      'FILE_NOT_FOUND',
      `The push log ${path} cannot be read: ${(cause as Error).message}. Check the path and its permissions.`,
      { path },
      cause,
    );
  }
}

function otherRelease(path: string): UsageError {
  return new UsageError(
    'CHECKPOINT_MISMATCH',
    `The push log ${path} was written by another release. Continue with that one, or give another folder.`,
    { path },
  );
}
