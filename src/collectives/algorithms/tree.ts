/**
 * Binary tree (MG-WFBP, table II): sums travel up a binomial tree to one root and the result travels down it. Few
 * steps, but whole vectors in each: right for short ones. `reduceUp` and `spreadDown` are also the rooted collectives.
 * Invariant: a parent adds its children in ascending order, so the bits do not depend on who came first.
 */
import type { Region } from '../../memory/index.ts';
import type { Steps } from '../../progress/index.ts';
import type { Reduction } from '../reduction.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { Ranks } from './ranks.ts';

/** Above every step of `reduceUp`. */
const DOWN = 64;

export function* tree(ranks: Ranks, vectors: readonly Region[], weight: number, reduction: Reduction): Steps {
  const target = vectors[0]!;
  if (vectors.length > 1) reduction.combine(target, vectors);
  const total = { weight };
  yield* reduceUp(ranks, 0, target, total, reduction);
  if (ranks.position === 0) reduction.finish(target, total.weight);
  yield* spreadDown(ranks.withSteps(DOWN), 0, target, reduction.kernels);
  for (const vector of vectors.slice(1)) reduction.kernels.copy(vector, target);
}

/** The root's vector becomes the sum of all; those of the others are used up on the way. */
export function* reduceUp(
  ranks: Ranks,
  root: number,
  target: Region,
  total: { weight: number },
  reduction: Reduction,
): Steps {
  const { size, operation } = ranks;
  const place = (ranks.position - root + size) % size;
  let scratch: Region | undefined;
  for (let bit = 1, step = 0; bit < size; bit *= 2, step++) {
    if (place & bit) {
      yield ranks.send(root + place - bit, step, target, total.weight);
      return;
    }
    if (place + bit >= size) continue;
    scratch ??= operation.scratch(target.dtype, target.length);
    const receiving = ranks.receive(root + place + bit, step, scratch);
    yield receiving;
    reduction.combine(target, [target, receiving.region]);
    total.weight += receiving.weight;
    receiving.release();
  }
}

/** Everybody's vector becomes the root's. */
export function* spreadDown(ranks: Ranks, root: number, target: Region, kernels: Kernels): Steps {
  const { size } = ranks;
  const place = (ranks.position - root + size) % size;
  let bit = 1;
  while (bit < size) bit *= 2;
  const lowest = place === 0 ? bit : place & -place;
  if (place !== 0) yield* ranks.fetch(root + place - lowest, Math.log2(lowest), target, kernels);
  const sends = [];
  for (let child = lowest / 2; child >= 1; child /= 2) {
    if (place + child < size) sends.push(ranks.send(root + place + child, Math.log2(child), target));
  }
  for (const sending of sends) yield sending;
}
