/**
 * Keeps two trainings out of one run folder: a file in it that is locked while a process trains there, and says which. What counts is
 * the lock of the system, which ends with its owner however that ends; the file that a killed one leaves behind blocks nobody.
 * Invariant: whoever holds the lock holds that of the file which is in the folder now. Only a regular file with one name is opened
 * and written: a run folder may come from somebody else, and a link in it may lead anywhere. Where files cannot be locked, all may train.
 */
import {
  closeSync,
  constants,
  fstatSync,
  ftruncateSync,
  lstatSync,
  openSync,
  readFileSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../base/index.ts';
import { lockFile } from '../memory/index.ts';

export const LOCK_FILE = 'training.lock';

export class RunLock {
  readonly #path: string;
  readonly #fd: number;

  private constructor(path: string, fd: number) {
    this.#path = path;
    this.#fd = fd;
  }

  /** Of a folder that is there. Refuses if another one trains in it. */
  static take(folder: string): RunLock {
    const path = join(folder, LOCK_FILE);
    for (;;) {
      const fd = open(path);
      if (!lockFile(fd)) {
        closeSync(fd);
        throw isTrained(folder, path);
      }
      // Its last owner may have removed it between the two calls.
      if (isAt(path, fd)) {
        ftruncateSync(fd);
        writeSync(fd, `${process.pid}\n`, 0);
        return new RunLock(path, fd);
      }
      closeSync(fd);
    }
  }

  release(): void {
    try {
      // Someone may have removed the whole folder, and train in a new one by now.
      if (isAt(this.#path, this.#fd)) rmSync(this.#path);
    } catch {
      // A file that is left blocks nobody.
    }
    closeSync(this.#fd);
  }
}

/** Whether the open file is the one that has this path. */
function isAt(path: string, fd: number): boolean {
  const [there, open] = [lstatSync(path, { throwIfNoEntry: false }), fstatSync(fd)];
  return there?.ino === open.ino && there.dev === open.dev;
}

/** Windows knows neither flag. A pipe that nobody reads would block without the second. */
const NOTHING_BUT_FILES = (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0);

function open(path: string): number {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDWR | constants.O_CREAT | NOTHING_BUT_FILES);
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    if (code === 'ELOOP') throw notAFile(path, 'is a symbolic link', cause);
    if (code === 'EISDIR') throw notAFile(path, 'is a folder', cause);
    throw new UsageError(
      'FILE_NOT_WRITTEN',
      `${path} could not be written: ${message}. Check the free space and the permissions of the folder, or give another by --output.`,
      { path },
      cause,
    );
  }
  const found = fstatSync(fd);
  // One that has just been removed by its last owner has no name.
  if (found.isFile() && found.nlink <= 1) return fd;
  closeSync(fd);
  throw notAFile(path, found.isFile() ? `has ${found.nlink} names` : 'is no regular file');
}

function notAFile(path: string, fault: string, cause?: unknown): UsageError {
  return new UsageError(
    'FILE_NOT_WRITTEN',
    `${path} ${fault}, and no run makes one like that. Look where it comes from and remove it, or give another folder by --output.`,
    { path },
    cause,
  );
}

function isTrained(folder: string, path: string): UsageError {
  const pid = ownerIn(path);
  return new UsageError(
    'OUTPUT_EXISTS',
    `${folder} is being trained by ${pid === undefined ? 'another process' : `process ${pid}`}; give another --output, or wait.`,
    { path: folder, pid },
  );
}

/** Undefined in the moments in which it has come or gone. */
function ownerIn(path: string): number | undefined {
  try {
    return Number.parseInt(readFileSync(path, 'utf8'), 10) || undefined;
  } catch {
    return undefined;
  }
}
