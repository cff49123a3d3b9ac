/**
 * Where everything lies in the segments of the shared-memory transport: the control block of a member and the ring
 * from one member to another. Numbers only. Invariant: both ends agree on this file; whoever changes it raises
 * `LAYOUT_VERSION`, which is compared before anything is mapped.
 */
import type { DType } from '../../memory/index.ts';

export const LAYOUT_VERSION = 2;

export const CACHE_LINE_BYTES = 64;

/** Words of the control block, each on its own cache line. */
export const ControlWord = {
  /** Counts rings; whoever sleeps, sleeps on it. */
  DOORBELL: 0,
  /** 1 while the member sleeps or is about to. */
  SLEEPING: 16,
  /** Hash of the operation for which the member writes into borrowed regions; 0 for none. */
  WRITING: 32,
  /** A `MemberState`. */
  STATE: 48,
} as const;
export const CONTROL_BYTES = 4 * CACHE_LINE_BYTES;

export const MemberState = { OPEN: 0, CLOSED: 1, ABORTED: 2 } as const;

/** Words of a ring before its data. Positions count bytes for ever, modulo 2^32. */
export const RingWord = {
  /** Everything before this position is published; the producer's. */
  TAIL: 0,
  /** 1 while the producer has entries that did not fit; next to the tail, which the consumer reads anyway. */
  WANTS_SPACE: 1,
  /** Everything before this position may be overwritten; the consumer's. */
  HEAD: 16,
} as const;
export const RING_DATA_BYTES = 2 * CACHE_LINE_BYTES;
export const MIN_RING_BYTES = 128 * 1024;
export const MAX_RING_BYTES = 64 * 2 ** 20;

/** An entry is a header of one cache line and a payload, padded to whole lines; it never wraps around the end. */
export const ENTRY_HEADER_BYTES = CACHE_LINE_BYTES;

/** Words of an entry's header. */
export const EntryWord = {
  KIND: 0,
  ENTRY_BYTES: 1,
  GROUP: 2,
  TAG: 3,
  SEQUENCE: 4,
  STEP: 5,
  SIGNATURE: 6,
  DTYPE: 7,
  /** Two words, a float64. */
  WEIGHT: 8,
  /** Elements. */
  LENGTH: 10,
  /** Bytes after the header. */
  PAYLOAD_BYTES: 11,
  /** Which announced segment. */
  SLOT: 12,
  /** Byte in that segment. */
  OFFSET: 13,
  /** What an acknowledgement refers to. */
  ID: 14,
} as const;

export const EntryKind = {
  /** Fills the end of the ring before an entry that would wrap. */
  PAD: 1,
  /** A message with its payload. */
  INLINE: 2,
  /** A message whose payload stays where the sender has it, until acknowledged. */
  IN_PLACE: 3,
  /** A region shown for writing; never acknowledged. */
  LENT: 4,
  ACKNOWLEDGEMENT: 5,
  NOTICE: 6,
  /** Gives the segment named in the payload a slot; without a name the slot's segment is used no more. */
  SEGMENT: 7,
} as const;

export const MAX_NOTICE_BYTES = 32 * 1024;
/** Segments of a sender that the receiver knows at a time; a new one takes the place of the oldest. */
export const SEGMENT_SLOTS = 256;

const CODES: Readonly<Record<DType, number>> = {
  float32: 0,
  float64: 1,
  int32: 2,
  uint32: 3,
  uint8: 4,
  uint16: 5,
  int64: 6,
};
const NAMES = Object.keys(CODES) as DType[];

export function dtypeCode(dtype: DType): number {
  return CODES[dtype];
}

export function dtypeOf(code: number): DType | undefined {
  return NAMES[code];
}
