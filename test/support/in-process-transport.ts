/**
 * A transport between ranks of one process, on one space, for tests of what stands above transports. Messages are
 * delivered one at each poll, in an order that a seed decides, so that a result that depends on arrival order shows.
 * With `shared` it lends memory as shared memory does. Not a model of any real link.
 */
import { PeerError } from '../../src/base/index.ts';
import type { Region, SharedSpace } from '../../src/memory/index.ts';
import { Matching } from '../../src/transport/index.ts';
import type {
  Envelope,
  InPlace,
  OperationKey,
  Receiving,
  Transfer,
  Transport,
  TransportEvents,
} from '../../src/transport/index.ts';

interface Message {
  readonly from: number;
  readonly envelope: Envelope;
  readonly region: Region;
  readonly lent: boolean;
  readonly sending: { peer: number; done: boolean };
}

interface Posted {
  readonly receiving: { peer: number; done: boolean; region: Region; weight: number };
  readonly into: Region | undefined;
  readonly length: number;
}

export class InProcessNetwork {
  readonly transports = new Map<number, InProcessTransport>();
  readonly random: () => number;
  readonly shared: boolean;

  constructor(options: { random?: () => number; shared?: boolean } = {}) {
    this.random = options.random ?? (() => 0);
    this.shared = options.shared ?? false;
  }

  attach(member: number, space: SharedSpace): InProcessTransport {
    const transport = new InProcessTransport(this, member, space);
    this.transports.set(member, transport);
    return transport;
  }

  /** As if the process had been killed: nothing more comes from it, and the others are told. */
  kill(member: number): void {
    this.transports.delete(member);
    for (const transport of this.transports.values()) transport.lose(member);
  }
}

export class InProcessTransport implements Transport {
  readonly kind = 'in-process';
  readonly member: number;
  readonly space: SharedSpace;
  readonly address = {};
  readonly inPlace: InPlace | undefined;
  readonly #network: InProcessNetwork;
  readonly #matching = new Matching<Posted, Message>();
  readonly inbox: Message[] = [];
  readonly notices: { from: number; text: string }[] = [];
  readonly #lost: number[] = [];
  /** A send of this rank became done since the last poll. */
  acknowledged = false;
  #events: TransportEvents | undefined;

  constructor(network: InProcessNetwork, member: number, space: SharedSpace) {
    this.#network = network;
    this.member = member;
    this.space = space;
    if (network.shared) {
      this.inPlace = {
        lend: (peer, envelope, region) => this.#post(peer, envelope, region, true),
        borrow: (peer, envelope, dtype, length) => this.#expect(peer, envelope, undefined, length),
        enter: () => undefined,
        leave: () => undefined,
        isShareable: () => true,
      };
    }
  }

  async connect(): Promise<void> {}
  disconnect(): void {}

  hasLeft(): boolean {
    return false;
  }

  listen(events: TransportEvents): void {
    this.#events = events;
  }

  send(peer: number, envelope: Envelope, region: Region): Transfer {
    return this.#post(peer, envelope, region, false);
  }

  receive(peer: number, envelope: Envelope, into: Region): Receiving {
    return this.#expect(peer, envelope, into, into.length);
  }

  notify(peer: number, text: string): void {
    this.#network.transports.get(peer)?.notices.push({ from: this.member, text });
  }

  lose(member: number): void {
    this.#lost.push(member);
  }

  get idle(): boolean {
    return this.inbox.length === 0;
  }

  poll(): boolean {
    const notice = this.notices.shift();
    if (notice) this.#events?.notice(notice.from, notice.text);
    const lost = this.#lost.shift();
    if (lost !== undefined) {
      this.#events?.lost(lost, new PeerError('PEER_LOST', `member ${lost} was killed.`, { member: lost }));
    }
    const at = Math.floor(this.#network.random() * this.inbox.length);
    const [message] = this.inbox.splice(at, 1);
    if (message) this.#deliver(message);
    const moved = notice !== undefined || lost !== undefined || message !== undefined || this.acknowledged;
    this.acknowledged = false;
    return moved;
  }

  block(timeoutMs: number): void {
    if (timeoutMs > 0) throw new Error('ranks of one process cannot block; await the handle');
  }

  forget(operation: OperationKey): void {
    this.#matching.forget(operation);
  }

  async close(): Promise<void> {}
  abort(): void {}

  #post(peer: number, envelope: Envelope, region: Region, lent: boolean): Transfer {
    const sending = { peer, done: lent };
    const message = { from: this.member, envelope, region, lent, sending };
    this.#network.transports.get(peer)?.inbox.push(message);
    return sending;
  }

  #expect(peer: number, envelope: Envelope, into: Region | undefined, length: number): Receiving {
    const receiving = { peer, done: false, region: into!, weight: 0, release: () => undefined };
    const posted = { receiving, into, length };
    const message = this.#matching.post(peer, envelope, posted);
    if (message) this.#match(posted, envelope, message);
    return receiving;
  }

  #deliver(message: Message): void {
    if (this.#matching.isForgotten(message.envelope)) return;
    const match = this.#matching.arrive(message.from, message.envelope);
    if (match) this.#match(match.posted, match.envelope, message);
    else this.#matching.keep(message.from, message.envelope, message);
  }

  #match({ receiving, into, length }: Posted, expected: Envelope, message: Message): void {
    const { envelope, region } = message;
    if (envelope.signature !== expected.signature || region.length !== length) {
      this.#events?.mismatch(message.from, envelope, region.byteLength);
      return;
    }
    if (into) (into.view as Float32Array).set(region.view as Float32Array);
    receiving.region = into ?? region;
    receiving.weight = envelope.weight;
    receiving.done = true;
    message.sending.done = true;
    const sender = this.#network.transports.get(message.from);
    if (sender) sender.acknowledged = true;
  }
}
