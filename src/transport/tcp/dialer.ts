/**
 * The side that dials: one connection to one peer, tried again until it stands, is refused for good, or the caller
 * gives up. It hands over a descriptor and never sees a frame. Invariant: a refusal that trying again cannot change
 * (secret, version, a rank twice) ends it at once; everything else is tried again, and the last reason is kept.
 */
import { PeerError } from '../../base/index.ts';
import {
  dialAt,
  EAGAIN,
  EINTR,
  errorName,
  readTunnelRecord,
  TUNNEL_RECORD_BYTES,
  writeTunnelRecord,
} from '../../sockets/index.ts';
import type { DialRecord, SocketAddress } from '../../sockets/index.ts';
import {
  ANSWER_BYTES,
  CONFIRMATION,
  isProof,
  NONCE_BYTES,
  PROTOCOL_VERSION,
  prove,
  readAnswer,
  Status,
  writeHello,
} from './handshake.ts';
import type { Answer, Hello } from './handshake.ts';
import type { CheckedOptions } from './options.ts';
import type { Peer } from './peer.ts';

const RETRY_MS = 25;
const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'the connection was refused (ECONNREFUSED)',
  ETIMEDOUT: 'the connection timed out (ETIMEDOUT)',
  EHOSTUNREACH: 'there is no route to the host (EHOSTUNREACH)',
  ENETUNREACH: 'there is no route to the network (ENETUNREACH)',
  ECONNRESET: 'it closed the connection (ECONNRESET)',
  EPIPE: 'it closed the connection (EPIPE)',
};

/** Where to dial: the peer itself, or a tunnel that receives the peer's address. */
export interface Route {
  readonly address: SocketAddress;
  /** What the tunnel is to be told; undefined without one. */
  readonly throughTunnel: DialRecord | undefined;
}

export class Dialer {
  readonly peer: Peer;
  readonly index: number;
  /** The connection, once it stands. */
  connected: number | undefined;
  /** Why trying again is of no use. */
  refusal: PeerError | undefined;
  /** What went wrong last. */
  failure = 'it did not answer';

  readonly #route: Route;
  readonly #self: number;
  readonly #options: CheckedOptions;
  #fd = -1;
  #retryAt = 0;
  #stage: 'dial' | 'tunnel' | 'challenge' | 'proof' | 'confirmation' = 'dial';
  #outgoing: Uint8Array = new Uint8Array(0);
  #filled = 0;
  readonly #bytes = new Uint8Array(Math.max(ANSWER_BYTES, TUNNEL_RECORD_BYTES));
  #hello: Hello | undefined;
  #nonce: Uint8Array = new Uint8Array(0);
  /** That of the TLS connection. */
  #channel: string | undefined;

  constructor(peer: Peer, index: number, route: Route, self: number, options: CheckedOptions) {
    this.peer = peer;
    this.index = index;
    this.#route = route;
    this.#self = self;
    this.#options = options;
  }

  get isOver(): boolean {
    return this.connected !== undefined || this.refusal !== undefined;
  }

  /** Goes on without waiting. */
  step(now: number): void {
    if (this.isOver) return;
    if (this.#fd < 0 && now >= this.#retryAt) this.#dial(now);
    if (this.#fd < 0 || !this.#flush(now)) return;
    if (this.#stage === 'confirmation') this.#finish();
    else this.#listen(now);
  }

  close(): void {
    if (this.#fd >= 0) this.#options.host.libc.close(this.#fd);
    this.#fd = -1;
  }

  #dial(now: number): void {
    const result = dialAt(this.#options.host.libc, this.#route.address, this.#options.socketBufferBytes);
    if (result < 0) {
      this.#failed(errorName(result), now);
      return;
    }
    this.#fd = result;
    this.#filled = 0;
    this.#hello = {
      member: this.#self,
      target: this.peer.member,
      targetId: this.peer.id,
      index: this.index,
      count: this.#options.connectionsPerPeer,
      nonce: Buffer.from(this.#options.host.randomHex(NONCE_BYTES), 'hex'),
    };
    const hello = writeHello(this.#hello);
    const { throughTunnel } = this.#route;
    this.#stage = throughTunnel === undefined ? 'challenge' : 'tunnel';
    this.#outgoing =
      throughTunnel === undefined
        ? hello
        : Uint8Array.from(Buffer.concat([writeTunnelRecord(throughTunnel), hello]));
    this.failure = 'it did not answer';
  }

  /** Sends what is to be said; until the connection stands the kernel takes nothing. */
  #flush(now: number): boolean {
    if (this.#outgoing.length === 0) return true;
    const sent = this.#options.host.libc.sendBytes(this.#fd, this.#outgoing);
    if (sent === -EAGAIN || sent === -EINTR) return false;
    if (sent < 0) {
      this.#failed(errorName(sent), now);
      return false;
    }
    this.#outgoing = this.#outgoing.subarray(sent);
    if (this.#outgoing.length > 0) return false;
    this.failure = 'it accepted the connection but did not say who it is';
    return true;
  }

  #listen(now: number): void {
    for (;;) {
      const wanted = this.#stage === 'tunnel' ? TUNNEL_RECORD_BYTES : ANSWER_BYTES;
      const got = this.#options.host.libc.receiveBytes(this.#fd, this.#bytes.subarray(this.#filled, wanted));
      if (got === -EAGAIN || got === -EINTR) return;
      if (got <= 0) {
        this.#failed(got === 0 ? 'it closed the connection' : errorName(got), now);
        return;
      }
      this.#filled += got;
      if (this.#filled < wanted) continue;
      this.#filled = 0;
      if (this.#stage === 'tunnel') {
        const { problem, channel } = readTunnelRecord(this.#bytes);
        if (problem !== undefined) {
          this.#failed(problem, now);
          return;
        }
        this.#channel = channel;
        this.#stage = 'challenge';
      } else if (!this.#heard(readAnswer(this.#bytes), now)) {
        return;
      }
    }
  }

  /** Whether to listen for more. */
  #heard(answer: Answer | undefined, now: number): boolean {
    const { key } = this.#options;
    if (answer === undefined) this.#failed('something else than Tributary answers there', now);
    else if (answer.status === Status.UNKNOWN) this.#failed('it does not expect this member', now);
    else if (answer.status !== Status.OK || answer.version !== PROTOCOL_VERSION) this.#refuse(answer);
    else if (this.#stage === 'challenge') {
      this.#stage = 'proof';
      this.#nonce = answer.body;
      this.#outgoing = prove(key, 'caller', this.#hello!, this.#nonce, this.#channel);
      return this.#flush(now);
    } else if (isProof(answer.body, key, 'listener', this.#hello!, this.#nonce, this.#channel)) {
      this.#stage = 'confirmation';
      this.#outgoing = CONFIRMATION;
      if (this.#flush(now)) this.#finish();
    } else {
      this.#refuse({ ...answer, status: Status.SECRET });
    }
    return false;
  }

  #finish(): void {
    this.connected = this.#fd;
    this.#fd = -1;
  }

  #refuse({ status, version }: Answer): void {
    this.close();
    const [why, next] =
      status === Status.SECRET
        ? ['the secrets differ', 'start all processes with the same secret']
        : status === Status.DUPLICATE
          ? [`member ${this.#self} is connected already`, 'start each rank once']
          : [
              `it speaks version ${version} of the protocol, this process ${PROTOCOL_VERSION}`,
              'start all processes with the same version of Tributary',
            ];
    this.refusal = new PeerError(
      'REFUSED',
      `${this.peer.name} refused member ${this.#self}: ${why}; ${next}`,
      { ...this.peer.facts, self: this.#self, why },
    );
  }

  #failed(reason: string, now: number): void {
    this.close();
    this.failure = REASONS[reason] ?? reason;
    this.#retryAt = now + RETRY_MS;
  }
}
