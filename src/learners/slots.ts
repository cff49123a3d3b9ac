/**
 * Gradient slots: memory that a learner's backward pass writes and the server's update reads, a segment for each. Names, and
 * what does not lie in the memory itself: how many rows a sparse gradient has. Invariant: the same order of gradients in
 * every process, which is that of the model.
 */
import type { Replica } from '../runtime/index.ts';

export function slotSegment(name: string, learner: number, slot: number): string {
  return `${name}-slot-${learner}-${slot}`;
}

/** Rows of each sparse gradient, in order; given some, they are set. */
export function rowCounts({ memory }: Replica, given?: ArrayLike<number>): number[] {
  const sparse = [...memory.gradients.values()].filter((place) => place.kind === 'sparse');
  if (given) sparse.forEach((place, i) => (place.count = given[i]!));
  return sparse.map(({ count }) => count);
}
