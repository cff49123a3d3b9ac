/**
 * What this process knows of one other member: who it is, its connections, what is expected from it. It cuts messages
 * into parts and chooses the connection of each. Invariant: notices and byes of a peer keep their order, because all
 * notices take connection 0; messages need none, for they are matched by their envelope.
 */
import { PeerError, UsageError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import { addressText } from '../../sockets/index.ts';
import type { Host } from '../../sockets/index.ts';
import type { Envelope, MemberAddress } from '../transport.ts';
import type { Connection } from './connection.ts';
import { FrameKind, MAX_NOTICE_BYTES } from './frame.ts';
import type { Frame } from './frame.ts';
import { ID_BYTES } from './handshake.ts';
import { Sending } from './messages.ts';
import type { Incoming, OutgoingPart, TcpReceiving } from './messages.ts';

/** Messages from this size on are spread over all connections. */
const STRIPE_BYTES = 1024 * 1024;
const STRIPE_ALIGNMENT = 4096;

/** `left`: it said goodbye and nothing was expected from it. */
export type PeerState = 'connecting' | 'open' | 'left' | 'lost';

/** What `TcpTransport.address` says of a process. */
export interface TcpAddress {
  readonly host: string;
  readonly port: number;
  /** Random bytes, in hexadecimal: tells a process from an earlier one at the same port. */
  readonly id: string;
}

export function newId({ randomHex }: Host): string {
  return randomHex(ID_BYTES);
}

export class Peer {
  readonly member: number;
  readonly title: string;
  readonly host: string;
  readonly port: number;
  readonly id: Uint8Array;
  state: PeerState = 'connecting';
  /** By index; the side that dials says how many there are. */
  readonly connections: (Connection | undefined)[] = [];
  connectionCount = 0;
  /** Receives that are not done, those whose message has begun to come included. */
  readonly posted = new Set<TcpReceiving>();
  /** Messages in several parts, not all of which have begun, by envelope. */
  readonly partial = new Map<string, Incoming>();
  /** Bytes kept for messages that nobody has asked for. */
  unexpectedBytes = 0;
  /** Reading has paused until somebody asks for what it sent; told once. */
  isHeldBack = false;
  /** Connections that ended after a bye. */
  endedConnections = 0;

  constructor({ member, title, address }: MemberAddress) {
    const { host, port, id } = checkAddress(member, title, address);
    this.member = member;
    this.title = title;
    this.host = host;
    this.port = port;
    this.id = Buffer.from(id, 'hex');
  }

  /** 'member 2 (process 4711 on host-a) at 10.0.0.1:4242'. */
  get name(): string {
    return `member ${this.member} (${this.title}) at ${addressText(this.host, this.port)}`;
  }

  get facts(): Readonly<Record<string, unknown>> {
    return { member: this.member, title: this.title, host: this.host, port: this.port };
  }

  adopt(index: number, count: number, connection: Connection): void {
    this.connectionCount = count;
    this.connections[index] = connection;
    const established = this.connections.filter((one) => one !== undefined).length;
    if (this.state === 'connecting' && established === count) this.state = 'open';
  }

  hasConnection(index: number): boolean {
    return this.connections[index] !== undefined;
  }

  get hasUnsent(): boolean {
    return this.connections.some((connection) => connection?.writer.hasUnsent);
  }

  send(envelope: Envelope, region: Region): Sending {
    const totalBytes = region.byteLength;
    const { connectionCount: count } = this;
    if (count === 1 || totalBytes < STRIPE_BYTES) {
      const sending = new Sending(this.member, envelope, region, 1);
      this.#start(this.#leastBusy(), sending, 0, totalBytes);
      return sending;
    }
    const stripe = Math.ceil(totalBytes / count / STRIPE_ALIGNMENT) * STRIPE_ALIGNMENT;
    const sending = new Sending(this.member, envelope, region, Math.ceil(totalBytes / stripe));
    for (let i = 0, offset = 0; offset < totalBytes; i++, offset += stripe) {
      this.#start(this.connections[i]!, sending, offset, Math.min(stripe, totalBytes - offset));
    }
    return sending;
  }

  notify(text: string): void {
    const heap = new TextEncoder().encode(text);
    if (heap.length > MAX_NOTICE_BYTES) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `a notice to ${this.name} has ${heap.length} bytes; at most ${MAX_NOTICE_BYTES} are possible, send a region instead`,
        { bytes: heap.length, maxBytes: MAX_NOTICE_BYTES },
      );
    }
    const frame = controlFrame(FrameKind.NOTICE, heap.length);
    this.#startNow(this.connections[0]!, { frame, sending: undefined, heap });
  }

  /** Says on every connection that nothing more will come. */
  sayBye(): void {
    const frame = controlFrame(FrameKind.BYE, 0);
    for (const connection of this.connections) {
      if (connection) this.#startNow(connection, { frame, sending: undefined, heap: undefined });
    }
  }

  close(): void {
    for (const connection of this.connections) connection?.close();
    this.posted.clear();
    this.partial.clear();
    this.unexpectedBytes = 0;
  }

  lostError(reason: string): PeerError {
    return new PeerError(
      'PEER_LOST',
      `${this.name} is lost: ${reason}; form a new group without it, or start again from a checkpoint`,
      { ...this.facts, reason },
    );
  }

  violationError(field: string): PeerError {
    return new PeerError(
      'PROTOCOL_VIOLATION',
      `${this.name} broke the protocol: ${field}; its connections were closed: check that it runs the same version of Tributary`,
      { ...this.facts, field },
    );
  }

  #start(connection: Connection, sending: Sending, offset: number, bytes: number): void {
    const { group, tag, sequence, step, signature, weight } = sending.envelope;
    const totalBytes = sending.region.byteLength;
    const kind = FrameKind.MESSAGE;
    // The fields of every frame come in one order, which keeps the writer of headers quick.
    const frame = { kind, group, tag, sequence, step, signature, totalBytes, offset, bytes, weight };
    this.#startNow(connection, { frame, sending, heap: undefined });
  }

  /** What can go at once goes at once; the rest goes in `poll`. */
  #startNow(connection: Connection, part: OutgoingPart): void {
    const { writer } = connection;
    const wasIdle = !writer.hasUnsent;
    writer.enqueue(part);
    if (wasIdle) writer.write();
  }

  #leastBusy(): Connection {
    let best = this.connections[0]!;
    for (const connection of this.connections) {
      if (connection!.writer.queuedBytes < best.writer.queuedBytes) best = connection!;
    }
    return best;
  }
}

function controlFrame(kind: FrameKind, bytes: number): Frame {
  const envelope = { group: 0, tag: 0, sequence: 0, step: 0, signature: 0 };
  return { kind, ...envelope, totalBytes: bytes, offset: 0, bytes, weight: 0 };
}

/** What other members say of themselves is checked before it is used. */
function checkAddress(member: number, title: string, address: Readonly<Record<string, unknown>>): TcpAddress {
  const { host, port, id } = address;
  const isValid =
    typeof host === 'string' &&
    /^[\w.:%-]{1,255}$/.test(host) &&
    Number.isInteger(port) &&
    (port as number) > 0 &&
    (port as number) < 65536 &&
    typeof id === 'string' &&
    id.length === 2 * ID_BYTES &&
    /^[0-9a-f]+$/.test(id);
  if (isValid) return { host, port: port as number, id };
  throw new PeerError(
    'UNREACHABLE',
    `member ${member} (${title}) gave no address of a TCP transport; expected host, port and id: check that it uses the same transport`,
    { member, title },
  );
}
