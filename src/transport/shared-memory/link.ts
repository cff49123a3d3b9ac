/**
 * Everything held for one peer: both rings, its control block, its mapped segments, and what is on its way there. It
 * writes entries and never reads them (`Arrivals` does). Invariants: entries leave in the order in which they were
 * pushed, whether or not there was room; nothing is pushed to a peer that is lost.
 */
import { PeerError } from '../../base/index.ts';
import type { ErrorCode } from '../../base/index.ts';
import { isAlive } from '../../memory/index.ts';
import type { ProcessIdentity, Segment, SharedSpace } from '../../memory/index.ts';
import type { OperationKey } from '../matching.ts';
import type { Control } from './control.ts';
import { ForeignSegments } from './foreign-segments.ts';
import { ENTRY_HEADER_BYTES, EntryKind, EntryWord, SEGMENT_SLOTS } from './layout.ts';
import type { CopyBytes } from './memory-copy.ts';
import { acknowledgement, textEntry } from './outgoing.ts';
import type { Outgoing } from './outgoing.ts';
import type { RingReader, RingWriter } from './ring.ts';
import type { Staging } from './staging.ts';

/** Who the peer is and the ways to it. */
export interface LinkParts {
  readonly member: number;
  readonly title: string;
  readonly identity: ProcessIdentity;
  readonly control: Control;
  readonly writer: RingWriter;
  readonly reader: RingReader;
}

/** What all links of a transport share. */
export interface LinkSurroundings {
  readonly space: SharedSpace;
  readonly directory: string;
  readonly copyBytes: CopyBytes;
  readonly staging: Staging;
}

export class Link {
  readonly member: number;
  readonly control: Control;
  readonly reader: RingReader;
  readonly identity: ProcessIdentity;
  readonly foreign: ForeignSegments;
  readonly #title: string;
  readonly #writer: RingWriter;
  readonly #copyBytes: CopyBytes;
  readonly #space: SharedSpace;
  readonly #staging: Staging;
  #queue: Outgoing[] = [];
  readonly #unacknowledged = new Map<number, Outgoing>();
  readonly #slots = new Map<Segment, number>();
  readonly #slotOwners: (Segment | undefined)[] = [];
  #nextSlot = 0;
  #nextId = 1;
  #lost = false;
  #isOver = false;

  constructor(parts: LinkParts, surroundings: LinkSurroundings) {
    this.member = parts.member;
    this.#title = parts.title;
    this.identity = parts.identity;
    this.control = parts.control;
    this.#writer = parts.writer;
    this.reader = parts.reader;
    this.#space = surroundings.space;
    this.#copyBytes = surroundings.copyBytes;
    this.#staging = surroundings.staging;
    this.foreign = new ForeignSegments(surroundings.space, surroundings.directory);
  }

  get lost(): boolean {
    return this.#lost;
  }

  /** Whether the peer closed in order and nothing more comes of it; what came can be received, nothing goes there. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Whether everything that somebody may wait for has left and, where needed, was acknowledged. */
  get idle(): boolean {
    if (this.#queue.length > 0) return false;
    for (const { done, forgotten } of this.#unacknowledged.values()) if (!done && !forgotten) return false;
    return true;
  }

  /** Whether the peer needs nothing of this process's memory any more. */
  get drained(): boolean {
    if (this.#queue.length > 0) return false;
    for (const { forgotten } of this.#unacknowledged.values()) if (!forgotten) return false;
    return true;
  }

  /** Whether `flush` may have something to do. */
  get canFlush(): boolean {
    return this.#queue.length > 0 && this.#writer.hasMoved;
  }

  /** Whether the peer has said that it is gone. */
  get hasLeft(): boolean {
    return !this.control.isOpen;
  }

  /** Whether it left in order. */
  get hasClosed(): boolean {
    return this.hasLeft && !this.control.aborted;
  }

  /** How the peer ended, if it did; looks at its process. */
  findEnding(): string | undefined {
    if (this.hasLeft) return this.hasClosed ? 'has closed its transport' : 'has aborted';
    return isAlive(this.identity) ? undefined : 'has died';
  }

  push(outgoing: Outgoing): void {
    if (this.#lost || this.#isOver) return;
    if (this.#queue.length === 0 && this.#write(outgoing)) {
      this.#writer.publish();
      this.control.ring();
      return;
    }
    this.#queue.push(outgoing);
    this.#writer.wantSpace(true);
  }

  /** Writes what had no room before; true if anything left. */
  flush(): boolean {
    let count = 0;
    while (count < this.#queue.length && this.#write(this.#queue[count]!)) count++;
    if (count === 0) return false;
    this.#queue.splice(0, count);
    if (this.#queue.length === 0) this.#writer.wantSpace(false);
    this.#writer.publish();
    this.control.ring();
    return true;
  }

  get hasQueue(): boolean {
    return this.#queue.length > 0;
  }

  /** What the peer did wrong with the ring to it, if anything. */
  get writerFault(): string | undefined {
    return this.#writer.broken ? 'it took more out of its ring than was put in' : undefined;
  }

  /** The number under which the peer knows a segment; tells it the name when it is new. */
  slotOf(segment: Segment): number {
    const known = this.#slots.get(segment);
    if (known !== undefined) return known;
    const slot = this.#nextSlot++ % SEGMENT_SLOTS;
    const before = this.#slotOwners[slot];
    if (before) this.#slots.delete(before);
    this.#slotOwners[slot] = segment;
    this.#slots.set(segment, slot);
    this.push(textEntry(this.member, EntryKind.SEGMENT, Buffer.from(segment.name!, 'latin1'), slot));
    return slot;
  }

  /** The peer need not keep the segment mapped: its slot gets no name until it is used again. */
  letGo(segment: Segment): void {
    const slot = this.#slots.get(segment);
    if (slot === undefined) return;
    this.#slots.delete(segment);
    this.#slotOwners[slot] = undefined;
    this.push(textEntry(this.member, EntryKind.SEGMENT, Buffer.alloc(0), slot));
  }

  /** Gives a send a number that its acknowledgement will name. */
  expectAcknowledgement(outgoing: Outgoing): void {
    outgoing.id = this.#nextId;
    this.#nextId = (this.#nextId + 1) | 0;
    this.#unacknowledged.set(outgoing.id, outgoing);
  }

  acknowledge(id: number): void {
    this.push(acknowledgement(this.member, id));
  }

  /** The peer has read a send; false if there is no such send. */
  acknowledged(id: number): boolean {
    const outgoing = this.#unacknowledged.get(id);
    if (!outgoing) return false;
    this.#unacknowledged.delete(id);
    outgoing.done = true;
    if (outgoing.staged) this.#staging.giveBack(outgoing.staged);
    return true;
  }

  /** Takes back what has not left yet and stops counting what is not acknowledged. */
  forget(operation: OperationKey): void {
    if (this.#queue.length > 0) {
      this.#queue = this.#queue.filter((outgoing) => {
        if (!isOf(outgoing, operation)) return true;
        this.acknowledged(outgoing.id);
        outgoing.done = false;
        return false;
      });
      if (this.#queue.length === 0) this.#writer.wantSpace(false);
    }
    for (const outgoing of this.#unacknowledged.values()) {
      if (isOf(outgoing, operation)) outgoing.forgotten = true;
    }
  }

  /** The peer has closed in order, and all that it sent was taken. */
  end(): void {
    this.#isOver = true;
    this.#giveBackStaged();
  }

  /** Nothing goes there any more; the memory of what came stays mapped until `close`. */
  lose(): void {
    this.#lost = true;
    this.#queue = [];
    this.#giveBackStaged();
  }

  close(): void {
    this.lose();
    this.foreign.close();
    this.#writer.segment.close();
    this.reader.segment.close();
    this.control.segment.close();
  }

  error(code: ErrorCode, what: string, nextStep: string, cause?: unknown): PeerError {
    const { pid } = this.identity;
    const title = this.#title.includes(String(pid)) ? this.#title : `${this.#title}, process ${pid}`;
    return new PeerError(
      code,
      `member ${this.member} (${title}) ${what}; ${nextStep}`,
      { member: this.member, title: this.#title, pid },
      cause,
    );
  }

  #giveBackStaged(): void {
    for (const { staged } of this.#unacknowledged.values()) if (staged) this.#staging.giveBack(staged);
    this.#unacknowledged.clear();
  }

  #write(outgoing: Outgoing): boolean {
    const word = this.#writer.reserve(outgoing.kind, outgoing.payloadBytes);
    if (word < 0) return false;
    const { words, doubles } = this.#writer;
    const { envelope, kind } = outgoing;
    words[word + EntryWord.GROUP] = envelope.group;
    words[word + EntryWord.TAG] = envelope.tag;
    words[word + EntryWord.SEQUENCE] = envelope.sequence;
    words[word + EntryWord.STEP] = envelope.step;
    words[word + EntryWord.SIGNATURE] = envelope.signature;
    words[word + EntryWord.DTYPE] = outgoing.dtype;
    doubles[(word + EntryWord.WEIGHT) >> 1] = envelope.weight;
    words[word + EntryWord.LENGTH] = outgoing.length;
    words[word + EntryWord.PAYLOAD_BYTES] = outgoing.payloadBytes;
    words[word + EntryWord.SLOT] = outgoing.slot;
    words[word + EntryWord.OFFSET] = outgoing.offset;
    words[word + EntryWord.ID] = outgoing.id;
    const target = this.#writer.byteOffset(word) + ENTRY_HEADER_BYTES;
    if (outgoing.source) this.#copyBytes(target, outgoing.source.byteOffset, outgoing.payloadBytes);
    else if (outgoing.payload) this.#bytesAt(target, outgoing.payloadBytes).set(outgoing.payload);
    if (kind !== EntryKind.IN_PLACE || outgoing.staged) outgoing.done = true;
    return true;
  }

  #bytesAt(byteOffset: number, byteLength: number): Uint8Array {
    return new Uint8Array(this.#space.buffer, byteOffset, byteLength);
  }
}

function isOf({ kind, envelope }: Outgoing, { group, tag, sequence }: OperationKey): boolean {
  if (kind !== EntryKind.INLINE && kind !== EntryKind.IN_PLACE && kind !== EntryKind.LENT) return false;
  return envelope.sequence === sequence && envelope.tag === tag && envelope.group === group;
}
