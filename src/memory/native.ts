/**
 * The few libc calls shared memory needs, through koffi, on Linux x64 and arm64. Not a general binding.
 * Nothing native is loaded before the first call of `native()`, so that a private space works on any
 * system. Invariant: every function returns 0 or a result, or the errno as `{ errno }`; none throws.
 */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { UsageError } from '../base/index.ts';

const PROT_READ_WRITE = 0x3;
const MAP_SHARED = 0x01;
const MAP_PRIVATE = 0x02;
const MAP_FIXED = 0x10;
const MAP_ANONYMOUS = 0x20;
const MAP_NORESERVE = 0x4000;
const MAP_POPULATE = 0x8000;
const MADV_HUGEPAGE = 14;
const LOCK_EXCLUSIVE_NONBLOCKING = 0x2 | 0x4;
const FUTEX_WAIT = 0;
const FUTEX_WAKE = 1;
const FUTEX_SYSCALL: Readonly<Record<string, number>> = { x64: 202, arm64: 98 };

export const EINTR = 4;
export const EAGAIN = 11;
export const ENOSPC = 28;
export const ETIMEDOUT = 110;

export interface Native {
  /** Native address of the first byte of a view on a WebAssembly memory. */
  addressOf(view: Uint8Array): bigint;
  /** Maps a file over a range of the memory; returns an errno, 0 for success. */
  mapShared(address: bigint, byteLength: number, fd: number): number;
  /** Puts fresh zeroed private memory over a range; returns an errno, 0 for success. */
  mapAnonymous(address: bigint, byteLength: number): number;
  /** Asks for huge pages in a range of private memory; a system that has none may refuse, which changes nothing. */
  preferHugePages(address: bigint, byteLength: number): void;
  /** Reserves the blocks of a file, so that a full file system is an error now and no SIGBUS later. */
  allocateFile(fd: number, byteLength: number): number;
  /** Takes the lock of an open file or folder without waiting; it goes with the descriptor. */
  tryLock(fd: number): number;
  /** Sleeps while the word holds `expected`; 0 when woken, else an errno. */
  futexWait(address: bigint, expected: number, timeoutMs: number): number;
  /** Wakes up to `count` sleepers in any process; returns how many. */
  futexWake(address: bigint, count: number): number;
  /** Lets another thread that is ready run on this processor. */
  yieldProcessor(): void;
}

/** Whether files can be mapped over the memory here. */
export function hasNative(): boolean {
  return process.platform === 'linux' && process.arch in FUTEX_SYSCALL;
}

let loaded: Native | undefined;

/** Loads libc once for each thread. */
export function native(): Native {
  loaded ??= load();
  return loaded;
}

function load(): Native {
  if (!hasNative()) {
    throw new UsageError(
      'MISSING_COMPONENT',
      `shared memory between processes needs Linux on x64 or arm64, this is ${process.platform} on ${process.arch}; run the learners as threads of one process instead`,
      { platform: process.platform, arch: process.arch },
    );
  }
  // koffi is loaded late on purpose: importing this file must not load native code.
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  const libc = koffi.load(null);
  type Call = (...args: readonly (number | bigint | BigInt64Array | null)[]) => number | bigint;
  const mmap = libc.func('mmap', 'int64', ['uint64', 'size_t', 'int', 'int', 'int', 'int64']) as Call;
  const madvise = libc.func('madvise', 'int', ['uint64', 'size_t', 'int']) as Call;
  const fallocate = libc.func('posix_fallocate', 'int', ['int', 'int64', 'int64']) as Call;
  const flock = libc.func('flock', 'int', ['int', 'int']) as Call;
  const schedYield = libc.func('sched_yield', 'int', []) as Call;
  const futexArguments = ['long', 'uint64', 'int', 'int', 'void *', 'uint64', 'int'];
  const syscall = libc.func('syscall', 'long', futexArguments) as Call;
  const futexNumber = FUTEX_SYSCALL[process.arch]!;
  const timespec = new BigInt64Array(2);

  function map(address: bigint, byteLength: number, flags: number, fd: number): number {
    const result = mmap(address, byteLength, PROT_READ_WRITE, MAP_FIXED | flags, fd, 0);
    return Number(result) === -1 ? koffi.errno() : 0;
  }

  function futexWait(address: bigint, expected: number, timeoutMs: number): number {
    const wholeSeconds = Math.floor(timeoutMs / 1000);
    timespec[0] = BigInt(wholeSeconds);
    timespec[1] = BigInt(Math.floor((timeoutMs - wholeSeconds * 1000) * 1e6));
    const result = syscall(futexNumber, address, FUTEX_WAIT, expected, timespec, 0, 0);
    return Number(result) === -1 ? koffi.errno() : 0;
  }

  return {
    addressOf: (view) => koffi.address(view),
    mapShared: (address, byteLength, fd) => map(address, byteLength, MAP_SHARED | MAP_POPULATE, fd),
    mapAnonymous: (address, byteLength) =>
      map(address, byteLength, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1),
    preferHugePages: (address, byteLength) => void madvise(address, byteLength, MADV_HUGEPAGE),
    allocateFile: (fd, byteLength) => Number(fallocate(fd, 0, byteLength)),
    tryLock: (fd) => (Number(flock(fd, LOCK_EXCLUSIVE_NONBLOCKING)) === -1 ? koffi.errno() : 0),
    futexWait,
    futexWake: (address, count) =>
      Math.max(0, Number(syscall(futexNumber, address, FUTEX_WAKE, count, null, 0, 0))),
    yieldProcessor: () => void schedYield(),
  };
}

/**
 * Takes the lock of an open file without waiting; false if someone else has it. It ends with the descriptor, so with the process at the latest.
 * A system or file system that has no locks refuses, which counts as taken.
 */
export function lockFile(fd: number): boolean {
  return !hasNative() || native().tryLock(fd) !== EAGAIN;
}

/** Lets another thread that is ready run on this processor; what a spinning wait does when it may be in the way. */
export function yieldProcessor(): void {
  if (hasNative()) native().yieldProcessor();
}
