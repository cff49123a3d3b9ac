/**
 * Bucket allreduce on a ring (MXNET-MPI, section 6.2): n - 1 steps in which each rank sends a part to its right and
 * adds what comes from its left, then n - 1 steps in which the finished parts go round. Sends 2 (n - 1) / n of the
 * vector. A rank's further vectors (a tensor, section 6.3) are added in the same pass that adds what arrives.
 * Invariant: part p is summed in ring order starting at rank p, so all ranks get the same bits.
 */
import type { Region } from '../../memory/index.ts';
import type { Steps } from '../../progress/index.ts';
import { alignedParts, cut } from '../parts.ts';
import type { Reduction } from '../reduction.ts';
import type { Ranks } from './ranks.ts';
import { settle } from './ranks.ts';

/** Steps of one ring. */
export function ringSteps(size: number): number {
  return 2 * size;
}

export function* ring(ranks: Ranks, vectors: readonly Region[], weight: number, reduction: Reduction): Steps {
  const { size, position, operation } = ranks;
  const target = vectors[0]!;
  const others = vectors.slice(1);
  const parts = alignedParts(target.length, size);
  const at = (index: number) => parts[((index % size) + size) % size]!;
  const incoming = operation.scratch(target.dtype, at(0).length);

  const own = cut(target, at(position));
  if (others.length > 0) reduction.combine(own, [own, ...others.map((vector) => cut(vector, at(position)))]);
  let sentWeight = weight;
  for (let step = 0; step < size - 1; step++) {
    const sending = ranks.send(position + 1, step, cut(target, at(position - step)), sentWeight);
    const part = at(position - step - 1);
    const receiving = ranks.receive(position - 1, step, incoming.slice(0, part.length));
    yield receiving;
    const sum = cut(target, part);
    reduction.combine(sum, [sum, receiving.region, ...others.map((vector) => cut(vector, part))]);
    sentWeight = weight + receiving.weight;
    receiving.release();
    yield sending;
  }
  reduction.finish(cut(target, at(position + 1)), sentWeight);

  for (let step = 0; step < size - 1; step++) {
    const sending = ranks.send(position + 1, size + step, cut(target, at(position + 1 - step)));
    const part = cut(target, at(position - step));
    const receiving = ranks.receive(position - 1, size + step, part);
    yield receiving;
    settle(receiving, part, reduction.kernels);
    yield sending;
  }
  for (const vector of others) reduction.kernels.copy(vector, target);
}
