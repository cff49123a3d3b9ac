/**
 * Takes entries off the rings, checks them and completes receives. It owns the matching and tells nobody anything
 * itself: events are handed to `tell` and reach the user when the poll is over. Invariant: no number in a ring is used
 * before it was checked, and each is read once; a peer that breaks the protocol is described, never followed.
 */
import { bytesPerElement } from '../../memory/index.ts';
import type { DType, SharedSpace } from '../../memory/index.ts';
import { Matching } from '../matching.ts';
import type { OperationKey } from '../matching.ts';
import type { Envelope, TransportEvents } from '../transport.ts';
import {
  dtypeOf,
  ENTRY_HEADER_BYTES,
  EntryKind,
  EntryWord,
  MAX_NOTICE_BYTES,
  SEGMENT_SLOTS,
} from './layout.ts';
import type { Link } from './link.ts';
import type { CopyBytes } from './memory-copy.ts';
import { EarlyMessage, InPlacePayload } from './receive.ts';
import type { Receive } from './receive.ts';

export type Tell = (event: (to: TransportEvents) => void) => void;

/** What a peer did wrong, to follow its name in a sentence. */
export interface Fault {
  readonly what: string;
  readonly cause?: unknown;
}

/** Codes of `attachSegment` for which the peer is to blame, and not the lack of memory here. */
const FAULTS_OF_THE_PEER: readonly unknown[] = [
  'SEGMENT_NOT_FOUND',
  'SEGMENT_CORRUPT',
  'INVALID_ARGUMENT',
  'OUT_OF_BOUNDS',
];

const NOTHING = new Uint8Array(0);

export class Arrivals {
  readonly #matching = new Matching<Receive, EarlyMessage>();
  readonly #copyBytes: CopyBytes;
  readonly #bytes: Uint8Array;
  readonly #tell: Tell;
  /** Written anew for each entry, so that a message that is awaited makes no object. */
  readonly #envelope = { group: 0, tag: 0, sequence: 0, step: 0, signature: 0, weight: 0 };

  constructor(space: SharedSpace, copyBytes: CopyBytes, tell: Tell) {
    this.#bytes = new Uint8Array(space.buffer);
    this.#copyBytes = copyBytes;
    this.#tell = tell;
  }

  get postedCount(): number {
    return this.#matching.postedCount;
  }

  /** Whether a receive waits for a message of the peer. */
  expects(member: number): boolean {
    return this.#matching.expects(member);
  }

  post(envelope: Envelope, receive: Receive): void {
    const message = this.#matching.post(receive.peer, envelope, receive);
    if (!message) return;
    const { payload } = message;
    const accepted =
      message.envelope.signature === envelope.signature &&
      receive.accepts(message.kind, message.dtype, message.length);
    if (!accepted) {
      this.#mismatch(receive.peer, message.envelope, message.payloadBytes);
      drop(message);
    } else if (payload instanceof InPlacePayload) {
      receive.complete(message.envelope.weight, payload);
    } else {
      if (payload.length > 0) this.#bytes.set(payload, receive.into!.byteOffset);
      receive.complete(message.envelope.weight);
    }
  }

  forget(operation: OperationKey): void {
    for (const message of this.#matching.forget(operation)) drop(message);
  }

  dropPeer(member: number): void {
    for (const message of this.#matching.drop(member)) drop(message);
  }

  /** Takes everything that the peer has published; returns what is wrong with it, if anything. */
  drain(link: Link): Fault | undefined {
    const { reader } = link;
    const tailFault = reader.look();
    if (tailFault !== undefined) return { what: tailFault };
    let fault: Fault | undefined;
    while (fault === undefined) {
      const word = reader.next();
      if (word === -1) break;
      fault =
        word < 0 ? { what: 'published an entry that does not lie in its ring' } : this.#take(link, word);
    }
    if (reader.free()) link.control.ring();
    return fault;
  }

  #take(link: Link, word: number): Fault | undefined {
    const kind = link.reader.words[word + EntryWord.KIND]!;
    switch (kind) {
      case EntryKind.INLINE:
      case EntryKind.IN_PLACE:
      case EntryKind.LENT:
        return this.#takeMessage(link, word, kind);
      case EntryKind.ACKNOWLEDGEMENT: {
        const id = link.reader.words[word + EntryWord.ID]!;
        return link.acknowledged(id)
          ? undefined
          : { what: `acknowledged message ${id}, which was not sent to it` };
      }
      case EntryKind.NOTICE:
        return this.#takeNotice(link, word);
      case EntryKind.SEGMENT:
        return this.#takeSegmentName(link, word);
      case EntryKind.PAD:
        return undefined;
      default:
        return { what: `published an entry of the unknown kind ${kind}` };
    }
  }

  #takeMessage(link: Link, word: number, kind: number): Fault | undefined {
    const { words, doubles } = link.reader;
    const envelope = this.#envelope;
    envelope.group = words[word + EntryWord.GROUP]! >>> 0;
    envelope.tag = words[word + EntryWord.TAG]! >>> 0;
    envelope.sequence = words[word + EntryWord.SEQUENCE]! >>> 0;
    envelope.step = words[word + EntryWord.STEP]! >>> 0;
    envelope.signature = words[word + EntryWord.SIGNATURE]! >>> 0;
    envelope.weight = doubles[(word + EntryWord.WEIGHT) >> 1]!;
    const code = words[word + EntryWord.DTYPE]!;
    const length = words[word + EntryWord.LENGTH]! >>> 0;
    const dtype = dtypeOf(code);
    if (dtype === undefined) return { what: `sent a message of the unknown element type ${code}` };
    const payloadBytes = length * bytesPerElement(dtype);
    let inPlace: InPlacePayload | undefined;
    if (kind === EntryKind.INLINE) {
      const written = words[word + EntryWord.PAYLOAD_BYTES]!;
      if (payloadBytes !== written || payloadBytes > link.reader.payloadRoom) {
        return {
          what: `sent ${length} elements of ${dtype} in an entry with ${written} bytes, of which ${link.reader.payloadRoom} fit`,
        };
      }
    } else if (this.#matching.isForgotten(envelope)) {
      // Not mapped first: the sender may have freed its memory since it forgot the operation as well.
      if (kind === EntryKind.IN_PLACE) link.acknowledge(words[word + EntryWord.ID]!);
      return undefined;
    } else {
      const found = this.#findRegion(link, word, dtype, length, kind);
      if (!(found instanceof InPlacePayload)) return found;
      inPlace = found;
    }
    const match = this.#matching.arrive(link.member, envelope);
    if (!match) {
      this.#keep(link, word, kind, code, length, payloadBytes, inPlace);
      return undefined;
    }
    const receive = match.posted;
    if (match.envelope.signature !== envelope.signature || !receive.accepts(kind, code, length)) {
      this.#mismatch(link.member, { ...envelope }, payloadBytes);
      inPlace?.release();
      return undefined;
    }
    if (!inPlace) this.#copyBytes(receive.into!.byteOffset, payloadOffset(link, word), payloadBytes);
    receive.complete(envelope.weight, inPlace);
    return undefined;
  }

  /** Keeps a message for a later receive, unless its operation has ended. */
  #keep(
    link: Link,
    word: number,
    kind: number,
    dtype: number,
    length: number,
    payloadBytes: number,
    inPlace: InPlacePayload | undefined,
  ): void {
    if (!inPlace && this.#matching.isForgotten(this.#envelope)) return;
    // Field by field: peers are often a step ahead, and spreading an object costs as much as a small message.
    const { group, tag, sequence, step, signature, weight } = this.#envelope;
    const envelope = { group, tag, sequence, step, signature, weight };
    const payload = inPlace ?? (payloadBytes === 0 ? NOTHING : this.#copyOf(link, word, payloadBytes));
    const message = new EarlyMessage(envelope, kind, dtype, length, payloadBytes, payload);
    this.#matching.keep(link.member, envelope, message);
  }

  #findRegion(link: Link, word: number, dtype: DType, length: number, kind: number): InPlacePayload | Fault {
    const { words } = link.reader;
    const slot = words[word + EntryWord.SLOT]!;
    const offset = words[word + EntryWord.OFFSET]! >>> 0;
    const id = words[word + EntryWord.ID]!;
    const name = link.foreign.nameOf(slot);
    if (name === undefined) return { what: `sent a region of segment ${slot}, which it never named` };
    if (kind === EntryKind.IN_PLACE && id === 0) return { what: 'sent a region that cannot be acknowledged' };
    try {
      const foreign = link.foreign.use(slot, name);
      try {
        const region = foreign.segment.region(dtype, offset, length);
        return new InPlacePayload(link, foreign, region, kind === EntryKind.LENT ? 0 : id);
      } catch (error) {
        foreign.release();
        throw error;
      }
    } catch (cause) {
      const region = `${length} elements of ${dtype} at byte ${offset} of segment '${name}'`;
      const toBlame = FAULTS_OF_THE_PEER.includes((cause as { code?: unknown }).code);
      return {
        what: toBlame
          ? `sent a region that is unmapped: ${region}`
          : `sent a region for which there is no room here: ${region}`,
        cause,
      };
    }
  }

  #takeNotice(link: Link, word: number): Fault | undefined {
    const bytes = link.reader.words[word + EntryWord.PAYLOAD_BYTES]!;
    if (bytes < 0 || bytes > Math.min(MAX_NOTICE_BYTES, link.reader.payloadRoom)) {
      return { what: `sent a notice of ${bytes} bytes in an entry for ${link.reader.payloadRoom}` };
    }
    const text = this.#textOf(link, word, bytes, 'utf8');
    const { member } = link;
    this.#tell((to) => to.notice(member, text));
    return undefined;
  }

  #takeSegmentName(link: Link, word: number): Fault | undefined {
    const bytes = link.reader.words[word + EntryWord.PAYLOAD_BYTES]!;
    const slot = link.reader.words[word + EntryWord.SLOT]!;
    if (bytes < 0 || bytes > Math.min(100, link.reader.payloadRoom) || slot < 0 || slot >= SEGMENT_SLOTS) {
      return { what: `named segment ${slot} with ${bytes} bytes` };
    }
    link.foreign.announce(slot, bytes === 0 ? undefined : this.#textOf(link, word, bytes, 'latin1'));
    return undefined;
  }

  #mismatch(peer: number, envelope: Envelope, payloadBytes: number): void {
    this.#tell((to) => to.mismatch(peer, envelope, payloadBytes));
  }

  #textOf(link: Link, word: number, byteLength: number, encoding: 'utf8' | 'latin1'): string {
    return Buffer.from(this.#copyOf(link, word, byteLength).buffer).toString(encoding);
  }

  #copyOf(link: Link, word: number, byteLength: number): Uint8Array<ArrayBuffer> {
    const copy = new Uint8Array(byteLength);
    const start = payloadOffset(link, word);
    copy.set(this.#bytes.subarray(start, start + byteLength));
    return copy;
  }
}

function payloadOffset(link: Link, word: number): number {
  return link.reader.byteOffset(word) + ENTRY_HEADER_BYTES;
}

function drop({ payload }: EarlyMessage): void {
  if (payload instanceof InPlacePayload) payload.release();
}
