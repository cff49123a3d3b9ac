/**
 * The folder that holds the named segments of one user: where it is, made, checked and locked. Not the files in it; see
 * `segment-file.ts`. Invariant: nothing is made, opened or removed in a folder that another user owns or may enter, so that
 * nobody else can see a segment, guess a name that is about to be used, or hold the lock.
 */
import * as fs from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { PeerError, UsageError } from '../base/index.ts';
import { native } from './native.ts';

/** The file system for shared memory. Releases before the one with private folders kept their segments in it directly. */
export const SHARED_MEMORY = '/dev/shm';

const LOCK_TIMEOUT_MS = 10_000;
const LOCK_PAUSE_MS = 2;
const OTHERS = 0o077;
const WRITABLE_BY_ALL = 0o002;
const STICKY = 0o1000;

export interface FolderLockOptions {
  /** Longest wait for another process of this user that holds the lock, in milliseconds. Default 10,000. */
  readonly timeoutMs?: number;
}

/**
 * The folder of this user: `/dev/shm/tributary-<uid>`. Where another user has put something under that name, the folder `tributary`
 * in `/run/user/<uid>`, which only the system makes, if there is one.
 */
export function defaultSegmentDirectory(): string {
  const user = currentUser();
  const usual = join(SHARED_MEMORY, `tributary-${user}`);
  const there = fs.lstatSync(usual, { throwIfNoEntry: false });
  if (!there || there.uid === user) return usual;
  const own = join('/run/user', String(user));
  return fs.lstatSync(own, { throwIfNoEntry: false })?.uid === user ? join(own, 'tributary') : usual;
}

/** The user who owns what this process makes. */
export function currentUser(): number {
  return process.geteuid?.() ?? 0;
}

/** Runs something while no other process makes or removes segments in the folder. The default one is made if it is not there. */
export function whileFolderLocked<T>(directory: string, action: () => T, options?: FolderLockOptions): T {
  return whileLocked(openFolder(directory) ?? makeDefaultFolder(directory), directory, action, options);
}

/** As `whileFolderLocked` where there is such a folder; undefined where there is none. */
export function whileExistingFolderLocked<T>(directory: string, action: () => T): T | undefined {
  const fd = openFolder(directory);
  return fd === undefined ? undefined : whileLocked(fd, directory, action);
}

/** Whether the folder is there; throws if it is not private. */
export function hasFolder(directory: string): boolean {
  const fd = openFolder(directory);
  if (fd !== undefined) fs.closeSync(fd);
  return fd !== undefined;
}

/** Runs something if the lock of any folder can be had at once. */
export function ifLockIsFree(directory: string, action: () => void): void {
  let fd: number;
  try {
    fd = fs.openSync(directory, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  } catch {
    return;
  }
  try {
    if (native().tryLock(fd) === 0) action();
  } finally {
    fs.closeSync(fd);
  }
}

/** Closes the descriptor at the end, and the lock goes with it. */
function whileLocked<T>(fd: number, directory: string, action: () => T, options: FolderLockOptions = {}): T {
  try {
    takeLock(fd, directory, options.timeoutMs ?? LOCK_TIMEOUT_MS);
    return action();
  } finally {
    fs.closeSync(fd);
  }
}

/** Checked and open; undefined if there is no such folder. */
function openFolder(directory: string): number | undefined {
  // A slash at the end would follow a symbolic link.
  const path = resolve(directory);
  let fd: number;
  try {
    const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = fs.constants;
    fd = fs.openSync(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  } catch (cause) {
    const there = fs.lstatSync(path, { throwIfNoEntry: false });
    if (!there) return undefined;
    throw notPrivate(path, faultOf(there, path)) ?? cannotOpen(path, cause);
  }
  const error = notPrivate(path, faultOf(fs.fstatSync(fd), path));
  if (error === undefined) return fd;
  fs.closeSync(fd);
  throw error;
}

/** Only that one: in a mistyped path segments would land on a disk. */
function makeDefaultFolder(directory: string): number {
  const path = resolve(directory);
  if (path !== defaultSegmentDirectory()) throw cannotOpen(path, { code: 'ENOENT' });
  try {
    fs.mkdirSync(path, 0o700);
  } catch (cause) {
    // Another process of this user may have been faster; whose it is, is checked below.
    if (errorCode(cause) !== 'EEXIST') throw cannotOpen(path, cause);
  }
  const fd = openFolder(path);
  if (fd === undefined) throw cannotOpen(path, { code: 'ENOENT' });
  return fd;
}

interface Fault {
  readonly what: string;
  readonly nextStep: string;
}

function faultOf(stat: fs.Stats, path: string): Fault | undefined {
  const user = currentUser();
  const another = 'remove it, or give another folder';
  if (stat.isSymbolicLink()) {
    return { what: 'is a symbolic link', nextStep: `${another}, not a link to one` };
  }
  if (!stat.isDirectory()) return { what: 'is not a folder', nextStep: another };
  if (stat.uid !== user) {
    return {
      what: `belongs to user ${stat.uid}, and this process runs as user ${user}`,
      nextStep: `let user ${stat.uid} or root remove it, or give a folder of your own`,
    };
  }
  if ((stat.mode & OTHERS) !== 0) {
    return {
      what: `is open to other users (mode ${modeText(stat)}), who could lock it or look into it`,
      nextStep: `run 'chmod 700 ${path}' if nobody else should have changed what is in it, or give a folder made with 'mkdir -m 700'`,
    };
  }
  const parent = fs.statSync(dirname(path));
  if ((parent.mode & WRITABLE_BY_ALL) === 0 || (parent.mode & STICKY) !== 0) return undefined;
  return {
    what: `lies in a folder in which every user can replace it (mode ${modeText(parent)})`,
    nextStep: `run 'chmod +t ${dirname(path)}', or give a folder elsewhere`,
  };
}

function modeText({ mode }: fs.Stats): string {
  return `0${(mode & 0o7777).toString(8)}`;
}

function notPrivate(path: string, fault: Fault | undefined): UsageError | undefined {
  if (!fault) return undefined;
  return new UsageError(
    'FOLDER_NOT_PRIVATE',
    `the folder for shared memory, ${path}, cannot be used: it ${fault.what}; ${fault.nextStep}`,
    { directory: path },
  );
}

function cannotOpen(path: string, cause: unknown): UsageError {
  return new UsageError(
    'FILE_NOT_FOUND',
    `the folder for shared memory, ${path}, cannot be opened (${errorCode(cause)}); mount a tmpfs at ${dirname(path)}, or give a folder of your own, made with 'mkdir -m 700'`,
    { directory: path },
    cause,
  );
}

function takeLock(fd: number, directory: string, timeoutMs: number): void {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  const deadline = performance.now() + timeoutMs;
  while (native().tryLock(fd) !== 0) {
    if (performance.now() >= deadline) throw lockTimeout(fd, directory, timeoutMs);
    Atomics.wait(pause, 0, 0, LOCK_PAUSE_MS);
  }
}

function lockTimeout(fd: number, directory: string, timeoutMs: number): PeerError {
  const holderPid = lockHolder(fd);
  const holder =
    holderPid === undefined
      ? 'a process that cannot be seen from here'
      : `process ${holderPid} (${commandOf(holderPid)})`;
  return new PeerError(
    'TIMEOUT',
    `waited ${timeoutMs} ms for the lock of ${directory}, to make or remove a segment there; ${holder} holds it. It is held for milliseconds, so look whether that process is stopped, end it, and try again`,
    { directory, holderPid },
  );
}

/** The process whose lock the kernel lists for the file; undefined if it is of another PID namespace, or gone by now. */
function lockHolder(fd: number): number | undefined {
  const { dev, ino } = fs.fstatSync(fd, { bigint: true });
  // As the kernel writes it: two halves in hexadecimal, the inode in decimal. The bits are those of glibc's dev_t.
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & ~0xffn);
  const hex = (half: bigint) => half.toString(16).padStart(2, '0');
  const file = `${hex(major)}:${hex(minor)}:${ino}`;
  for (const line of readText('/proc/locks').split('\n')) {
    const [, type, , , pid, at] = line.split(/\s+/);
    if (type === 'FLOCK' && at === file && Number(pid) > 0) return Number(pid);
  }
  return undefined;
}

/** The short name only: what else is on its command line may be secret, and comes from whoever started it. */
function commandOf(pid: number): string {
  return readText(`/proc/${pid}/comm`).replace(/[^\x20-\x7e]/g, '') || 'its command is not known';
}

function readText(path: string): string {
  try {
    return fs.readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

export function errorCode(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? String(error);
}
