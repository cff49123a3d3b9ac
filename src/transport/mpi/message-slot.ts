/**
 * A small MPI message in memory: 64 bytes of header, and behind it a payload that is small enough to ride along. Both
 * sides of the transport use the same slots, so the layout is written down once, here. Invariant: a header that does
 * not open with the mark of this version is never read as one.
 */
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import type { Envelope } from '../transport.ts';

export const HEADER_BYTES = 64;
/** With its header such a payload stays below 4 KiB, which Open MPI sends at once on every transport. */
export const INLINE_BYTES = 3840;
export const SLOT_BYTES = HEADER_BYTES + INLINE_BYTES;

/** 'TMP' and the version of this layout. */
const MARK = 0x54_4d_50_01;

export const MessageKind = { message: 1, notice: 2, withdraw: 3, bye: 4, aborted: 5 } as const;
export type MessageKind = (typeof MessageKind)[keyof typeof MessageKind];

export interface Header {
  readonly kind: number;
  readonly envelope: Envelope;
  readonly payloadBytes: number;
  /** The MPI tag under which the payload comes; 0 if it is in the slot. */
  readonly payloadTag: number;
  /** Of notices: another part follows. */
  readonly more: boolean;
}

// In words of 4 bytes, and in doubles of 8.
const Word = {
  mark: 0,
  kind: 1,
  group: 2,
  tag: 3,
  sequence: 4,
  step: 5,
  signature: 6,
  payloadTag: 7,
  more: 12,
};
const Double = { payloadBytes: 4, weight: 5 };

export class MessageSlot {
  readonly address: number;
  /** The bytes behind the header. */
  readonly inline: Uint8Array;
  readonly #words: Uint32Array;
  readonly #doubles: Float64Array;

  constructor(segment: Segment, byteOffset: number) {
    const header = segment.region('uint32', byteOffset, HEADER_BYTES / 4);
    this.address = Number(header.address);
    this.#words = header.view;
    this.#doubles = segment.region('float64', byteOffset, HEADER_BYTES / 8).view;
    this.inline = segment.region('uint8', byteOffset + HEADER_BYTES, INLINE_BYTES).view;
  }

  write({ kind, envelope, payloadBytes, payloadTag, more }: Header): void {
    const words = this.#words;
    words[Word.mark] = MARK;
    words[Word.kind] = kind;
    words[Word.group] = envelope.group;
    words[Word.tag] = envelope.tag;
    words[Word.sequence] = envelope.sequence;
    words[Word.step] = envelope.step;
    words[Word.signature] = envelope.signature;
    words[Word.payloadTag] = payloadTag;
    words[Word.more] = more ? 1 : 0;
    this.#doubles[Double.payloadBytes] = payloadBytes;
    this.#doubles[Double.weight] = envelope.weight;
  }

  /** Undefined where the bytes are no header of this version. */
  read(): Header | undefined {
    const words = this.#words;
    const payloadBytes = this.#doubles[Double.payloadBytes]!;
    const payloadTag = words[Word.payloadTag]!;
    if (words[Word.mark] !== MARK || !(payloadBytes >= 0)) return undefined;
    if (payloadTag === 0 && payloadBytes > INLINE_BYTES) return undefined;
    const envelope = {
      group: words[Word.group]!,
      tag: words[Word.tag]!,
      sequence: words[Word.sequence]!,
      step: words[Word.step]!,
      signature: words[Word.signature]!,
      weight: this.#doubles[Double.weight]!,
    };
    return { kind: words[Word.kind]!, envelope, payloadBytes, payloadTag, more: words[Word.more] === 1 };
  }
}

/** Slots for messages on their way out; it grows as needed and gives nothing back before `close`. */
export class SlotPool {
  readonly #space: SharedSpace;
  readonly #segments: Segment[] = [];
  readonly #free: MessageSlot[] = [];

  constructor(space: SharedSpace) {
    this.#space = space;
  }

  take(): MessageSlot {
    if (this.#free.length === 0) {
      const { segment, slots } = allocateSlots(this.#space, 32);
      this.#segments.push(segment);
      this.#free.push(...slots);
    }
    return this.#free.pop()!;
  }

  give(slot: MessageSlot): void {
    this.#free.push(slot);
  }

  close(): void {
    for (const segment of this.#segments.splice(0)) segment.close();
    this.#free.length = 0;
  }
}

export function allocateSlots(
  space: SharedSpace,
  count: number,
): { readonly segment: Segment; readonly slots: MessageSlot[] } {
  const segment = space.allocate(count * SLOT_BYTES);
  const slots = Array.from({ length: count }, (_, i) => new MessageSlot(segment, i * SLOT_BYTES));
  return { segment, slots };
}

/** The bytes of a region of any type. */
export function bytesOf(region: Region): Uint8Array {
  return new Uint8Array(region.space.buffer, region.byteOffset, region.byteLength);
}
