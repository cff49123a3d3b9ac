/**
 * The calls of libc that sockets and the threads behind them need, through koffi, on Linux. Not a general binding. Nothing
 * native is loaded before the first call of `libc()`. Addresses are numbers, for a bigint argument costs more than the
 * call. Invariant: every function returns its result, or the negative errno; none throws and none blocks but `poll`.
 */
import { createRequire } from 'node:module';
import { getSystemErrorName } from 'node:util';
import type * as Koffi from 'koffi';
import { UsageError } from '../base/index.ts';
import { hasSharedMemory } from '../memory/index.ts';

export const AF_UNIX = 1;
export const AF_INET = 2;
export const AF_INET6 = 10;

export const EINTR = 4;
export const EAGAIN = 11;
export const ENOMEM = 12;
export const EACCES = 13;
export const ENFILE = 23;
export const EMFILE = 24;
export const EPIPE = 32;
export const EADDRINUSE = 98;
export const EADDRNOTAVAIL = 99;
export const ECONNABORTED = 103;
export const ECONNRESET = 104;
export const ENOBUFS = 105;
export const EINPROGRESS = 115;

export const POLLIN = 0x1;
export const POLLOUT = 0x4;
export const POLLERR = 0x8;
export const POLLHUP = 0x10;
export const POLLRDHUP = 0x2000;

const SOCK_STREAM = 1;
const SOCK_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000;
const MSG_NOSIGNAL = 0x4000;
const MSG_MORE = 0x8000;
const SIOCOUTQ = 0x5411;

/** The kernel's set of processors, as glibc has it. */
const CPU_SET_BYTES = 128;
/** What is added to a doorbell's counter. */
const ONE = Uint8Array.of(1, 0, 0, 0, 0, 0, 0, 0);

export interface Libc {
  /** A non-blocking stream socket. */
  socket(family: number): number;
  bind(fd: number, address: Uint8Array): number;
  listen(fd: number, backlog: number): number;
  /** A non-blocking connection. */
  accept(fd: number): number;
  connect(fd: number, address: Uint8Array): number;
  /** Writes the address that the socket is bound to. */
  localAddress(fd: number, into: Uint8Array): number;
  /** Writes the address of the other side. */
  remoteAddress(fd: number, into: Uint8Array): number;
  setOption(fd: number, level: number, option: number, value: number | Uint8Array): number;
  /** `more`: other bytes follow at once, so do not send a packet that is not full. */
  send(fd: number, address: number, bytes: number, more: boolean): number;
  /** 0 means that the other side has ended. */
  receive(fd: number, address: number, bytes: number): number;
  /** For more than a few kilobytes several times as fast as a copy within a shared array. */
  copy(to: number, from: number, bytes: number): void;
  /** Receives into `count` ranges, given as an array of `struct iovec`. */
  receiveRanges(fd: number, vectors: number, count: number): number;
  /** Sends what a `struct msghdr` names. */
  sendMessage(fd: number, header: number, more: boolean): number;
  /** Lets the calling thread run on one processor only. */
  pinThread(processor: number): number;
  /** A descriptor that becomes readable when somebody rings it. */
  doorbell(): number;
  ring(doorbell: number): void;
  /** Makes it silent again. */
  hush(doorbell: number): void;
  sendBytes(fd: number, bytes: Uint8Array): number;
  receiveBytes(fd: number, into: Uint8Array): number;
  /** `address` is that of an array of `struct pollfd`. */
  poll(address: number, count: number, timeoutMs: number): number;
  /** Bytes that were sent and that the other side's kernel does not have yet. */
  unsentBytes(fd: number): number;
  close(fd: number): number;
}

let loaded: Libc | undefined;

/** Loads libc once for each thread. */
export function libc(): Libc {
  loaded ??= load();
  return loaded;
}

/** 'ECONNREFUSED' for -111. */
export function errorName(negativeErrno: number): string {
  try {
    return getSystemErrorName(negativeErrno);
  } catch {
    return `errno ${-negativeErrno}`;
  }
}

function load(): Libc {
  if (!hasSharedMemory()) {
    throw new UsageError(
      'MISSING_COMPONENT',
      `the TCP transport needs Linux on x64 or arm64, this is ${process.platform} on ${process.arch}; run there, or on one host with threads`,
      { platform: process.platform, arch: process.arch },
    );
  }
  // koffi is loaded late on purpose: importing this file must not load native code.
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  const library = koffi.load(null);
  type Call = (...args: readonly (number | Uint8Array | Int32Array | Uint32Array | null)[]) => number;
  const bind = (name: string, args: string[], result = 'int') => library.func(name, result, args) as Call;
  const socket = bind('socket', ['int', 'int', 'int']);
  const bindSocket = bind('bind', ['int', 'void *', 'uint32']);
  const listen = bind('listen', ['int', 'int']);
  const accept4 = bind('accept4', ['int', 'void *', 'void *', 'int']);
  const connect = bind('connect', ['int', 'void *', 'uint32']);
  const getsockname = bind('getsockname', ['int', 'void *', 'void *']);
  const getpeername = bind('getpeername', ['int', 'void *', 'void *']);
  const setsockopt = bind('setsockopt', ['int', 'int', 'int', 'void *', 'uint32']);
  const send = bind('send', ['int', 'uint64', 'size_t', 'int'], 'int64');
  const recv = bind('recv', ['int', 'uint64', 'size_t', 'int'], 'int64');
  const sendView = bind('send', ['int', 'void *', 'size_t', 'int'], 'int64');
  const recvView = bind('recv', ['int', 'void *', 'size_t', 'int'], 'int64');
  const memcpy = bind('memcpy', ['uint64', 'uint64', 'size_t'], 'uint64');
  const poll = bind('poll', ['uint64', 'uint64', 'int']);
  const readv = bind('readv', ['int', 'uint64', 'int'], 'int64');
  const sendmsg = bind('sendmsg', ['int', 'uint64', 'int'], 'int64');
  const sched_setaffinity = bind('sched_setaffinity', ['int', 'size_t', 'void *']);
  const eventfd = bind('eventfd', ['uint', 'int']);
  const readView = bind('read', ['int', 'void *', 'size_t'], 'int64');
  const writeView = bind('write', ['int', 'void *', 'size_t'], 'int64');
  const ioctl = bind('ioctl', ['int', 'ulong', 'void *']);
  const close = bind('close', ['int']);

  const word = new Int32Array(1);
  const counter = new Uint8Array(8);
  const length = new Uint32Array(1);
  const orErrno = (result: number) => (result === -1 ? -koffi.errno() : result);

  return {
    socket: (family) => orErrno(socket(family, SOCK_STREAM | SOCK_NONBLOCK_CLOEXEC, 0)),
    bind: (fd, address) => orErrno(bindSocket(fd, address, address.byteLength)),
    listen: (fd, backlog) => orErrno(listen(fd, backlog)),
    accept: (fd) => orErrno(accept4(fd, null, null, SOCK_NONBLOCK_CLOEXEC)),
    connect: (fd, address) => orErrno(connect(fd, address, address.byteLength)),
    localAddress(fd, into) {
      length[0] = into.byteLength;
      return orErrno(getsockname(fd, into, length));
    },
    remoteAddress(fd, into) {
      length[0] = into.byteLength;
      return orErrno(getpeername(fd, into, length));
    },
    setOption(fd, level, option, value) {
      if (typeof value !== 'number') return orErrno(setsockopt(fd, level, option, value, value.byteLength));
      word[0] = value;
      return orErrno(setsockopt(fd, level, option, word, 4));
    },
    send: (fd, address, bytes, more) =>
      orErrno(send(fd, address, bytes, more ? MSG_NOSIGNAL | MSG_MORE : MSG_NOSIGNAL)),
    receive: (fd, address, bytes) => orErrno(recv(fd, address, bytes, 0)),
    copy: (to, from, bytes) => void memcpy(to, from, bytes),
    receiveRanges: (fd, vectors, count) => orErrno(readv(fd, vectors, count)),
    sendMessage: (fd, header, more) =>
      orErrno(sendmsg(fd, header, more ? MSG_NOSIGNAL | MSG_MORE : MSG_NOSIGNAL)),
    pinThread(processor) {
      const mask = new Uint8Array(CPU_SET_BYTES);
      mask[processor >> 3] = 1 << (processor & 7);
      return orErrno(sched_setaffinity(0, mask.byteLength, mask));
    },
    doorbell: () => orErrno(eventfd(0, SOCK_NONBLOCK_CLOEXEC)),
    ring: (doorbell) => void writeView(doorbell, ONE, ONE.byteLength),
    hush: (doorbell) => void readView(doorbell, counter, counter.byteLength),
    sendBytes: (fd, bytes) => orErrno(sendView(fd, bytes, bytes.byteLength, MSG_NOSIGNAL)),
    receiveBytes: (fd, into) => orErrno(recvView(fd, into, into.byteLength, 0)),
    poll: (address, count, timeoutMs) => orErrno(poll(address, count, timeoutMs)),
    unsentBytes(fd) {
      const result = orErrno(ioctl(fd, SIOCOUTQ, word));
      return result < 0 ? result : word[0]!;
    },
    close: (fd) => orErrno(close(fd)),
  };
}
