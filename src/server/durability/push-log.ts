/**
 * The pushes that one core has taken since a checkpoint, each written before it is acknowledged; with them the first
 * values of keys and the optimizers. One chain of logs for each core: a chunk belongs to one core for its whole life,
 * so no order between cores has to be kept, and appending needs no lock and no other thread. All calls block; they
 * are for core threads. Invariants: when `append` has returned, the record survives a kill of the process, since the
 * system holds its bytes; when `flush` has returned after it, a power cut as well; after a flush that failed nothing
 * is appended any more.
 */
import { constants } from 'node:fs';
import { join } from 'node:path';
import { flushFolder, OWNER_FILE, UsageError, writeFully } from '../../base/index.ts';
import type { Files } from '../../base/index.ts';
import { crc32 } from './crc32.ts';
import { originBytes } from './log-replay.ts';
import type { LogOrigin } from './log-replay.ts';
import type { LogRoom } from './log-room.ts';
import { CHECKSUM_BYTES, HEAD_BYTES, maskSectors, recordParts } from './push-record.ts';
import type { LogRecord } from './push-record.ts';

/** Small enough to stay in the cache between copy, checksum and write. */
const BUFFER_BYTES = 2 ** 18;
const NAME = /^[a-z0-9][a-z0-9_-]{0,63}$/;

export interface PushLogOptions {
  readonly files: Files;
  /** Where the logs lie: that of the checkpoints, which is there. */
  readonly folder: string;
  /** Of this core, the same after each restart: small letters, digits, '-' and '_'. */
  readonly name: string;
  readonly origin: LogOrigin;
  /** What it may write. Default: as much as the disk has room for. */
  readonly room?: LogRoom | undefined;
}

export interface StoredLog {
  /** Logs of a core are numbered in the order in which they were begun. */
  readonly number: number;
  readonly path: string;
}

export class PushLog {
  readonly number: number;
  readonly path: string;
  readonly #files: Files;
  readonly #origin: LogOrigin;
  readonly #room: LogRoom | undefined;
  readonly #buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  readonly #file: number;
  /** Bytes up to the end of the last whole record. */
  #bytes: number;
  #flushedBytes: number;
  #records = 0;
  /** First values or an optimizer were appended since the last flush: without them all that follows would be wrong. */
  #hasRule = false;
  #isClosed = false;
  /** Why nothing can be appended any more. */
  #broken: unknown;

  /** Begins a new log behind all that there are. */
  constructor({ files, folder, name, origin, room }: PushLogOptions) {
    this.#files = files;
    this.#origin = origin;
    this.#room = room;
    this.number = (listLogs(files, folder, name).at(-1)?.number ?? 0) + 1;
    this.path = join(folder, `${name}.${String(this.number).padStart(12, '0')}.pushes`);
    const bytes = originBytes(origin);
    let file: number | undefined;
    try {
      const { O_CREAT, O_EXCL, O_RDWR } = constants;
      file = files.open(this.path, O_RDWR | O_CREAT | O_EXCL, OWNER_FILE);
      writeFully(files, file, bytes, 0);
      files.flush(file);
      flushFolder(files, folder);
    } catch (cause) {
      if (file !== undefined) this.#discard(file);
      throw notWritten(this.path, cause);
    }
    this.#file = file;
    this.#bytes = this.#flushedBytes = bytes.length;
    room?.note(this.number);
  }

  get records(): number {
    return this.#records;
  }

  /** Whether there are records that a power cut would lose, although they are to survive it. */
  get isDirty(): boolean {
    const isAwaited = this.#origin.isFlushed || this.#hasRule;
    return isAwaited && this.#broken === undefined && this.#flushedBytes < this.#bytes;
  }

  /** Why it cannot be used any more; undefined if it can. */
  get failure(): UsageError | undefined {
    return this.#broken === undefined ? undefined : broken(this.path, this.#broken);
  }

  /**
   * Writes one record. If that fails, or there is no room, FILE_NOT_WRITTEN is thrown, and the log is as before: the
   * push must be refused.
   */
  append(record: LogRecord): void {
    if (this.#broken !== undefined) throw this.failure!;
    const parts = recordParts(record, this.#flushedBytes);
    this.#room?.check(parts.reduce((sum, { byteLength }) => sum + byteLength, CHECKSUM_BYTES));
    try {
      const written = this.#write(parts);
      this.#bytes += written;
      this.#records++;
      this.#room?.add(this.number, written);
      this.#hasRule ||= record.kind === 'values' || record.kind === 'optimizer';
    } catch (cause) {
      this.#undo(cause);
      throw notWritten(this.path, cause);
    }
  }

  /**
   * Makes all records survive a power cut. If that fails, none of those since the last flush may be acknowledged: the
   * system forgets what it could not write, and another flush would succeed without it.
   */
  flush(): void {
    if (this.#broken !== undefined) throw this.failure!;
    if (this.isDirty) this.#flush();
  }

  /** Makes all records survive a power cut, whatever was asked for: the next log names how many there are. */
  seal(): void {
    if (this.#broken !== undefined) throw this.failure!;
    if (this.#flushedBytes < this.#bytes) this.#flush();
  }

  #flush(): void {
    try {
      this.#files.flush(this.#file);
    } catch (cause) {
      this.#broken = cause;
      throw this.failure!;
    }
    this.#flushedBytes = this.#bytes;
    this.#hasRule = false;
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#broken ??= new Error('it is closed');
    this.#files.close(this.#file);
  }

  /**
   * Everything goes through the log's own buffer: the bytes of the checksum are those that are written, even if a
   * worker changes its gradient meanwhile, and a small record is one call of the system.
   */
  #write(parts: readonly Uint8Array[]): number {
    const buffer = this.#buffer;
    let filled = 0;
    let crc = 0;
    let written = 0;
    const seal = () => {
      const masked = written === 0 ? HEAD_BYTES : 0;
      maskSectors(buffer.subarray(masked, filled), this.#bytes + written + masked);
      crc = crc32(buffer.subarray(0, filled), crc);
    };
    const empty = () => {
      writeFully(this.#files, this.#file, buffer.subarray(0, filled), this.#bytes + written);
      written += filled;
      filled = 0;
    };
    for (const part of parts) {
      for (let start = 0; start < part.length;) {
        const piece = part.subarray(start, start + BUFFER_BYTES - filled);
        buffer.set(piece, filled);
        filled += piece.length;
        start += piece.length;
        if (filled < BUFFER_BYTES) continue;
        seal();
        empty();
      }
    }
    seal();
    if (filled + CHECKSUM_BYTES > BUFFER_BYTES) empty();
    filled = buffer.writeUInt32LE(crc, filled);
    empty();
    return written;
  }

  /** A half record would hide all that come after it. */
  #undo(cause: unknown): void {
    try {
      this.#files.truncate(this.#file, this.#bytes);
    } catch {
      this.#broken = cause;
    }
  }

  /** Nothing refers to it; if it cannot be removed it stays, empty, and is passed over. */
  #discard(file: number): void {
    try {
      this.#files.close(file);
      this.#files.remove(this.path);
    } catch {
      // The first error tells more.
    }
  }
}

/** The logs of a core, oldest first. */
export function listLogs(files: Files, folder: string, name: string): StoredLog[] {
  if (!NAME.test(name)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `A push log cannot be named ${JSON.stringify(name)}; use up to 64 small letters, digits, '-' and '_'.`,
      { name },
    );
  }
  return allLogs(files, folder)
    .filter((log) => log.name === name)
    .map(({ number, path }) => ({ number, path }));
}

/** How large a log is. */
export function bytesOfLog(files: Files, { path }: StoredLog): number {
  let file: number | undefined;
  try {
    file = files.open(path, constants.O_RDONLY);
    return files.size(file).bytes;
  } catch (cause) {
    throw notWritten(path, cause);
  } finally {
    if (file !== undefined) files.close(file);
  }
}

/** Those of all cores. */
export function allLogs(files: Files, folder: string): (StoredLog & { readonly name: string })[] {
  let names: string[];
  try {
    names = files.list(folder);
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw new UsageError(
      'FILE_NOT_FOUND',
      `The folder ${folder} of push logs cannot be read: ${String(cause)}. Check the path and its permissions.`,
      { path: folder },
      cause,
    );
  }
  return names
    .flatMap((file) => {
      const match = /^(.*)\.(\d{12,16})\.pushes$/.exec(file);
      return match ? [{ name: match[1]!, number: Number(match[2]), path: join(folder, file) }] : [];
    })
    .sort((a, b) => a.number - b.number);
}

export function notWritten(path: string, cause: unknown): UsageError {
  return new UsageError(
    'FILE_NOT_WRITTEN',
    `The push log ${path} could not be written: ${messageOf(cause)}. ` +
      'Nothing was changed; check the free space and the permissions of the folder.',
    { path },
    cause,
  );
}

function broken(path: string, cause: unknown): UsageError {
  return new UsageError(
    'FILE_NOT_WRITTEN',
    `The push log ${path} cannot be used any more: ${messageOf(cause)}. Whether pushes that were refused for it are kept ` +
      'is not known. Check the device, then call checkpoint(): a new log begins when the checkpoint is on the disk.',
    { path },
    cause,
  );
}

function messageOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
