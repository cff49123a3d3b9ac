/**
 * Keeps a folder for one process at a time: a file in it that is locked while the process uses the folder, and says
 * which process that is. What counts is the lock of the system, which ends with its owner however that ends; the file
 * that a killed one leaves behind blocks nobody. Invariant: whoever holds the lock holds that of the file which is in
 * the folder now. Only a regular file with one name is opened and written: a folder may come from somebody else, and
 * a link in it may lead anywhere. Where files cannot be locked, all may use the folder.
 */
import { constants, fstatSync, lstatSync } from 'node:fs';
import { readFully, systemFiles, UsageError, writeFully } from '../base/index.ts';
import type { Files } from '../base/index.ts';
import { lockFile } from './native.ts';

export interface LockableFiles extends Files {
  /** Takes the lock of an open file, without waiting; false if somebody else has it. It goes with the descriptor. */
  lock(file: number): boolean;
  /** How many names an open file has. */
  names(file: number): number;
  /** Whether the open file is the one that has this path. */
  isAt(path: string, file: number): boolean;
}

export const lockableFiles: LockableFiles = {
  ...systemFiles,
  lock: (file) => lockFile(file),
  names: (file) => fstatSync(file).nlink,
  isAt(path, file) {
    const [there, open] = [lstatSync(path, { throwIfNoEntry: false }), fstatSync(file)];
    return there?.ino === open.ino && there.dev === open.dev;
  },
};

export interface FolderLockOptions {
  readonly files: LockableFiles;
  /** Of the file that is locked, in a folder that is there. */
  readonly path: string;
  /** Of that file if it is made. */
  readonly mode: number;
  /**
   * The error for whoever comes second. `pid`: who holds the lock; undefined in the moments in which it comes or
   * goes.
   */
  readonly refusal: (pid: number | undefined) => Error;
}

/** Windows knows neither flag. A pipe that nobody reads would block without the second. */
const NOTHING_BUT_FILES = (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0);
/** Of a process number, so that the file is as long whoever has it. */
const DIGITS = 10;

export class FolderLock {
  readonly #files: LockableFiles;
  readonly #path: string;
  readonly #file: number;

  private constructor(files: LockableFiles, path: string, file: number) {
    this.#files = files;
    this.#path = path;
    this.#file = file;
  }

  /** Throws the refusal if somebody else has the folder, FILE_NOT_WRITTEN if the file cannot be used. */
  static take({ files, path, mode, refusal }: FolderLockOptions): FolderLock {
    for (;;) {
      const file = open(files, path, mode);
      try {
        if (!files.lock(file)) throw refusal(ownerIn(files, file));
        // Its last owner may have removed it between the two calls.
        if (files.isAt(path, file)) {
          sign(files, file);
          return new FolderLock(files, path, file);
        }
      } catch (error) {
        files.close(file);
        throw error;
      }
      files.close(file);
    }
  }

  release(): void {
    try {
      // Someone may have removed the whole folder, and use a new one by now.
      if (this.#files.isAt(this.#path, this.#file)) this.#files.remove(this.#path);
    } catch {
      // A file that is left blocks nobody.
    }
    this.#files.close(this.#file);
  }
}

function open(files: LockableFiles, path: string, mode: number): number {
  let file: number;
  try {
    file = files.open(path, constants.O_RDWR | constants.O_CREAT | NOTHING_BUT_FILES, mode);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code === 'ELOOP') throw notAFile(path, 'is a symbolic link', cause);
    if (code === 'EISDIR') throw notAFile(path, 'is a folder', cause);
    throw notWritten(path, cause);
  }
  const { isFile } = files.size(file);
  const names = files.names(file);
  // One that has just been removed by its last owner has no name.
  if (isFile && names <= 1) return file;
  files.close(file);
  throw notAFile(path, isFile ? `has ${names} names` : 'is no regular file');
}

function sign(files: LockableFiles, file: number): void {
  try {
    writeFully(files, file, Buffer.from(`${String(process.pid).padEnd(DIGITS)}\n`), 0);
  } catch {
    // The lock holds on a full disk, too; only the name of its owner is missing.
  }
}

function ownerIn(files: LockableFiles, file: number): number | undefined {
  const text = Buffer.alloc(DIGITS);
  try {
    readFully(files, file, text, 0);
  } catch {
    return undefined;
  }
  return Number.parseInt(text.toString('latin1'), 10) || undefined;
}

function notWritten(path: string, cause: unknown): UsageError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new UsageError(
    'FILE_NOT_WRITTEN',
    `${path} could not be written: ${reason}. Check the free space and the permissions of the folder, or give another.`,
    { path },
    cause,
  );
}

function notAFile(path: string, fault: string, cause?: unknown): UsageError {
  return new UsageError(
    'FILE_NOT_WRITTEN',
    `${path} ${fault}, and the lock of a folder is never like that. Look where it comes from and remove it, or give another folder.`,
    { path },
    cause,
  );
}
