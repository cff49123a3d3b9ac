/**
 * Several rings at once (MXNET-MPI, section 6.3 and figure 9): the vector is cut into slices, each slice goes round a
 * ring of its own, and a few are under way at any time, so that one is reduced while another travels. Slices are small
 * enough that what arrives is added while it is still in the cache. Invariant: a slice's result does not depend on the
 * others.
 */
import { bytesPerElement } from '../../memory/index.ts';
import type { Region } from '../../memory/index.ts';
import type { Steps } from '../../progress/index.ts';
import type { Reduction } from '../reduction.ts';
import type { Ranks } from './ranks.ts';
import { ring, ringSteps } from './ring.ts';

/** What one message of a slice carries. */
const MESSAGE_BYTES = 512 * 1024;
const SLICES_UNDER_WAY = 4;
/**
 * Within one host a transfer is work of the same processors and nothing overlaps: vectors that the cache holds go round
 * one ring there, which takes fewer messages.
 */
const ONE_HOST_CACHE_BYTES = 32 * 2 ** 20;

export function* rings(
  ranks: Ranks,
  vectors: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const { length, dtype, byteLength } = vectors[0]!;
  if (ranks.areOnOneHost && byteLength < ONE_HOST_CACHE_BYTES) {
    return yield* ring(ranks, vectors, weight, reduction);
  }
  const sliceLength = (MESSAGE_BYTES / bytesPerElement(dtype)) * ranks.size;
  const slices = Math.max(1, Math.ceil(length / sliceLength));
  function* lane(first: number): Steps {
    for (let slice = first; slice < slices; slice += SLICES_UNDER_WAY) {
      const start = slice * sliceLength;
      const size = Math.min(sliceLength, length - start);
      const cuts = vectors.map((vector) => vector.slice(start, size));
      yield* ring(ranks.withSteps(slice * ringSteps(ranks.size)), cuts, weight, reduction);
    }
  }
  yield Array.from({ length: Math.min(SLICES_UNDER_WAY, slices) }, (_, first) => lane(first));
}
