/**
 * The records of messages under way, in both directions, and of the parts they are cut into. They move no bytes and
 * decide nothing. Invariant: an incoming message has exactly one place for its bytes: the region of its receive, a
 * buffer on the heap while nobody has asked for it, or none, when its bytes are dropped.
 */
import type { Region } from '../../memory/index.ts';
import type { Envelope, Receiving, Transfer } from '../transport.ts';
import { FRAME_BYTES } from './frame.ts';
import type { Frame } from './frame.ts';

/** A message of ours. */
export class Sending implements Transfer {
  readonly peer: number;
  readonly envelope: Envelope;
  readonly region: Region;
  done = false;
  /** Parts whose bytes are still read from the region. */
  partsLeft: number;

  constructor(peer: number, envelope: Envelope, region: Region, parts: number) {
    this.peer = peer;
    this.envelope = envelope;
    this.region = region;
    this.partsLeft = parts;
  }

  partSent(): void {
    this.partsLeft--;
    if (this.partsLeft === 0) this.done = true;
  }
}

/** What a connection has to send: a frame whose payload is a part of a region or bytes on the heap. */
export interface OutgoingPart {
  readonly frame: Frame;
  /** Of whom `region` is; undefined for notices and byes. */
  readonly sending: Sending | undefined;
  readonly heap: Uint8Array | undefined;
}

export class TcpReceiving implements Receiving {
  readonly peer: number;
  readonly envelope: Envelope;
  readonly region: Region;
  done = false;
  weight = 0;
  /** The message, once its first part is here. */
  incoming: Incoming | undefined;

  constructor(peer: number, envelope: Envelope, region: Region) {
    this.peer = peer;
    this.envelope = envelope;
    this.region = region;
  }

  /** The bytes were copied into the caller's own region, so the sender waits for nothing. */
  release(): void {}
}

/** A part of an incoming message; `next` is where its next byte goes in the message. */
export interface IncomingPart {
  readonly message: Incoming;
  readonly start: number;
  readonly end: number;
  next: number;
}

/** A message, or a notice, of which at least the header has come. */
export class Incoming {
  readonly frame: Frame;
  readonly parts: IncomingPart[] = [];
  receiving: TcpReceiving | undefined;
  heap: Uint8Array | undefined;
  /** Who has bytes kept for this message while nobody has asked for it. */
  keptBy: { unexpectedBytes: number } | undefined;
  /** Bytes of parts that are not complete, or have not begun. */
  missing: number;

  constructor(frame: Frame) {
    this.frame = frame;
    this.missing = frame.totalBytes;
  }

  /** A new part; undefined if it overlaps one that came before. */
  addPart(start: number, bytes: number): IncomingPart | undefined {
    const end = start + bytes;
    if (this.parts.some((part) => start < part.end && part.start < end)) return undefined;
    const part: IncomingPart = { message: this, start, end, next: start };
    this.parts.push(part);
    return part;
  }

  /** Even an empty message takes room. */
  get keptBytes(): number {
    return this.frame.totalBytes + FRAME_BYTES;
  }

  keep(account: { unexpectedBytes: number }): void {
    account.unexpectedBytes += this.keptBytes;
    this.keptBy = account;
    this.heap = new Uint8Array(this.frame.totalBytes);
  }

  /** Somebody has asked for it: the bytes that have come, and the room is free. */
  unkeep(): Uint8Array | undefined {
    const { heap } = this;
    if (this.keptBy) this.keptBy.unexpectedBytes -= this.keptBytes;
    this.keptBy = undefined;
    this.heap = undefined;
    return heap;
  }

  /** What is here, and all that still comes, is dropped. */
  discard(): void {
    this.receiving = undefined;
    this.unkeep();
  }
}
