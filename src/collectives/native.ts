/**
 * Allreduce by the MPI library's own function, where the transport is MPI. It blocks in foreign code, so the ranks
 * first agree by messages that they are all there and call the same thing: a mismatch or a missing rank is then found by
 * the engine, which can name it, and not by a hang inside the library. Invariant: the library is only entered when
 * all ranks of the group are about to.
 */
import type { Region } from '../memory/index.ts';
import type { Operation, Steps } from '../progress/index.ts';
import { Ranks } from './algorithms/ranks.ts';
import type { Reduction } from './reduction.ts';

export function* nativeAllReduce(
  operation: Operation,
  vectors: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const target = vectors[0]!;
  if (vectors.length > 1) reduction.combine(target, vectors);
  const total = { weight };
  yield* agree(Ranks.all(operation), target.slice(0, 0), total);
  const op = reduction.op === 'mean' ? 'sum' : reduction.op;
  operation.transport.native!.allReduce(operation.group.members, target, op);
  reduction.finish(target, total.weight);
  for (const vector of vectors.slice(1)) reduction.kernels.copy(vector, target);
}

/** Dissemination: after log2 n rounds everyone has heard, directly or not, from everyone, and knows the weights. */
function* agree(ranks: Ranks, nothing: Region, total: { weight: number }): Steps {
  const { size, position } = ranks;
  // Weights by position travel as a sum over a growing window; windows that overlap would count twice, so for other
  // sizes than powers of two everyone tells everyone.
  if (size > 8 && Number.isInteger(Math.log2(size))) {
    for (let distance = 1, step = 0; distance < size; distance *= 2, step++) {
      const sending = ranks.send(position + distance, step, nothing, total.weight);
      const receiving = ranks.receive(position - distance, step, nothing);
      yield receiving;
      total.weight += receiving.weight;
      receiving.release();
      yield sending;
    }
    return;
  }
  const weight = total.weight;
  const sends = [];
  const receives = [];
  for (let i = 1; i < size; i++) sends.push(ranks.send(position + i, 0, nothing, weight));
  for (let i = 1; i < size; i++) receives.push(ranks.receive(position - i, 0, nothing));
  for (const receiving of receives) {
    yield receiving;
    total.weight += receiving.weight;
    receiving.release();
  }
  for (const sending of sends) yield sending;
}
