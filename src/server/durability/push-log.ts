/**
 * The pushes that one core has taken since a checkpoint, each written before it is acknowledged. One log for each core:
 * a chunk belongs to one core for its whole life, so no order between cores has to be kept, and appending needs no
 * lock and no other thread. All calls block; they are for core threads. Invariant: when `append` has returned, the record
 * survives a kill of the process (`kill -9`), since the system holds its bytes; it is not flushed to the device, so a
 * power cut or a crash of the system may lose the last ones. Checkpoints survive those too.
 */
import { constants } from 'node:fs';
import { join } from 'node:path';
import { UsageError, writeFully } from '../../base/index.ts';
import type { Files } from '../../base/index.ts';
import { crc32 } from './crc32.ts';
import { LOG_MARK, LogReplay } from './log-replay.ts';
import type { ReplayStop } from './log-replay.ts';
import { CHECKSUM_BYTES, recordParts } from './push-record.ts';
import type { LogRecord } from './push-record.ts';
import { isCount } from './server-state.ts';

/** Small enough to stay in the cache between copy, checksum and write. */
const BUFFER_BYTES = 2 ** 18;
const NAME = /^[a-z0-9][a-z0-9_-]{0,63}$/;

export interface PushLogOptions {
  readonly files: Files;
  /** Where the logs lie; made if it is not there. */
  readonly folder: string;
  /** Of this core, the same after each restart: small letters, digits, '-' and '_'. */
  readonly name: string;
  /** The checkpoint that the log follows: it holds what was pushed after that. After a restart: the last of `list`. */
  readonly step: number;
}

export interface StoredLog {
  /** The checkpoint that it follows. */
  readonly step: number;
  readonly path: string;
}

export class PushLog {
  readonly #files: Files;
  readonly #folder: string;
  readonly #name: string;
  readonly #buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  #step: number;
  #file: number;
  /** Bytes up to the end of the last whole record. */
  #bytes: number;
  /** Why nothing can be appended any more. */
  #broken: unknown;

  /** Begins the log of that step, or continues it behind its last whole record if it is there. */
  constructor({ files, folder, name, step }: PushLogOptions) {
    this.#files = files;
    checkName(name);
    checkStep(step);
    this.#folder = folder;
    this.#name = name;
    this.#step = step;
    try {
      files.makeFolder(folder, 0o777);
    } catch (cause) {
      throw notWritten(folder, cause);
    }
    const newest = PushLog.list(files, folder, name).at(-1);
    if (newest && newest.step > step) throw wouldGoBack(name, step, newest.step);
    const opened = openForAppending(files, pathOf(folder, name, step));
    this.#file = opened.file;
    this.#bytes = opened.bytes;
  }

  /** The checkpoint that the log under way follows. */
  get step(): number {
    return this.#step;
  }

  get path(): string {
    return pathOf(this.#folder, this.#name, this.#step);
  }

  /** Writes one record. If that fails, FILE_NOT_WRITTEN is thrown, and the log is as before: the push must be refused. */
  append(record: LogRecord): void {
    if (this.#broken !== undefined) throw notWritten(this.path, this.#broken);
    const parts = recordParts(record);
    try {
      this.#bytes += this.#write(parts);
    } catch (cause) {
      this.#undo(cause);
      throw notWritten(this.path, cause);
    }
  }

  /**
   * Begins the log that follows the checkpoint of `step`, at the moment that the checkpoint is cut, not when it is
   * written: the log before it stays until `removeBefore`, since a restart may have to begin at the checkpoint before.
   */
  rotate(step: number): void {
    checkStep(step);
    if (this.#file < 0) throw notWritten(this.path, this.#broken);
    if (step <= this.#step) throw wouldGoBack(this.#name, step, this.#step + 1);
    const opened = openForAppending(this.#files, pathOf(this.#folder, this.#name, step));
    this.#files.close(this.#file);
    this.#step = step;
    this.#file = opened.file;
    this.#bytes = opened.bytes;
    this.#broken = undefined;
  }

  /**
   * Removes the logs of this core that no restart needs: those before the checkpoint of `step`, which must be durable.
   * To be able to fall back to the checkpoint before the last, give the step of that one.
   */
  removeBefore(step: number): void {
    for (const stored of PushLog.list(this.#files, this.#folder, this.#name)) {
      if (stored.step < Math.min(step, this.#step)) this.#files.remove(stored.path);
    }
  }

  close(): void {
    if (this.#file < 0) return;
    this.#files.close(this.#file);
    this.#file = -1;
    this.#broken = new Error('it is closed');
  }

  /** The logs of a core, oldest first: after a checkpoint is read, those from its step on are replayed in this order. */
  static list(files: Files, folder: string, name: string): StoredLog[] {
    checkName(name);
    let names: string[];
    try {
      names = files.list(folder);
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw new UsageError(
        'FILE_NOT_FOUND',
        `The folder ${folder} of push logs cannot be read: ${String(cause)}.`,
        {
          path: folder,
        },
      );
    }
    return names
      .flatMap((file) => {
        const step = /^(.*)\.(\d{12,16})\.pushes$/.exec(file);
        return step?.[1] === name ? [{ step: Number(step[2]), path: join(folder, file) }] : [];
      })
      .sort((a, b) => a.step - b.step);
  }

  /** The records of a log, up to where a kill tore it; where that is can be asked when they have been read. */
  static replay(files: Files, path: string): LogReplay {
    return new LogReplay(files, path);
  }

  /**
   * Everything goes through the log's own buffer: the bytes of the checksum are those that are written, even if a worker
   * changes its gradient meanwhile, and a small record is one call of the system.
   */
  #write(parts: readonly Uint8Array[]): number {
    const buffer = this.#buffer;
    let filled = 0;
    let crc = 0;
    let written = 0;
    /** Where in the buffer the checksum has got to. */
    let summed = 0;
    const sum = () => {
      crc = crc32(buffer.subarray(summed, filled), crc);
      summed = filled;
    };
    const flush = () => {
      writeFully(this.#files, this.#file, buffer.subarray(0, filled), this.#bytes + written);
      written += filled;
      filled = summed = 0;
    };
    for (const part of parts) {
      for (let start = 0; start < part.length;) {
        const piece = part.subarray(start, start + BUFFER_BYTES - filled);
        buffer.set(piece, filled);
        filled += piece.length;
        start += piece.length;
        if (filled < BUFFER_BYTES) continue;
        sum();
        flush();
      }
    }
    sum();
    if (filled + CHECKSUM_BYTES > BUFFER_BYTES) flush();
    filled = buffer.writeUInt32LE(crc, filled);
    flush();
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
}

function openForAppending(files: Files, path: string): { file: number; bytes: number } {
  let file: number | undefined;
  try {
    file = files.open(path, constants.O_RDWR | constants.O_CREAT, 0o644);
    const stop = endOf(files, path);
    if (stop.why === 'damaged') {
      const left = stop.fileBytes - stop.atByte;
      throw new UsageError(
        'CHECKPOINT_CORRUPT',
        `The push log ${path} is damaged at byte ${stop.atByte}, with ${left} bytes behind it, so nothing can be appended. ` +
          'Replay what is whole, write a checkpoint, and begin a new log after it.',
        { path, ...stop },
      );
    }
    files.truncate(file, stop.atByte);
    if (stop.atByte > 0) return { file, bytes: stop.atByte };
    writeFully(files, file, LOG_MARK, 0);
    return { file, bytes: LOG_MARK.length };
  } catch (cause) {
    if (file !== undefined) files.close(file);
    throw cause instanceof UsageError ? cause : notWritten(path, cause);
  }
}

function endOf(files: Files, path: string): ReplayStop {
  const replay = new LogReplay(files, path);
  const records = replay[Symbol.iterator]();
  while (!records.next().done);
  return replay.stop!;
}

function pathOf(folder: string, name: string, step: number): string {
  return join(folder, `${name}.${String(step).padStart(12, '0')}.pushes`);
}

function checkName(name: string): void {
  if (NAME.test(name)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `A push log cannot be named ${JSON.stringify(name)}; use up to 64 small letters, digits, '-' and '_'.`,
    { name },
  );
}

function checkStep(step: number): void {
  if (isCount(step)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `The step of a push log is ${String(step)}; give a whole number from 0.`,
    {
      step,
    },
  );
}

/** Logs are replayed by their steps, so nothing may be appended to one that has a successor. */
function wouldGoBack(name: string, actual: number, expected: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `The push log '${name}' cannot go on at step ${actual}, expected at least ${expected}; after a restart give the last listed step.`,
    { name, expected, actual },
  );
}

function notWritten(path: string, cause: unknown): UsageError {
  return new UsageError(
    'FILE_NOT_WRITTEN',
    `The push log ${path} could not be written: ${cause instanceof Error ? cause.message : String(cause)}. ` +
      'The push was not taken; check the free space and the permissions of the folder.',
    { path },
    cause,
  );
}
