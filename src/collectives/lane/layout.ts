/**
 * Where things are in the segment of a lane, in 32-bit words. Every word that one rank writes while others wait for it
 * has a cache line of its own. Invariant: the parts do not overlap, and only rank r writes to the parts of rank r.
 */
const LINE_WORDS = 16;
/** Operations alternate between two sets of slots and payloads. */
export const PARITIES = 2;
export const MAX_RANKS = 8;
/** Vectors up to so many bytes are copied into the segment; longer ones are lent. */
export const PAYLOAD_BYTES = 4 * 1024;
/** Segments that a rank can lend from at a time. */
export const SEGMENTS = 8;
const NAME_WORDS = 2 * LINE_WORDS;

/** Words of a slot: what a rank says about its call. */
export const SlotWord = { SIGNATURE: 0, SEGMENT: 1, VERSION: 2, OFFSET: 3, WEIGHT: 4 } as const;
/** Words of an entry of a rank's table of segments; the name follows, in bytes. */
export const NameWord = { VERSION: 0, BYTES: 1, NAME: 2 } as const;
export const MAX_NAME_BYTES = (NAME_WORDS - NameWord.NAME) * 4;

const ARRIVED = 0;
const DONE = ARRIVED + PARITIES * LINE_WORDS;
const SLOTS = DONE + MAX_RANKS * LINE_WORDS;
const NAMES = SLOTS + MAX_RANKS * PARITIES * LINE_WORDS;
const PAYLOADS = NAMES + MAX_RANKS * SEGMENTS * NAME_WORDS;

export const LANE_BYTES = PAYLOADS * 4 + MAX_RANKS * PARITIES * PAYLOAD_BYTES;

/** How many ranks have come to an operation; see arrivals.ts. */
export function arrivedWord(parity: number): number {
  return ARRIVED + parity * LINE_WORDS;
}

/** The last operation that a rank has finished with. */
export function doneWord(rank: number): number {
  return DONE + rank * LINE_WORDS;
}

export function slotWord(rank: number, parity: number): number {
  return SLOTS + (rank * PARITIES + parity) * LINE_WORDS;
}

export function nameWord(rank: number, segment: number): number {
  return NAMES + (rank * SEGMENTS + segment) * NAME_WORDS;
}

/** In bytes from the start of the segment's data. */
export function payloadOffset(rank: number, parity: number): number {
  return PAYLOADS * 4 + (rank * PARITIES + parity) * PAYLOAD_BYTES;
}
