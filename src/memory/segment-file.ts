/**
 * Named segments as files of the shared-memory file system: created, found, removed. It maps nothing; it
 * hands out open descriptors. Invariants: a file under a segment's name always has a whole header (it is
 * written under a temporary name and linked); names appear and disappear only while the folder, which no
 * other user can enter, is locked, so that two starters cannot both replace the same stale segment. The
 * lock is held for milliseconds, however large segments are.
 */
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../base/index.ts';
import { EINTR, ENOSPC, native } from './native.ts';
import { currentProcess, isAlive } from './process-identity.ts';
import {
  currentUser,
  defaultSegmentDirectory,
  errorCode,
  hasFolder,
  ifLockIsFree,
  SHARED_MEMORY,
  whileExistingFolderLocked,
  whileFolderLocked,
} from './segment-folder.ts';
import { decodeHeader, encodeHeader, HEADER_BYTES } from './segment-header.ts';
import type { SegmentHeader } from './segment-header.ts';

const PREFIX = 'tributary-';
const TEMPORARY_PREFIX = '.tributary-new-';
const NAME = /^[A-Za-z0-9._-]{1,100}$/;

export interface SegmentFile {
  readonly fd: number;
  readonly path: string;
  readonly inode: bigint;
  readonly byteLength: number;
}

/** Makes the file of a new segment and returns it open; the caller closes the descriptor. */
export function createSegmentFile(
  directory: string,
  name: string,
  byteLength: number,
  sweepFirst = true,
): SegmentFile {
  const path = segmentPath(directory, name);
  freeing((held) =>
    whileFolderLocked(directory, () => {
      if (sweepFirst) sweep(directory, held);
      if (fs.existsSync(path)) throw nameTaken(name, path);
    }),
  );
  const owner = currentProcess();
  // The owner, so that it can be swept; the rest, so that nobody can know the name before it is there.
  const unique = [owner.pid, owner.startTicks, owner.pidNamespace, randomBytes(8).toString('hex')];
  const temporary = join(directory, TEMPORARY_PREFIX + unique.join('-'));
  const fd = openNew(temporary);
  try {
    // The folder is not locked meanwhile: gigabytes take seconds.
    reserve(fd, path, byteLength + HEADER_BYTES);
    fs.writeSync(fd, encodeHeader({ byteLength, owner }), 0, HEADER_BYTES, 0);
    whileFolderLocked(directory, () => {
      if (fs.existsSync(path)) throw nameTaken(name, path);
      fs.linkSync(temporary, path);
    });
    return { fd, path, inode: fs.fstatSync(fd, { bigint: true }).ino, byteLength };
  } catch (error) {
    fs.closeSync(fd);
    throw error;
  } finally {
    fs.rmSync(temporary, { force: true });
  }
}

/** Opens the file of an existing segment; the caller closes the descriptor. */
export function openSegmentFile(directory: string, name: string): SegmentFile {
  const path = segmentPath(directory, name);
  let fd: number;
  hasFolder(directory);
  try {
    fd = fs.openSync(path, fs.constants.O_RDWR | fs.constants.O_NOFOLLOW);
  } catch (cause) {
    throw new UsageError(
      'SEGMENT_NOT_FOUND',
      `no segment '${name}' can be opened at ${path} (${errorCode(cause)}); start its owner first, with the same name and folder`,
      { name, path },
      cause,
    );
  }
  try {
    const stat = fs.fstatSync(fd, { bigint: true });
    const header = stat.isFile() ? readHeader(fd, Number(stat.size)) : 'it is not a regular file';
    if (typeof header === 'string') throw corrupt(name, path, header);
    if (stat.uid !== BigInt(currentUser())) throw corrupt(name, path, `it belongs to user ${stat.uid}`);
    return { fd, path, inode: stat.ino, byteLength: header.byteLength };
  } catch (error) {
    fs.closeSync(fd);
    throw error;
  }
}

/** Removes the name of a segment, if it still is this file's. */
export function unlinkSegmentFile(directory: string, file: Pick<SegmentFile, 'path' | 'inode'>): void {
  freeing((held) =>
    whileExistingFolderLocked(directory, () => {
      const stat = fs.lstatSync(file.path, { bigint: true, throwIfNoEntry: false });
      if (stat?.ino === file.inode) remove(file.path, held);
    }),
  );
}

/**
 * Removes segments whose owner is dead; returns their names. In the folder of the user also those that an older release left
 * beside it, unless somebody has locked the place, which any user may.
 */
export function removeStaleSegments(directory: string = defaultSegmentDirectory()): string[] {
  return freeing((held) => {
    const removed = whileExistingFolderLocked(directory, () => sweep(directory, held)) ?? [];
    if (directory === defaultSegmentDirectory()) {
      ifLockIsFree(SHARED_MEMORY, () => removed.push(...sweep(SHARED_MEMORY, held)));
    }
    return removed;
  });
}

/**
 * Files that `action` opens and removes while the folder is locked keep their memory until it is
 * unlocked: to free gigabytes takes long.
 */
function freeing<T>(action: (held: number[]) => T): T {
  const held: number[] = [];
  try {
    return action(held);
  } finally {
    for (const fd of held) fs.closeSync(fd);
  }
}

function sweep(directory: string, held: number[]): string[] {
  const removed: string[] = [];
  for (const entry of fs.readdirSync(directory)) {
    const path = join(directory, entry);
    // Another user's file is not ours to mind, also if this is root, nor worth the time to open it.
    if (!entry.includes(PREFIX) || !isOwn(path)) continue;
    if (entry.startsWith(TEMPORARY_PREFIX)) {
      if (isStaleTemporary(entry)) removeQuietly(path, held);
    } else if (entry.startsWith(PREFIX)) {
      const header = headerAt(path);
      if (typeof header === 'object' && !isAlive(header.owner) && removeQuietly(path, held)) {
        removed.push(entry.slice(PREFIX.length));
      }
    }
  }
  return removed;
}

function isStaleTemporary(entry: string): boolean {
  // Older releases wrote no random part.
  const parts = /^(\d{1,10})-(\d{1,19})-(\d{1,19})(?:-[0-9a-f]{16})?$/.exec(
    entry.slice(TEMPORARY_PREFIX.length),
  );
  if (parts === null) return false;
  const pid = Number(parts[1]);
  return pid > 0 && !isAlive({ pid, startTicks: BigInt(parts[2]!), pidNamespace: BigInt(parts[3]!) });
}

function isOwn(path: string): boolean {
  return fs.lstatSync(path, { throwIfNoEntry: false })?.uid === currentUser();
}

/** Its memory is freed when the descriptor that is added to `held` is closed. */
function remove(path: string, held: number[]): void {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = fs.constants;
  try {
    held.push(fs.openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  } catch {
    // Then it is freed at once.
  }
  fs.rmSync(path, { force: true });
}

function removeQuietly(path: string, held: number[]): boolean {
  try {
    remove(path, held);
    return true;
  } catch {
    return false;
  }
}

function headerAt(path: string): SegmentHeader | string {
  let fd: number | undefined;
  try {
    // Without O_NONBLOCK a FIFO under that name would hold us for ever.
    fd = fs.openSync(path, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK);
    const stat = fs.fstatSync(fd);
    return stat.isFile() ? readHeader(fd, stat.size) : 'it is not a regular file';
  } catch (error) {
    return `it cannot be read (${errorCode(error)})`;
  } finally {
    if (fd !== undefined) fs.closeSync(fd);
  }
}

function readHeader(fd: number, fileBytes: number): SegmentHeader | string {
  const content = Buffer.alloc(HEADER_BYTES);
  const count = fs.readSync(fd, content, 0, HEADER_BYTES, 0);
  return decodeHeader(content.subarray(0, count), fileBytes);
}

function nameTaken(name: string, path: string): UsageError {
  const header = headerAt(path);
  if (typeof header === 'string') {
    return new UsageError(
      'SEGMENT_EXISTS',
      `${path} exists, but is no segment of this version: ${header}; remove the file or choose another name`,
      { name, path },
    );
  }
  return new UsageError(
    'SEGMENT_EXISTS',
    `segment '${name}' exists at ${path} and its owner, process ${header.owner.pid}, is alive; stop that process or choose another name`,
    { name, path, ownerPid: header.owner.pid },
  );
}

function corrupt(name: string, path: string, reason: string): UsageError {
  return new UsageError(
    'SEGMENT_CORRUPT',
    `segment '${name}' at ${path} cannot be used: ${reason}; stop its owner, remove the file and start again with one version of Tributary`,
    { name, path, reason },
  );
}

function openNew(path: string): number {
  try {
    const { O_RDWR, O_CREAT, O_EXCL, O_NOFOLLOW } = fs.constants;
    return fs.openSync(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
  } catch (cause) {
    throw new UsageError(
      errorCode(cause) === 'ENOSPC' ? 'OUT_OF_SHARED_MEMORY' : 'FILE_NOT_FOUND',
      `${path} cannot be created (${errorCode(cause)}); make the folder writable or choose another with 'directory'`,
      { path },
      cause,
    );
  }
}

function reserve(fd: number, path: string, fileBytes: number): void {
  let errno: number;
  do errno = native().allocateFile(fd, fileBytes);
  while (errno === EINTR);
  if (errno === 0) return;
  const reason = errno === ENOSPC ? 'the file system is full' : `errno ${errno}`;
  throw new UsageError(
    'OUT_OF_SHARED_MEMORY',
    `${fileBytes} bytes for ${path} cannot be reserved: ${reason}; free shared memory or enlarge the file system (mount -o remount,size=...)`,
    { path, fileBytes, errno },
  );
}

function segmentPath(directory: string, name: string): string {
  if (!NAME.test(name)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `segment name '${name}' must be 1 to 100 letters, digits, dots, underscores or dashes; choose another name`,
      { name },
    );
  }
  return join(directory, PREFIX + name);
}
