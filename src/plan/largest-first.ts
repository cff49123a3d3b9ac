/**
 * Longest processing time first (Graham 1969; the "4/3 approximation set partition" of PHub, section 3.2.4): sizes
 * are taken from the largest down and each goes to the bin with the smallest load. Not an exact partition, which is
 * NP-hard. Invariants: the largest load is at most (4k - 1) / (3k) times that of the best partition into k bins; equal
 * sizes go by lowest index and equal loads by lowest bin, so every process that computes it gets the same answer.
 */
import { refuse, requireCount } from './argument-checks.ts';

export interface Partition {
  /** The bin of each size, in the order the sizes were given. */
  readonly assignment: readonly number[];
  /** The sum of the sizes in each bin. */
  readonly loads: readonly number[];
  /** The largest load. */
  readonly makespan: number;
}

/** Sizes in any unit, not negative; `bins` at least 1. */
export function assignLargestFirst(sizes: readonly number[], bins: number): Partition {
  requireCount('bins', bins);
  sizes.forEach((size, i) => {
    if (!Number.isFinite(size) || size < 0) refuse(`sizes[${i}]`, size, 'a finite number, 0 or more');
  });
  const largestFirst = Array.from(sizes.keys()).sort((i, j) => sizes[j]! - sizes[i]! || i - j);
  const assignment = new Array<number>(sizes.length).fill(0);
  const loads = new Array<number>(bins).fill(0);
  // The bins as a heap, the lightest at its root; while all are empty, their order is one.
  const heap = Array.from(loads.keys());
  for (const i of largestFirst) {
    const bin = heap[0]!;
    assignment[i] = bin;
    loads[bin]! += sizes[i]!;
    sinkRoot(heap, loads);
  }
  return { assignment, loads, makespan: loads.reduce((most, load) => Math.max(most, load), 0) };
}

/** Puts the heap in order again after the bin at its root became heavier. */
function sinkRoot(heap: number[], loads: readonly number[]): void {
  const sinking = heap[0]!;
  let place = 0;
  for (;;) {
    let child = 2 * place + 1;
    if (child + 1 < heap.length && goesBefore(heap[child + 1]!, heap[child]!, loads)) child++;
    if (child >= heap.length || goesBefore(sinking, heap[child]!, loads)) break;
    heap[place] = heap[child]!;
    place = child;
  }
  heap[place] = sinking;
}

function goesBefore(a: number, b: number, loads: readonly number[]): boolean {
  return loads[a]! < loads[b]! || (loads[a] === loads[b] && a < b);
}

/** What the largest load is at most, as a multiple of the best possible one. */
export function largestFirstRatio(bins: number): number {
  requireCount('bins', bins);
  return (4 * bins - 1) / (3 * bins);
}
