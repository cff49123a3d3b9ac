/**
 * What a scheduler can be told, with the defaults, and the checks of it. Invariant: what `completeOptions` returns has a
 * value for everything that has a default, and every value is one the scheduler can work with.
 */
import { UsageError } from '../base/index.ts';
import { keyOfSecret } from '../sockets/index.ts';
import { MAX_MEMBERS } from './messages.ts';
import type { SchedulerTls } from './scheduler-connection.ts';

export interface SchedulerOptions {
  /** Members of the first group: the rendezvous is over when so many have come. */
  readonly size: number;
  /** What every process must know to join, at least 32 hexadecimal digits of random bytes; never sent. */
  readonly secret: string;
  /** The interface to listen on, a name or an address. Default 127.0.0.1: this machine only. */
  readonly host?: string;
  /** The port to listen on. Default any that is free. */
  readonly port?: number;
  /** The first free port from the first to the last of these is taken; instead of `port`. Default none. */
  readonly ports?: readonly [first: number, last: number];
  /** A certificate, for TLS. Default none: the secret stays secret, but what is said can be read and altered. */
  readonly tls?: SchedulerTls;
  /** How often members give a sign of life, in milliseconds. Default 1,000. */
  readonly heartbeatMs?: number;
  /** After how long without one a member is lost, in milliseconds. A closed connection is lost at once. Default 10,000. */
  readonly lostAfterMs?: number;
  /** How long a connection may take to authenticate, in milliseconds. Default 5,000. */
  readonly handshakeTimeoutMs?: number;
  /**
   * Connections that may have not authenticated at a time; one more and the oldest of the address that has the most is
   * refused. Default 64.
   */
  readonly maxPending?: number;
  /** Most bytes that a member may leave unread before it counts as lost. Default 256 MiB. */
  readonly maxBacklogBytes?: number;
  /** Receives a line for every refused connection and every member that comes or goes. Default: none. */
  readonly log?: (line: string) => void;
}

export type CompleteOptions = Required<Omit<SchedulerOptions, 'tls' | 'ports' | 'port' | 'secret'>> & {
  /** Made of the secret. */
  readonly key: Uint8Array;
  readonly tls: SchedulerTls | undefined;
  readonly ports: readonly [first: number, last: number];
};

export function completeOptions(options: SchedulerOptions): CompleteOptions {
  const { size, secret, host = '127.0.0.1', port = 0, tls } = options;
  const { heartbeatMs = 1000, lostAfterMs = 10_000, handshakeTimeoutMs = 5000, maxPending = 64 } = options;
  const { ports = [port, port], maxBacklogBytes = 256 * 2 ** 20, log = () => undefined } = options;
  check('size', size, 1, MAX_MEMBERS);
  check('heartbeatMs', heartbeatMs, 1, 2 ** 31 - 1);
  check('lostAfterMs', lostAfterMs, 2 * heartbeatMs, 2 ** 31 - 1);
  check('handshakeTimeoutMs', handshakeTimeoutMs, 1, 2 ** 31 - 1);
  check('maxPending', maxPending, 1, 65_536);
  check('maxBacklogBytes', maxBacklogBytes, 65_536, 2 ** 40);
  check('the first port', ports[0], 0, 65_535);
  check('the last port', ports[1], ports[0], 65_535);
  const key = keyOfSecret(secret);
  return {
    ...{ size, key, host, ports, tls, heartbeatMs, lostAfterMs },
    ...{ handshakeTimeoutMs, maxPending, maxBacklogBytes, log },
  };
}

function check(name: string, value: number, least: number, most: number): void {
  if (Number.isInteger(value) && value >= least && value <= most) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `A scheduler cannot have ${name} ${value}; give a whole number from ${least} to ${most}.`,
    { name, value, least, most },
  );
}
