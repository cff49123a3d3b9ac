/**
 * Reads a push log back, one record at a time, up to the end or to the first bytes that are no whole record. A process
 * that was killed leaves at most one torn record, at the end. Invariant: what is given is a prefix of what was appended,
 * bit for bit, and `stop` says where it ends.
 */
import { constants } from 'node:fs';
import { readFully, UsageError } from '../../base/index.ts';
import type { Files } from '../../base/index.ts';
import { crc32 } from './crc32.ts';
import { CHECKSUM_BYTES, HEAD_BYTES, readBody, readHead, recordBytes } from './push-record.ts';
import type { LogRecord } from './push-record.ts';

export const LOG_MARK = Buffer.from('tributary-log-1\n');

export interface ReplayStop {
  /** Records that were given. */
  readonly records: number;
  /** Bytes of the log up to the end of the last one. */
  readonly atByte: number;
  readonly fileBytes: number;
  /**
   * 'end': all was read. 'torn': the file ends within a record, as a kill leaves it. 'damaged': there are enough bytes,
   * but they are no record.
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
      let atByte = 0;
      let records = 0;
      let next = readMark(files, file, fileBytes);
      while (typeof next !== 'string') {
        atByte += next.bytes;
        if (next.record) {
          records++;
          yield next.record;
        }
        next = readRecord(files, file, atByte, fileBytes);
      }
      this.#stop = { records, atByte, fileBytes, why: next };
    } finally {
      files.close(file);
    }
  }
}

type Next = ReplayStop['why'] | { readonly record?: LogRecord; readonly bytes: number };

/** A log that was killed at its birth has no mark yet, and no record. */
function readMark(files: Files, file: number, fileBytes: number): Next {
  const bytes = read(files, file, 0, Math.min(LOG_MARK.length, fileBytes));
  if (bytes?.length === LOG_MARK.length && bytes.equals(LOG_MARK)) return { bytes: bytes.length };
  return bytes?.equals(LOG_MARK.subarray(0, bytes.length)) ? 'torn' : 'damaged';
}

function readRecord(files: Files, file: number, at: number, fileBytes: number): Next {
  const left = fileBytes - at;
  if (left === 0) return 'end';
  if (left < HEAD_BYTES) return 'torn';
  const front = read(files, file, at, HEAD_BYTES);
  if (front === undefined) return 'torn';
  const head = readHead(front);
  if (head === undefined) return 'damaged';
  const bytes = recordBytes(head);
  // Also what keeps a damaged length from being allocated.
  if (!(bytes <= left)) return 'torn';
  const rest = read(files, file, at + HEAD_BYTES, bytes - HEAD_BYTES);
  if (rest === undefined) return 'torn';
  const body = rest.subarray(0, rest.length - CHECKSUM_BYTES);
  if (crc32(body, crc32(front, 0)) !== rest.readUInt32LE(body.length)) return 'damaged';
  const record = readBody(head, body);
  return record === undefined ? 'damaged' : { record, bytes };
}

/** Memory of its own, so that the record's arrays are aligned and stay as they are; undefined if the file is shorter. */
function read(files: Files, file: number, at: number, length: number): Buffer | undefined {
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
