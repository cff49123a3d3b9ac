/**
 * Making sockets: one that listens within a range of ports, one that dials, and the options of both. Not the handshake
 * and not the data. Invariant: a descriptor is either returned or closed.
 */
import { UsageError } from '../base/index.ts';
import { AF_UNIX, EACCES, EADDRINUSE, EADDRNOTAVAIL, EINPROGRESS, errorName } from './libc.ts';
import type { Libc } from './libc.ts';
import { decodeAddress, internetAddress, MAX_ADDRESS_BYTES } from './socket-address.ts';
import type { SocketAddress } from './socket-address.ts';

const SOL_SOCKET = 1;
const SO_REUSEADDR = 2;
const SO_SNDBUF = 7;
const SO_RCVBUF = 8;
const SO_KEEPALIVE = 9;
const IPPROTO_TCP = 6;
const TCP_NODELAY = 1;
const TCP_KEEPIDLE = 4;
const TCP_KEEPINTVL = 5;
const TCP_KEEPCNT = 6;
const TCP_CONGESTION = 13;
const TCP_USER_TIMEOUT = 18;
/** Every kernel has it and lets everybody choose it. */
const RENO = new TextEncoder().encode('reno');
const BACKLOG = 1024;

/** Listens at the first free port of the range; [0, 0] is any port. */
export function listenWithin(
  libc: Libc,
  host: string,
  [from, to]: readonly [number, number],
  bufferBytes: number,
): { readonly fd: number; readonly port: number } {
  for (let port = from; port <= to; port++) {
    const result = listenAt(libc, internetAddress(host, port), bufferBytes);
    if (result >= 0) return { fd: result, port: localNameOf(libc, result).port };
    if (result === -EADDRNOTAVAIL) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `address ${host} does not belong to this host; give the address of one of its interfaces`,
        { address: host },
      );
    }
    if (result !== -EADDRINUSE && result !== -EACCES) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `listening at ${host} port ${port} failed with ${errorName(result)}; choose others with address and ports`,
        { address: host, port, error: errorName(result) },
      );
    }
  }
  throw new UsageError(
    'INVALID_ARGUMENT',
    `none of the ports ${from} to ${to} of ${host} is free; give a wider range with ports`,
    { address: host, from, to },
  );
}

/** Listens at one address; returns the descriptor or the negative errno. */
export function listenAt(libc: Libc, address: SocketAddress, bufferBytes: number): number {
  const fd = libc.socket(address.family);
  if (fd < 0) return fd;
  libc.setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  // Accepted connections inherit the sizes, which must be known before the first packet.
  setBuffers(libc, fd, bufferBytes);
  let result = libc.bind(fd, address.bytes);
  if (result >= 0) result = libc.listen(fd, BACKLOG);
  if (result >= 0) return fd;
  libc.close(fd);
  return result;
}

/**
 * Starts a connection, which may be refused later; returns the descriptor or the negative errno. `unackedTimeoutMs`: how long
 * the other side may leave bytes unacknowledged, or take none, before the connection breaks; 0 for the system's default.
 */
export function dialAt(
  libc: Libc,
  address: SocketAddress,
  bufferBytes: number,
  unackedTimeoutMs = 0,
): number {
  const fd = libc.socket(address.family);
  if (fd < 0) return fd;
  setBuffers(libc, fd, bufferBytes);
  const result = libc.connect(fd, address.bytes);
  if (result >= 0 || result === -EINPROGRESS) {
    if (address.family !== AF_UNIX) {
      tune(libc, fd, decodeAddress(address.bytes).host);
      if (unackedTimeoutMs > 0) setUnackedTimeout(libc, fd, unackedTimeoutMs);
    }
    return fd;
  }
  libc.close(fd);
  return result;
}

/** No waiting for full packets, and a host that vanished is noticed even when nothing is sent. */
export function tune(libc: Libc, fd: number, remoteHost: string): void {
  libc.setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  libc.setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  libc.setOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  libc.setOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  libc.setOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  // Within one host nothing can be congested; algorithms that pace, such as BBR, only hold bytes back there.
  if (localNameOf(libc, fd).host === remoteHost) libc.setOption(fd, IPPROTO_TCP, TCP_CONGESTION, RENO);
}

/** Of the kernel, in whole milliseconds that fit into its word. */
function setUnackedTimeout(libc: Libc, fd: number, timeoutMs: number): void {
  libc.setOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, Math.ceil(Math.min(timeoutMs, 2 ** 31 - 1)));
}

function setBuffers(libc: Libc, fd: number, bytes: number): void {
  if (bytes === 0) return;
  libc.setOption(fd, SOL_SOCKET, SO_SNDBUF, bytes);
  libc.setOption(fd, SOL_SOCKET, SO_RCVBUF, bytes);
}

function localNameOf(libc: Libc, fd: number): ReturnType<typeof decodeAddress> {
  const bytes = new Uint8Array(MAX_ADDRESS_BYTES);
  libc.localAddress(fd, bytes);
  return decodeAddress(bytes);
}
