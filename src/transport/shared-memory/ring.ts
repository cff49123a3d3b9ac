/**
 * The two ends of a ring: one process appends entries, another takes them off, without locks. It knows the frame of an
 * entry, not its meaning. Invariants: the producer alone writes the tail and the consumer alone the head; an entry is
 * whole before the tail passes it, so publishing is one atomic store; neither end believes a number of the other.
 */
import type { Segment } from '../../memory/index.ts';
import {
  CACHE_LINE_BYTES,
  ENTRY_HEADER_BYTES,
  EntryKind,
  EntryWord,
  MAX_RING_BYTES,
  MIN_RING_BYTES,
  RING_DATA_BYTES,
  RingWord,
} from './layout.ts';

class RingEnd {
  readonly words: Int32Array;
  /** The same memory as `words`. */
  readonly doubles: Float64Array;
  readonly segment: Segment;
  protected readonly capacity: number;

  constructor(segment: Segment) {
    this.segment = segment;
    this.words = segment.region('int32', 0, segment.byteLength >> 2).view;
    this.doubles = segment.region('float64', 0, segment.byteLength >> 3).view;
    this.capacity = segment.byteLength - RING_DATA_BYTES;
  }

  /** Where a word of the ring is in the space, in bytes. */
  byteOffset(word: number): number {
    return this.segment.byteOffset + word * 4;
  }
}

/** What is wrong with the size of a ring, if anything. */
export function ringFault(segment: Segment): string | undefined {
  const capacity = segment.byteLength - RING_DATA_BYTES;
  const whole = capacity >= MIN_RING_BYTES && capacity <= MAX_RING_BYTES && (capacity & (capacity - 1)) === 0;
  return whole ? undefined : `its ring has ${capacity} bytes, which is no power of two that is allowed`;
}

export class RingWriter extends RingEnd {
  #tail = 0;
  #head = 0;
  #broken = false;

  /** The consumer has written an impossible head. */
  get broken(): boolean {
    return this.#broken;
  }

  /** First word of a new entry's header, of which kind and size are written; -1 if there is no room for it. */
  reserve(kind: number, payloadBytes: number): number {
    const entryBytes = (ENTRY_HEADER_BYTES + payloadBytes + CACHE_LINE_BYTES - 1) & -CACHE_LINE_BYTES;
    const at = this.#tail & (this.capacity - 1);
    const toEnd = this.capacity - at;
    const padBytes = entryBytes > toEnd ? toEnd : 0;
    if (!this.#hasRoom(padBytes + entryBytes)) return -1;
    if (padBytes > 0) this.#frame(at, EntryKind.PAD, padBytes);
    return this.#frame(padBytes > 0 ? 0 : at, kind, entryBytes);
  }

  /** Shows the consumer everything reserved so far. */
  publish(): void {
    Atomics.store(this.words, RingWord.TAIL, this.#tail);
  }

  /** Asks the consumer to ring when it has made room; look once more for room before sleeping. */
  wantSpace(wanted: boolean): void {
    Atomics.store(this.words, RingWord.WANTS_SPACE, wanted ? 1 : 0);
  }

  /** Whether the consumer has taken anything since there was last no room. */
  get hasMoved(): boolean {
    return Atomics.load(this.words, RingWord.HEAD) !== this.#head;
  }

  #frame(at: number, kind: number, entryBytes: number): number {
    const word = (RING_DATA_BYTES + at) >> 2;
    this.words[word + EntryWord.KIND] = kind;
    this.words[word + EntryWord.ENTRY_BYTES] = entryBytes;
    this.#tail = (this.#tail + entryBytes) | 0;
    return word;
  }

  #hasRoom(bytes: number): boolean {
    if (((this.#tail - this.#head) >>> 0) + bytes <= this.capacity) return true;
    this.#head = Atomics.load(this.words, RingWord.HEAD);
    const used = (this.#tail - this.#head) >>> 0;
    if (used > this.capacity || used % CACHE_LINE_BYTES !== 0) this.#broken = true;
    return !this.#broken && used + bytes <= this.capacity;
  }
}

export class RingReader extends RingEnd {
  #head = 0;
  /** Bytes that the last look at the tail found and that are not taken yet. */
  #available = 0;
  #payloadRoom = 0;

  /** Bytes after the header of the entry that `next` gave last. */
  get payloadRoom(): number {
    return this.#payloadRoom;
  }

  get hasEntries(): boolean {
    return Atomics.load(this.words, RingWord.TAIL) !== this.#head;
  }

  /** Looks at the tail once, for the calls of `next` that follow; says what is wrong with it, if anything. */
  look(): string | undefined {
    const tail = Atomics.load(this.words, RingWord.TAIL);
    const available = (tail - this.#head) >>> 0;
    if (available > this.capacity || available % CACHE_LINE_BYTES !== 0) {
      return `its tail says ${available} bytes are published in a ring of ${this.capacity}`;
    }
    this.#available = available;
    return undefined;
  }

  /** First word of the oldest entry, which lies inside the ring as its frame says; -1: none; -2: a broken frame. */
  next(): number {
    if (this.#available === 0) return -1;
    const at = this.#head & (this.capacity - 1);
    const word = (RING_DATA_BYTES + at) >> 2;
    const entryBytes = this.words[word + EntryWord.ENTRY_BYTES]!;
    const whole = entryBytes >= ENTRY_HEADER_BYTES && entryBytes % CACHE_LINE_BYTES === 0;
    if (!whole || entryBytes > this.#available || at + entryBytes > this.capacity) return -2;
    this.#head = (this.#head + entryBytes) | 0;
    this.#available -= entryBytes;
    this.#payloadRoom = entryBytes - ENTRY_HEADER_BYTES;
    return word;
  }

  /** Gives the entries taken so far back to the producer; true if it waits for that. */
  free(): boolean {
    Atomics.store(this.words, RingWord.HEAD, this.#head);
    return Atomics.load(this.words, RingWord.WANTS_SPACE) !== 0;
  }
}
