/**
 * The options of the TCP transport, their defaults and their checks. Nothing else reads raw options. Invariant: what
 * `checkOptions` returns is complete and within its bounds.
 */
import { UsageError } from '../../base/index.ts';
import type { SharedSpace } from '../../memory/index.ts';
import { keyOfSecret } from '../../sockets/index.ts';
import type { Host, TlsOptions } from '../../sockets/index.ts';

export interface TcpOptions {
  /** The memory in which the regions of all messages lie. */
  readonly space: SharedSpace;
  /** What all members of the cluster know and strangers do not, at least 32 hexadecimal digits or 16 bytes; never sent. */
  readonly secret: Uint8Array | string;
  /** The address to listen at, which is also the one told to others. Default 127.0.0.1. */
  readonly address?: string;
  /** The first and last port that may be listened at. Default: any port that the system gives. */
  readonly ports?: readonly [from: number, to: number];
  /** Connections to each peer that this process dials, 1 to 16; large messages are spread over them. Default 1. */
  readonly connectionsPerPeer?: number;
  /** Encrypts and authenticates all connections. Default: none. */
  readonly tls?: TlsOptions | undefined;
  /** Size of the kernel's send and receive buffers in bytes. Default: the kernel chooses and adapts. */
  readonly socketBufferBytes?: number;
  /** How long a connection may take to prove that it belongs here, in milliseconds. Default 5,000. */
  readonly handshakeTimeoutMs?: number;
  /**
   * Connections that may have not authenticated at a time; one more and the oldest of the address that has the most is
   * closed. Default 64.
   */
  readonly maxPendingHandshakes?: number;
  /** Bytes of messages that nobody has asked for yet, kept for each peer; then reading pauses. Default 256 MiB. */
  readonly maxUnexpectedBytes?: number;
  /** Gets a line of text for each refused connection, and when reading from a peer pauses. Default: none. */
  readonly log?: ((line: string) => void) | undefined;
}

export interface CheckedOptions {
  readonly host: Host;
  readonly space: SharedSpace;
  /** Made of the secret. */
  readonly key: Uint8Array;
  readonly address: string;
  readonly ports: readonly [number, number];
  readonly connectionsPerPeer: number;
  readonly tls: TlsOptions | undefined;
  /** 0: the kernel chooses. */
  readonly socketBufferBytes: number;
  readonly handshakeTimeoutMs: number;
  readonly maxPendingHandshakes: number;
  readonly maxUnexpectedBytes: number;
  readonly log: (line: string) => void;
}

export const MAX_CONNECTIONS_PER_PEER = 16;
const UNSPECIFIED = new Set(['', '0.0.0.0', '::', '::0']);

export function checkOptions(options: TcpOptions, host: Host): CheckedOptions {
  const { secret, address = '127.0.0.1', ports = [0, 0] } = options;
  const key = keyOfSecret(secret);
  if (UNSPECIFIED.has(address)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `address is '${address}', which others cannot reach; give the address of the interface that leads to them`,
      { address },
    );
  }
  const [from, to] = ports;
  if (!isWhole(from, 0, 65535) || !isWhole(to, from, 65535) || (from === 0 && to !== 0)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `ports is [${from}, ${to}]; give the first and the last of a range from 1 to 65535`,
      { ports },
    );
  }
  return {
    host,
    space: options.space,
    key,
    address,
    ports: [from, to],
    connectionsPerPeer: whole(options, 'connectionsPerPeer', 1, 1, MAX_CONNECTIONS_PER_PEER),
    tls: options.tls,
    socketBufferBytes: whole(options, 'socketBufferBytes', 0, 0, 2 ** 30),
    handshakeTimeoutMs: whole(options, 'handshakeTimeoutMs', 5000, 1, 2 ** 31),
    maxPendingHandshakes: whole(options, 'maxPendingHandshakes', 64, 1, 4096),
    maxUnexpectedBytes: whole(options, 'maxUnexpectedBytes', 256 * 2 ** 20, 0, 2 ** 40),
    log: options.log ?? (() => undefined),
  };
}

type NumberOption =
  | 'connectionsPerPeer'
  | 'socketBufferBytes'
  | 'handshakeTimeoutMs'
  | 'maxPendingHandshakes'
  | 'maxUnexpectedBytes';

function whole(options: TcpOptions, name: NumberOption, preset: number, least: number, most: number): number {
  const value = options[name] ?? preset;
  if (isWhole(value, least, most)) return value;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${name} is ${value}; give a whole number from ${least} to ${most}`,
    { [name]: value },
  );
}

function isWhole(value: number, least: number, most: number): boolean {
  return Number.isInteger(value) && value >= least && value <= most;
}
