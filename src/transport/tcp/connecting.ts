/**
 * One call of `connect`: dials the peers with lower numbers, waits for those with higher ones to dial, and says who is
 * missing and why when the time is up. It owns its dialers and nothing else. Invariant: when it ends, by success or
 * not, no dialer holds a descriptor.
 */
import { PeerError } from '../../base/index.ts';
import { internetAddress, resolveHost } from '../../sockets/index.ts';
import type { TlsTunnel } from '../../sockets/index.ts';
import { Dialer } from './dialer.ts';
import type { Route } from './dialer.ts';
import type { CheckedOptions } from './options.ts';
import type { Peer } from './peer.ts';

export class Connecting {
  readonly #self: number;
  readonly #peers: readonly Peer[];
  readonly #options: CheckedOptions;
  readonly #adopt: (peer: Peer, index: number, count: number, fd: number) => void;
  readonly #dialers: Dialer[] = [];

  constructor(
    self: number,
    peers: readonly Peer[],
    options: CheckedOptions,
    adopt: (peer: Peer, index: number, count: number, fd: number) => void,
  ) {
    this.#self = self;
    this.#peers = peers;
    this.#options = options;
    this.#adopt = adopt;
  }

  /** Finds the way to each peer that is to be dialled. */
  async prepare(tunnel: TlsTunnel | undefined): Promise<void> {
    for (const peer of this.#peers) {
      if (peer.member > this.#self) continue;
      const route = await routeTo(peer, tunnel);
      for (let index = 0; index < this.#options.connectionsPerPeer; index++) {
        this.#dialers.push(new Dialer(peer, index, route, this.#self, this.#options));
      }
    }
  }

  get isDone(): boolean {
    return this.#peers.every(({ state }) => state !== 'connecting');
  }

  /** Goes on without waiting; throws if a peer refuses this process for good. */
  step(now: number): void {
    for (const dialer of this.#dialers) {
      if (dialer.isOver) continue;
      dialer.step(now);
      if (dialer.refusal) throw dialer.refusal;
      if (dialer.connected === undefined) continue;
      this.#adopt(dialer.peer, dialer.index, this.#options.connectionsPerPeer, dialer.connected);
    }
  }

  /** `refused` are the strangers that were sent away: the missing ones may be among them. */
  unreachable(timeoutMs: number, refused: Readonly<Record<string, number>>): PeerError {
    const missing = this.#peers.filter(({ state }) => state === 'connecting');
    const sentAway = Object.entries(refused).filter(([, count]) => count > 0);
    const noCall =
      sentAway.length === 0
        ? 'it did not dial this process'
        : `it did not get in (refused so far: ${sentAway.map((entry) => entry.join(' ')).join(', ')})`;
    const reasons = missing.map((peer) => {
      const dialer = this.#dialers.find((one) => one.peer === peer && one.connected === undefined);
      return `${peer.name}: ${dialer?.failure ?? noCall}`;
    });
    return new PeerError(
      'UNREACHABLE',
      `member ${this.#self} could not reach ${missing.length} of ${this.#peers.length} members within ${timeoutMs} ms. ` +
        `${reasons.join('; ')}. Check that they run, choose the interface with address, and open the ports given by ports`,
      { self: this.#self, timeoutMs, members: missing.map(({ facts }) => facts), reasons },
    );
  }

  close(): void {
    for (const dialer of this.#dialers) dialer.close();
  }
}

async function routeTo(peer: Peer, tunnel: TlsTunnel | undefined): Promise<Route> {
  if (tunnel) return { address: tunnel.dialAddress, throughTunnel: { host: peer.host, port: peer.port } };
  try {
    const host = await resolveHost(peer.host);
    return { address: internetAddress(host, peer.port), throughTunnel: undefined };
  } catch (error) {
    throw new PeerError(
      'UNREACHABLE',
      `the host name of ${peer.name} cannot be resolved; give it a numeric address with address`,
      peer.facts,
      error,
    );
  }
}
