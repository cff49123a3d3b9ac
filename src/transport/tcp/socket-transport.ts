/**
 * The transport over TCP: native non-blocking sockets, polled by the thread that uses it, straight from and into shared
 * regions. This file joins the parts: who is connected, what is polled when, who is lost, how it ends. It reads no bytes
 * itself. Invariants: events are emitted only from `poll`; a peer is reported as lost at most once, and only after
 * everything that it sent before a goodbye was read; a stranger at the port never disturbs those who are connected.
 */
import { UsageError } from '../../base/index.ts';
import type { PeerError } from '../../base/index.ts';
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import {
  NOTHING,
  POLLERR,
  POLLHUP,
  POLLIN,
  POLLOUT,
  POLLRDHUP,
  PollSet,
  SpaceBytes,
} from '../../sockets/index.ts';
import type { TlsTunnel } from '../../sockets/index.ts';
import type { OperationKey } from '../matching.ts';
import type {
  ConnectOptions,
  Envelope,
  MemberAddress,
  Receiving,
  Transfer,
  TransportEvents,
} from '../transport.ts';
import { Connection } from './connection.ts';
import { Connecting } from './connecting.ts';
import { checkEnvelope, checkMember, isOf } from './envelope-checks.ts';
import { ProtocolFault } from './frame.ts';
import type { Hello } from './handshake.ts';
import { Inbox } from './inbox.ts';
import { Listener } from './listener.ts';
import type { Verdict } from './listener.ts';
import { Sending, TcpReceiving } from './messages.ts';
import type { CheckedOptions } from './options.ts';
import { Peer } from './peer.ts';
import type { TcpAddress } from './peer.ts';
import type { TcpTransport } from './tcp-transport.ts';

const DEFAULT_CONNECT_TIMEOUT_MS = 30_000;
const CLOSE_TIMEOUT_MS = 5000;
const SCRATCH_BYTES = 256 * 1024;
/** With more connections than this, one call that asks after all is cheaper than one for each. */
const DIRECT_READS = 2;
/** The port is looked at once in so many polls, and whenever `block` says that somebody is there. */
const POLLS_PER_LOOK_AT_PORT = 128;

export class SocketTransport implements TcpTransport {
  readonly kind = 'tcp';
  readonly space: SharedSpace;
  readonly address: Readonly<Record<string, unknown>> & TcpAddress;

  readonly #options: CheckedOptions;
  readonly #listener: Listener;
  readonly #tunnel: TlsTunnel | undefined;
  readonly #inbox: Inbox;
  readonly #pollSet: PollSet;
  readonly #scratch: Segment;
  readonly #bytes: SpaceBytes;
  readonly #peers = new Map<number, Peer>();
  /** The open connections of all peers. */
  #connections: Connection[] = [];
  readonly #events: ((to: TransportEvents) => void)[] = [];
  #told: TransportEvents | undefined;
  #member = -1;
  #polls = 0;
  #state: 'open' | 'closing' | 'closed' = 'open';

  constructor(
    options: CheckedOptions,
    fd: number,
    address: Readonly<Record<string, unknown>> & TcpAddress,
    tunnel: TlsTunnel | undefined,
  ) {
    this.space = options.space;
    this.address = address;
    this.#options = options;
    this.#tunnel = tunnel;
    this.#bytes = new SpaceBytes(options.space);
    this.#scratch = options.space.allocate(SCRATCH_BYTES);
    this.#pollSet = new PollSet(options.space, options.host.libc);
    this.#listener = new Listener(fd, options, {
      judge: (hello) => this.#judge(hello),
      accepted: ({ member, index, count }, accepted) =>
        this.#adopt(this.#peers.get(member)!, index, count, accepted),
    });
    this.#inbox = new Inbox(options.maxUnexpectedBytes, {
      notice: (peer, text) => this.#events.push((to) => to.notice(peer.member, text)),
      mismatch: (peer, envelope, bytes) =>
        this.#events.push((to) => to.mismatch(peer.member, envelope, bytes)),
      paused: (peer, { group, tag, sequence }, bytes) =>
        options.log(
          `member ${this.#member} has stopped reading from member ${peer.member} (${peer.title}): ${peer.unexpectedBytes} bytes that nobody here has asked for, and ${bytes} more of operation ${sequence} with tag ${tag} in group ${group}; call that operation, or raise maxUnexpectedBytes`,
        ),
    });
  }

  get member(): number {
    return this.#member;
  }

  get refused(): TcpTransport['refused'] {
    return { ...this.#listener.refused, tls: this.#tunnel?.refused ?? 0 };
  }

  get pendingHandshakes(): number {
    return this.#listener.pendingCount;
  }

  get idle(): boolean {
    for (const peer of this.#peers.values()) if (peer.posted.size > 0) return false;
    for (const { writer } of this.#connections) if (writer.hasUnsent) return false;
    return this.#events.length === 0;
  }

  listen(events: TransportEvents): void {
    this.#told = events;
  }

  async connect(
    self: number,
    members: readonly MemberAddress[],
    options: ConnectOptions = {},
  ): Promise<void> {
    this.#checkOpen();
    if (this.#member !== -1 && this.#member !== self) {
      throw new UsageError('INVALID_ARGUMENT', `this process is member ${this.#member}, not ${self}`, {
        member: this.#member,
        self,
      });
    }
    checkMember(self);
    const { connectTimeoutMs = DEFAULT_CONNECT_TIMEOUT_MS, signal } = options;
    const deadline = this.#nowMs() + connectTimeoutMs;
    for (const { member } of members) checkMember(member);
    const wanted = members
      .filter(({ member }) => member !== self && !this.#peers.has(member))
      .map((member) => new Peer(member));
    this.#member = self;
    for (const peer of wanted) this.#peers.set(peer.member, peer);
    const connecting = new Connecting(self, wanted, this.#options, (...args) => this.#adopt(...args));
    try {
      await connecting.prepare(this.#tunnel);
      for (;;) {
        signal?.throwIfAborted();
        this.#checkOpen();
        if (this.#tunnel?.failure) throw this.#tunnel.failure;
        const now = this.#nowMs();
        connecting.step(now);
        this.#listener.step(now);
        if (connecting.isDone) return;
        if (now > deadline) throw connecting.unreachable(connectTimeoutMs, { ...this.refused });
        await this.#options.host.clock.pause(1);
      }
    } catch (error) {
      for (const peer of wanted) if (peer.state === 'connecting') this.#release(peer);
      throw error;
    } finally {
      connecting.close();
    }
  }

  hasLeft(member: number): boolean {
    return this.#peers.get(member)?.state === 'left';
  }

  disconnect(member: number): void {
    const peer = this.#peers.get(member);
    if (!peer) return;
    if (peer.state === 'open' && !peer.hasUnsent) peer.sayBye();
    this.#release(peer);
  }

  send(member: number, envelope: Envelope, region: Region): Transfer {
    const peer = this.#peerOf(member, envelope, region);
    if (peer.state !== 'open') return this.#neverDone(peer, new Sending(member, envelope, region, 1));
    return peer.send(envelope, region);
  }

  receive(member: number, envelope: Envelope, into: Region): Receiving {
    const peer = this.#peerOf(member, envelope, into);
    if (peer.state === 'lost') return new TcpReceiving(member, envelope, into);
    const receiving = this.#inbox.post(peer, envelope, into);
    if (peer.state === 'left' && !receiving.done) this.#neverDone(peer, receiving);
    return receiving;
  }

  notify(member: number, text: string): void {
    const peer = this.#peerOf(member);
    if (peer.state === 'open') peer.notify(text);
    else this.#neverDone(peer, undefined);
  }

  poll(): boolean {
    if (this.#state !== 'open') return false;
    let changed = this.#tunnel?.failure !== undefined && this.#loseAll(this.#tunnel.failure);
    const askFirst =
      this.#connections.length > DIRECT_READS || this.#connections.some(({ reader }) => reader.isPaused);
    if (askFirst) this.#ask(0);
    let ended = 0;
    for (let i = 0; i < this.#connections.length; i++) {
      const { writer, reader } = this.#connections[i]!;
      const found = askFirst ? this.#pollSet.found(i + 1) : POLLIN;
      if (writer.hasUnsent && writer.write()) changed = true;
      if ((found !== 0 || reader.isPaused) && reader.read()) changed = true;
      if (reader.ended !== undefined) ended++;
    }
    if (ended > 0) for (const one of this.#connections.slice()) this.#checkEnd(one);
    this.#polls++;
    const isSomebodyThere = askFirst && this.#pollSet.found(0) !== 0;
    if ((isSomebodyThere || this.#polls % POLLS_PER_LOOK_AT_PORT === 0) && this.#member !== -1) {
      this.#listener.step(this.#nowMs());
    }
    if (this.#events.length > 0 && this.#told) {
      changed = true;
      while (this.#events.length > 0) this.#events.shift()!(this.#told);
    }
    return changed;
  }

  block(timeoutMs: number): void {
    if (this.#state !== 'open' || this.#events.length > 0) return;
    // Strangers must be sent away in time even when nothing else happens.
    const most = this.#listener.pendingCount > 0 ? Math.min(timeoutMs, 20) : timeoutMs;
    this.#ask(most);
    if (this.#member !== -1 && (this.#pollSet.found(0) !== 0 || this.#listener.pendingCount > 0)) {
      this.#listener.step(this.#nowMs());
    }
  }

  forget(operation: OperationKey): void {
    this.#inbox.forget(operation, this.#peers.values());
    for (const connection of this.#connections) {
      connection.writer.forget(({ sending }) => sending !== undefined && isOf(operation, sending.envelope));
    }
  }

  async close(): Promise<void> {
    if (this.#state !== 'open') return;
    this.#state = 'closing';
    const connections = this.#connections;
    const deadline = this.#nowMs() + CLOSE_TIMEOUT_MS;
    for (const peer of this.#peers.values()) if (peer.state === 'open') peer.sayBye();
    const isFlushed = ({ fd, writer, reader }: Connection): boolean => {
      reader.drain();
      writer.write();
      if (writer.ended !== undefined || reader.ended !== undefined) return true;
      return !writer.hasUnsent && this.#options.host.libc.unsentBytes(fd) <= 0;
    };
    // Bytes that the other side's kernel has are safe: there they can be read after this side is gone.
    while (!connections.map(isFlushed).every(Boolean) && this.#nowMs() < deadline)
      await this.#options.host.clock.pause(1);
    if (this.#letGo()) await this.#tunnel?.close();
  }

  abort(_error: Error): void {
    if (this.#letGo()) this.#tunnel?.abort();
  }

  /** False if everything was let go of before, as by an abort while closing. */
  #letGo(): boolean {
    if (this.#state === 'closed') return false;
    this.#state = 'closed';
    for (const peer of this.#peers.values()) peer.close();
    this.#peers.clear();
    this.#connections = [];
    this.#events.length = 0;
    this.#listener.close();
    this.#pollSet.close();
    this.#scratch.close();
    return true;
  }

  /** One system call for the port, all connections and, when it may sleep, all strangers. */
  #ask(timeoutMs: number): void {
    this.#pollSet.clear();
    const listens = this.#member !== -1 && !this.#listener.isPaused(this.#nowMs());
    this.#pollSet.add(listens ? this.#listener.fd : NOTHING, POLLIN);
    for (const connection of this.#connections) {
      const reads = connection.reader.isPaused ? POLLRDHUP : POLLIN;
      this.#pollSet.add(connection.fd, connection.writer.hasUnsent ? reads | POLLOUT : reads);
    }
    if (timeoutMs > 0) for (const fd of this.#listener.awaitedFds) this.#pollSet.add(fd, POLLIN);
    this.#pollSet.wait(timeoutMs);
    for (const [i, connection] of this.#connections.entries()) {
      const isOver = (this.#pollSet.found(i + 1) & (POLLRDHUP | POLLHUP | POLLERR)) !== 0;
      if (connection.reader.isPaused && isOver) connection.isEnding = true;
    }
  }

  #judge(hello: Hello): Verdict {
    const isMeant = hello.target === this.#member && this.address.id === toHex(hello.targetId);
    if (!isMeant || hello.member === this.#member) return 'unknown';
    const peer = this.#peers.get(hello.member);
    if (!peer) return 'wait';
    if (peer.state !== 'connecting' || peer.hasConnection(hello.index)) return 'duplicate';
    // The lower number listens, and all connections of a peer must agree on how many there are.
    if (hello.member < this.#member) return 'unknown';
    return peer.connectionCount === 0 || peer.connectionCount === hello.count ? 'accept' : 'unknown';
  }

  #adopt(peer: Peer, index: number, count: number, fd: number): void {
    const { space } = this;
    const connection = new Connection(
      peer,
      fd,
      space,
      this.#bytes,
      this.#scratch,
      this.#inbox,
      this.#options.host.libc,
    );
    this.#connections.push(connection);
    peer.adopt(index, count, connection);
  }

  /** If a connection cannot be read any more, its peer is lost or has left. */
  #checkEnd(connection: Connection): void {
    const { peer } = connection;
    const { ended } = connection.reader;
    if (ended === undefined || peer.state === 'lost') return;
    if (ended instanceof ProtocolFault) return this.#lose(peer, peer.violationError(ended.message));
    if (!connection.saidBye) {
      const how = ended === 'end' ? 'it closed the connection without a goodbye' : `${ended}`;
      return this.#lose(peer, peer.lostError(how));
    }
    this.#connections = this.#connections.filter((one) => one !== connection);
    peer.endedConnections++;
    if (peer.endedConnections < peer.connectionCount) return;
    if (peer.posted.size > 0 || peer.hasUnsent) {
      return this.#lose(peer, peer.lostError('it left while this process still expected something of it'));
    }
    peer.state = 'left';
    for (const one of peer.connections) one?.close();
  }

  #lose(peer: Peer, error: PeerError): void {
    if (peer.state === 'lost') return;
    peer.state = 'lost';
    this.#withdraw(peer);
    this.#events.push((to) => to.lost(peer.member, error));
  }

  /** The tunnel to all of them is gone; true if there was anybody to lose. */
  #loseAll({ message }: PeerError): boolean {
    const open = [...this.#peers.values()].filter(({ state }) => state === 'open');
    for (const peer of open) this.#lose(peer, peer.lostError(message));
    return open.length > 0;
  }

  /** A transfer with somebody who cannot take part any more. */
  #neverDone<T>(peer: Peer, transfer: T): T {
    if (peer.state === 'left') this.#lose(peer, peer.lostError('it has left the cluster'));
    return transfer;
  }

  #withdraw(peer: Peer): void {
    this.#inbox.drop(peer);
    peer.close();
    this.#connections = this.#connections.filter((connection) => connection.peer !== peer);
  }

  #release(peer: Peer): void {
    this.#withdraw(peer);
    this.#peers.delete(peer.member);
  }

  #peerOf(member: number, envelope?: Envelope, region?: Region): Peer {
    this.#checkOpen();
    const peer = this.#peers.get(member);
    if (!peer || peer.state === 'connecting') {
      throw new UsageError('INVALID_ARGUMENT', `member ${member} is not connected; call connect first`, {
        member,
        self: this.#member,
      });
    }
    if (envelope) checkEnvelope(envelope);
    if (region && region.space !== this.space) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `the region for member ${member} lies in another space; use the space that the transport was made with`,
        { member },
      );
    }
    return peer;
  }

  #nowMs(): number {
    return this.#options.host.clock.nowMs();
  }

  #checkOpen(): void {
    if (this.#state === 'open') return;
    throw new UsageError('INVALID_ARGUMENT', 'the TCP transport is closed; make a new one');
  }
}

function toHex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}
