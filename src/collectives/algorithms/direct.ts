/**
 * Direct: every rank deals with every other at once. Short vectors are exchanged whole and summed by everyone. On one
 * host long ones are summed where they lie: each rank takes one part, reads it in all regions in one pass and writes
 * the result back to all of them, so that every byte crosses memory once. Invariant: sums are in rank order; nobody
 * writes to a peer's region before the peer has lent it, nor after it has left the operation.
 */
import type { Region } from '../../memory/index.ts';
import type { Steps } from '../../progress/index.ts';
import type { InPlace, Receiving } from '../../transport/index.ts';
import { alignedPart, cut } from '../parts.ts';
import type { Reduction } from '../reduction.ts';
import { Staging } from '../staging.ts';
import { allDone } from './in-place.ts';
import type { Ranks } from './ranks.ts';

/** Up to here copying everything to everyone is quicker than a second round of messages. */
const EXCHANGE_BYTES = 16 * 1024;
const DONE = 1 << 20;

export function direct(
  ranks: Ranks,
  vectors: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const { inPlace } = ranks;
  const short = vectors[0]!.byteLength <= EXCHANGE_BYTES;
  if (inPlace === undefined || short) return exchange(ranks, vectors, weight, reduction);
  return reduceInPlace(ranks, inPlace, vectors, weight, reduction);
}

function* exchange(ranks: Ranks, vectors: readonly Region[], weight: number, reduction: Reduction): Steps {
  const { size, position, operation } = ranks;
  const target = vectors[0]!;
  if (vectors.length > 1) reduction.combine(target, vectors);
  const sends = [];
  const receives: Receiving[] = [];
  for (let i = 1; i < size; i++) sends.push(ranks.send(position + i, 0, target, weight));
  for (let i = 1; i < size; i++) {
    receives.push(ranks.receive(position - i, 0, operation.scratch(target.dtype, target.length)));
  }
  const sources: Region[] = [];
  sources[position] = target;
  let total = weight;
  for (let i = 1; i < size; i++) {
    const receiving = receives[i - 1]!;
    if (!receiving.done) yield receiving;
    sources[(position - i + size) % size] = receiving.region;
    total += receiving.weight;
  }
  if (sends.every(({ done }) => done)) {
    combineInRankOrder(ranks, target, sources, reduction);
    for (const receiving of receives) receiving.release();
  } else {
    // Peers still read our vector, and those who read it in place only end when we, too, have read theirs: sum beside.
    const sum = operation.scratch(target.dtype, target.length);
    reduction.combine(sum, sources);
    for (const receiving of receives) receiving.release();
    for (const sending of sends) if (!sending.done) yield sending;
    reduction.kernels.copy(target, sum);
  }
  reduction.finish(target, total);
  for (let i = 1; i < vectors.length; i++) reduction.kernels.copy(vectors[i]!, target);
}

/** The kernel may not overwrite its own late sources, so a high rank sums beside and copies. */
function combineInRankOrder(
  ranks: Ranks,
  target: Region,
  sources: readonly Region[],
  reduction: Reduction,
): void {
  if (ranks.position < reduction.sourcesWithTarget) return reduction.combine(target, sources);
  const sum = ranks.operation.scratch(target.dtype, target.length);
  reduction.combine(sum, sources);
  reduction.kernels.copy(target, sum);
}

function* reduceInPlace(
  ranks: Ranks,
  inPlace: InPlace,
  given: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const { size, position } = ranks;
  const staging = new Staging(ranks.operation, inPlace, given, reduction.kernels);
  const vectors = staging.regions;
  const count = vectors.length;
  const { length, dtype } = vectors[0]!;
  for (let at = 0; at < size; at++) {
    if (at === position) continue;
    const member = ranks.memberAt(at);
    for (let v = 0; v < count; v++) inPlace.lend(member, ranks.envelope(v, weight), vectors[v]!);
  }
  const borrowed: (Receiving | undefined)[] = [];
  for (let at = 0; at < size; at++) {
    for (let v = 0; v < count; v++) {
      const lent = at === position ? undefined : ranks.memberAt(at);
      borrowed.push(
        lent === undefined ? undefined : inPlace.borrow(lent, ranks.envelope(v, 0), dtype, length),
      );
    }
  }
  for (const borrowing of borrowed) if (borrowing && !borrowing.done) yield borrowing;

  // The part of all vectors that is this rank's, in rank order; a rank's vectors share its weight.
  const part = alignedPart(length, size, position);
  const pieces: Region[] = [];
  let total = 0;
  for (let i = 0; i < borrowed.length; i++) {
    const borrowing = borrowed[i];
    pieces.push(cut(borrowing ? borrowing.region : vectors[i % count]!, part));
    if (i % count === 0) total += borrowing ? borrowing.weight : weight;
  }
  if (part.length > 0) {
    inPlace.enter(ranks.envelope(0, 0));
    try {
      yield ranks.operation.pause();
      reduction.combineToAll(pieces, total, pieces.length * vectors[0]!.byteLength);
    } finally {
      inPlace.leave();
    }
  }
  for (const borrowing of borrowed) borrowing?.release();
  yield* allDone(ranks, DONE, vectors[0]!);
  staging.finish();
}
