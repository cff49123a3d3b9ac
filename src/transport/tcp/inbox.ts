/**
 * Brings the frames that come to the receives that wait for them, for all peers. It reads no sockets: connections ask
 * it where bytes go. Invariants: a message with another length or signature never touches the region of a receive; for
 * each peer at most `maxUnexpectedBytes` are kept for messages that nobody has asked for.
 */
import type { Region } from '../../memory/index.ts';
import { Matching } from '../matching.ts';
import type { OperationKey } from '../matching.ts';
import type { Envelope } from '../transport.ts';
import type { Connection, Receiver } from './connection.ts';
import { isOf } from './envelope-checks.ts';
import { FrameKind, ProtocolFault } from './frame.ts';
import type { Frame } from './frame.ts';
import { Incoming, TcpReceiving } from './messages.ts';
import type { IncomingPart } from './messages.ts';
import type { Peer } from './peer.ts';

/** Receives what came; the transport passes it on from inside `poll`. */
export interface InboxEvents {
  notice(peer: Peer, text: string): void;
  mismatch(peer: Peer, envelope: Envelope, payloadBytes: number): void;
  /** Reading from the peer pauses: nobody has asked for what it sent, and there is no room for more. */
  paused(peer: Peer, envelope: Envelope, payloadBytes: number): void;
}

export class Inbox implements Receiver {
  readonly #matching = new Matching<TcpReceiving, Incoming>();
  readonly #maxUnexpectedBytes: number;
  readonly #events: InboxEvents;
  readonly #decoder = new TextDecoder();

  constructor(maxUnexpectedBytes: number, events: InboxEvents) {
    this.#maxUnexpectedBytes = maxUnexpectedBytes;
    this.#events = events;
  }

  post(peer: Peer, envelope: Envelope, into: Region): TcpReceiving {
    const receiving = new TcpReceiving(peer.member, envelope, into);
    const message = this.#matching.post(peer.member, envelope, receiving);
    if (message === undefined) {
      peer.posted.add(receiving);
      return receiving;
    }
    if (this.#fits(peer, receiving, message.frame)) this.#deliver(peer, receiving, message);
    else message.discard();
    return receiving;
  }

  /** Where the part goes; undefined if there is no room for it now. Throws a `ProtocolFault`. */
  admit(connection: Connection, frame: Frame): IncomingPart | undefined {
    const { peer } = connection;
    if (frame.kind !== FrameKind.MESSAGE) return onlyPart(frame, new Uint8Array(frame.bytes));
    // The other parts of a forgotten message may never come, so none waits for them.
    if (this.#matching.isForgotten(frame)) return new Incoming(frame).addPart(frame.offset, frame.bytes);
    const isWhole = frame.bytes === frame.totalBytes;
    const name = isWhole ? '' : nameOf(frame);
    const begun = isWhole ? undefined : peer.partial.get(name);
    if (begun) return addPart(peer, begun, frame);
    const message = this.#begin(connection, frame);
    if (message === undefined) return undefined;
    if (!isWhole) peer.partial.set(name, message);
    return addPart(peer, message, frame);
  }

  /** All bytes of the part are here. */
  finish(connection: Connection, part: IncomingPart): void {
    const { peer } = connection;
    const { message } = part;
    const { frame } = message;
    if (frame.kind === FrameKind.BYE) {
      connection.saidBye = true;
    } else if (frame.kind === FrameKind.NOTICE) {
      this.#events.notice(peer, this.#decoder.decode(message.heap));
    } else {
      message.missing -= part.end - part.start;
      if (message.missing > 0) return;
      if (message.parts.length > 1) peer.partial.delete(nameOf(frame));
      if (message.receiving) complete(peer, message.receiving, frame);
    }
  }

  /** Ends the receives of an operation; what still comes for it is dropped. */
  forget(operation: OperationKey, peers: Iterable<Peer>): void {
    const unwanted = this.#matching.forget(operation);
    for (const peer of peers) {
      for (const receiving of peer.posted) {
        if (!isOf(operation, receiving.envelope)) continue;
        peer.posted.delete(receiving);
        receiving.incoming?.discard();
      }
      for (const [name, { frame }] of peer.partial) {
        if (isOf(operation, frame)) peer.partial.delete(name);
      }
    }
    for (const message of unwanted) message.discard();
  }

  /** Nothing of the peer is wanted any more. */
  drop(peer: Peer): void {
    for (const message of this.#matching.drop(peer.member)) message.discard();
  }

  /** The message of a first part, with a place for its bytes; undefined if there is no room for it now. */
  #begin(connection: Connection, frame: Frame): Incoming | undefined {
    const { peer } = connection;
    const message = new Incoming(frame);
    const match = this.#matching.arrive(peer.member, frame);
    if (match) {
      const receiving = match.posted;
      if (this.#fits(peer, receiving, frame)) {
        message.receiving = receiving;
        receiving.incoming = message;
      }
      return message;
    }
    const isOver = peer.unexpectedBytes + message.keptBytes > this.#maxUnexpectedBytes;
    if (isOver && !connection.isEnding) {
      if (!peer.isHeldBack) this.#events.paused(peer, envelopeOf(frame), frame.totalBytes);
      peer.isHeldBack = true;
      return undefined;
    }
    peer.isHeldBack = false;
    message.keep(peer);
    this.#matching.keep(peer.member, frame, message);
    return message;
  }

  /** Whether the message is what the receive expects; else the receive is over and the user receives the error. */
  #fits(peer: Peer, receiving: TcpReceiving, frame: Frame): boolean {
    const { region, envelope } = receiving;
    if (frame.totalBytes === region.byteLength && frame.signature === envelope.signature) return true;
    peer.posted.delete(receiving);
    this.#events.mismatch(peer, envelopeOf(frame), frame.totalBytes);
    return false;
  }

  /** Moves what has come of a kept message into the region; the rest goes there directly. */
  #deliver(peer: Peer, receiving: TcpReceiving, message: Incoming): void {
    const { region } = receiving;
    const target = new Uint8Array(region.space.buffer, region.byteOffset, region.byteLength);
    const kept = message.unkeep()!;
    for (const { start, next } of message.parts) target.set(kept.subarray(start, next), start);
    message.receiving = receiving;
    receiving.incoming = message;
    peer.posted.add(receiving);
    if (message.missing === 0) complete(peer, receiving, message.frame);
  }
}

function complete(peer: Peer, receiving: TcpReceiving, frame: Frame): void {
  peer.posted.delete(receiving);
  receiving.incoming = undefined;
  receiving.weight = frame.weight;
  receiving.done = true;
}

function onlyPart(frame: Frame, heap: Uint8Array): IncomingPart {
  const message = new Incoming(frame);
  message.heap = heap;
  return message.addPart(0, frame.bytes)!;
}

function addPart(peer: Peer, message: Incoming, frame: Frame): IncomingPart {
  const { totalBytes, signature, weight } = message.frame;
  if (frame.totalBytes !== totalBytes || frame.signature !== signature || !Object.is(frame.weight, weight)) {
    throw new ProtocolFault(`totalBytes, signature or weight differ between the parts of a message`);
  }
  if (message.parts.length === peer.connectionCount) {
    throw new ProtocolFault(`a message comes in more parts than there are connections`);
  }
  const part = message.addPart(frame.offset, frame.bytes);
  if (part) return part;
  throw new ProtocolFault(`offset ${frame.offset}: the part overlaps another of its message`);
}

function nameOf({ group, tag, sequence, step }: Envelope): string {
  return `${group}/${tag}/${sequence}/${step}`;
}

function envelopeOf({ group, tag, sequence, step, signature, weight }: Frame): Envelope {
  return { group, tag, sequence, step, signature, weight };
}
