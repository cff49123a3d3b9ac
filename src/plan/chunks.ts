/**
 * Cutting keys into chunks, the unit that a server receives, sums, updates and sends back (PHub, section 3.2.3): small
 * enough that work on a key starts before all of it has arrived, long enough to fill the network. Where a chunk goes
 * is decided in `placement.ts`. Invariants: the chunks of a key are in order, do not overlap and cover it; all but the
 * last are equally long and all start on a cache line of the key, so that no two cores write to one.
 */
import { UsageError } from '../base/index.ts';
import { refuse } from './argument-checks.ts';

export const DEFAULT_CHUNK_BYTES = 32 * 1024;
/** Keys hold float32 (or int32) elements. */
export const ELEMENT_BYTES = 4;
const CACHE_LINE_BYTES = 64;

/** A parameter of the model. */
export interface Key {
  readonly key: string;
  /** Elements of 4 bytes. */
  readonly length: number;
}

export interface Chunk {
  readonly key: string;
  /** Which chunk of its key, from 0. */
  readonly index: number;
  /** First element, counted from the start of the key. */
  readonly start: number;
  /** Elements of 4 bytes, at least 1. */
  readonly length: number;
}

/** The chunks of all keys, in the order of the keys; a key of length 0 has none. */
export function cutIntoChunks(keys: readonly Key[], chunkBytes: number = DEFAULT_CHUNK_BYTES): Chunk[] {
  if (!Number.isSafeInteger(chunkBytes) || chunkBytes < 1 || chunkBytes % CACHE_LINE_BYTES !== 0)
    refuse('chunkBytes', chunkBytes, `a positive multiple of ${CACHE_LINE_BYTES}`);
  checkKeys(keys);
  const most = chunkBytes / ELEMENT_BYTES;
  return keys.flatMap(({ key, length }) =>
    Array.from({ length: Math.ceil(length / most) }, (_, index) => ({
      key,
      index,
      start: index * most,
      length: Math.min(most, length - index * most),
    })),
  );
}

function checkKeys(keys: readonly Key[]): void {
  const seen = new Set<string>();
  for (const { key, length } of keys) {
    if (!Number.isSafeInteger(length) || length < 0)
      refuse(`The length of key ${key}`, length, 'a count of elements, 0 or more');
    if (seen.has(key))
      throw new UsageError('INVALID_ARGUMENT', `Key ${key} is listed twice; give every key its own name.`, {
        key,
      });
    seen.add(key);
  }
}
