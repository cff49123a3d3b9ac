/**
 * Two transports as one: peers on this host by shared memory, all others by the network. Each peer belongs to exactly
 * one of them, by its host. It moves nothing itself. Invariant: whatever is reported of a peer comes from the transport
 * that the peer belongs to.
 */
import type { Region, SharedSpace } from '../memory/index.ts';
import type { OperationKey } from './matching.ts';
import type {
  ConnectOptions,
  Envelope,
  InPlace,
  MemberAddress,
  NativeCollectives,
  Receiving,
  Transfer,
  Transport,
  TransportEvents,
} from './transport.ts';

/** How long one is slept on before the other is looked at, when both have something to wait for. */
const ALTERNATING_MS = 1;

export class RoutedTransport implements Transport {
  readonly space: SharedSpace;
  readonly address: Readonly<Record<string, unknown>>;
  readonly #local: Transport;
  readonly #remote: Transport;
  readonly #host: string;
  readonly #routes = new Map<number, Transport>();

  /** `local` reaches the members with the same `host`, `remote` the others. */
  constructor(local: Transport, remote: Transport, host: string) {
    this.#local = local;
    this.#remote = remote;
    this.#host = host;
    this.space = local.space;
    this.address = { local: local.address, remote: remote.address };
  }

  get kind(): string {
    return `${this.#local.kind}+${this.#remote.kind}`;
  }

  get member(): number {
    return this.#remote.member;
  }

  get native(): NativeCollectives | undefined {
    return this.#remote.native;
  }

  get inPlace(): InPlace | undefined {
    return this.#local.inPlace;
  }

  get idle(): boolean {
    return this.#local.idle && this.#remote.idle;
  }

  async connect(self: number, peers: readonly MemberAddress[], options?: ConnectOptions): Promise<void> {
    const here = peers.filter(({ host }) => host === this.#host);
    const there = peers.filter(({ host }) => host !== this.#host);
    for (const { member } of here) this.#routes.set(member, this.#local);
    for (const { member } of there) this.#routes.set(member, this.#remote);
    await Promise.all([
      this.#local.connect(
        self,
        here.map((peer) => part(peer, 'local')),
        options,
      ),
      this.#remote.connect(
        self,
        there.map((peer) => part(peer, 'remote')),
        options,
      ),
    ]);
  }

  hasLeft(peer: number): boolean {
    return this.#route(peer).hasLeft(peer);
  }

  disconnect(peer: number): void {
    this.#routes.get(peer)?.disconnect(peer);
    this.#routes.delete(peer);
  }

  listen(events: TransportEvents): void {
    this.#local.listen(events);
    this.#remote.listen(events);
  }

  send(peer: number, envelope: Envelope, region: Region): Transfer {
    return this.#route(peer).send(peer, envelope, region);
  }

  receive(peer: number, envelope: Envelope, into: Region): Receiving {
    return this.#route(peer).receive(peer, envelope, into);
  }

  notify(peer: number, text: string): void {
    this.#route(peer).notify(peer, text);
  }

  poll(): boolean {
    const local = this.#local.poll();
    return this.#remote.poll() || local;
  }

  block(timeoutMs: number): void {
    if (this.#local.idle) {
      // Without waiting: only there peers' processes are looked after.
      this.#local.block(0);
      return this.#remote.block(timeoutMs);
    }
    if (this.#remote.idle) return this.#local.block(timeoutMs);
    this.#local.block(Math.min(timeoutMs, ALTERNATING_MS));
    this.#remote.block(0);
  }

  forget(operation: OperationKey): void {
    this.#local.forget(operation);
    this.#remote.forget(operation);
  }

  async close(): Promise<void> {
    await Promise.all([this.#local.close(), this.#remote.close()]);
  }

  abort(error: Error): void {
    this.#local.abort(error);
    this.#remote.abort(error);
  }

  /** A peer that was never routed is a fault that the network transport names best. */
  #route(peer: number): Transport {
    return this.#routes.get(peer) ?? this.#remote;
  }
}

function part(peer: MemberAddress, which: 'local' | 'remote'): MemberAddress {
  const address = peer.address[which];
  return { ...peer, address: isRecord(address) ? address : {} };
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
