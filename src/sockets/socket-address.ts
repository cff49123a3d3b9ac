/**
 * Addresses of sockets: the bytes the kernel takes (`struct sockaddr`) and the text that people read. IPv4, IPv6 with
 * a scope (`fe80::1%eth0`) and paths of local sockets. Names are resolved here and nowhere else. Invariant: what comes
 * out of `encode` is accepted by the kernel or refused by it, but never reaches beyond the structure.
 */
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { UsageError } from '../base/index.ts';
import { AF_INET, AF_INET6, AF_UNIX } from './libc.ts';

export interface SocketAddress {
  readonly family: number;
  readonly bytes: Uint8Array;
  /** '10.0.0.1:4711' or '[::1]:4711'. */
  readonly text: string;
}

/** Room for any address that the kernel writes. */
export const MAX_ADDRESS_BYTES = 128;
const MAX_PATH_BYTES = 107;

/** The numeric address of a host name; a numeric one is returned as it is. */
export async function resolveHost(host: string): Promise<string> {
  if (isIP(host) !== 0) return host;
  try {
    return (await lookup(host)).address;
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the host name '${host}' cannot be resolved; check it, or give a numeric address`,
      { host },
      cause,
    );
  }
}

/** `host` is numeric. */
export function internetAddress(host: string, port: number): SocketAddress {
  if (isIP(host) === 4) {
    const bytes = new Uint8Array(16);
    const view = new DataView(bytes.buffer);
    view.setUint16(0, AF_INET, true);
    view.setUint16(2, port);
    bytes.set(host.split('.').map(Number), 4);
    return { family: AF_INET, bytes, text: addressText(host, port) };
  }
  const bytes = new Uint8Array(28);
  const view = new DataView(bytes.buffer);
  const [plain, scope] = host.split('%') as [string, string | undefined];
  view.setUint16(0, AF_INET6, true);
  view.setUint16(2, port);
  ipv6Groups(plain).forEach((group, i) => view.setUint16(8 + 2 * i, group));
  view.setUint32(24, scope === undefined ? 0 : scopeNumber(scope), true);
  return { family: AF_INET6, bytes, text: addressText(host, port) };
}

/** A socket in the file system. */
export function localAddress(path: string): SocketAddress {
  const name = new TextEncoder().encode(path);
  if (name.length > MAX_PATH_BYTES) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the path of a local socket has ${name.length} bytes, at most ${MAX_PATH_BYTES} are possible; use a shorter temporary folder (TMPDIR)`,
      { path },
    );
  }
  const bytes = new Uint8Array(2 + name.length + 1);
  new DataView(bytes.buffer).setUint16(0, AF_UNIX, true);
  bytes.set(name, 2);
  return { family: AF_UNIX, bytes, text: path };
}

/** Host and port of an address that the kernel wrote. */
export function decodeAddress(bytes: Uint8Array): { readonly host: string; readonly port: number } {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const family = view.getUint16(0, true);
  if (family === AF_INET) return { host: bytes.subarray(4, 8).join('.'), port: view.getUint16(2) };
  if (family !== AF_INET6) return { host: 'a local socket', port: 0 };
  const groups = Array.from({ length: 8 }, (_, i) => view.getUint16(8 + 2 * i).toString(16));
  return { host: groups.join(':'), port: view.getUint16(2) };
}

export function addressText(host: string, port: number): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

export interface HostPort {
  readonly host: string;
  readonly port: number;
}

/**
 * As users give it: 'host:port', '[::1]:port'. `leastPort`: 0 where somebody listens, at any that
 * is free.
 */
export function parseAddress(address: string, leastPort = 1): HostPort {
  const [, host, port] = /^(?:\[?(.+?)\]?):(\d{1,5})$/.exec(address) ?? [];
  const isFine = host !== undefined && !host.includes('+');
  if (isFine && Number(port) >= leastPort && Number(port) < 65536) return { host, port: Number(port) };
  throw new UsageError('INVALID_ARGUMENT', `'${address}' is no address of a server; give 'host:port'`, {
    address,
  });
}

/** Of one server that listens at several: 'host:port+host:port'. */
export function parseAddresses(addresses: string): readonly HostPort[] {
  return addresses.split('+').map((address) => parseAddress(address));
}

/** The host of what `addressText` made. */
export function hostOf(text: string): string {
  return text.slice(0, text.lastIndexOf(':')).replace(/^\[|\]$/g, '');
}

export function ipv6Groups(text: string): number[] {
  const [head = '', tail] = text.split('::');
  const before = groupsOf(head);
  if (tail === undefined) return before;
  const after = groupsOf(tail);
  return [...before, ...new Array<number>(8 - before.length - after.length).fill(0), ...after];
}

function groupsOf(text: string): number[] {
  if (text === '') return [];
  return text.split(':').flatMap((group) => {
    if (!group.includes('.')) return [parseInt(group, 16)];
    const [a, b, c, d] = group.split('.').map(Number) as [number, number, number, number];
    return [a * 256 + b, c * 256 + d];
  });
}

function scopeNumber(scope: string): number {
  if (/^\d+$/.test(scope)) return Number(scope);
  const found = networkInterfaces()[scope]?.find(({ family }) => family === 'IPv6');
  return found?.family === 'IPv6' ? found.scopeid : 0;
}
