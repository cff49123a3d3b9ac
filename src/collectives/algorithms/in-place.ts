/**
 * Reducing into a root's vector on one host: every rank lends its vector, takes one part of all of them and writes
 * the sum to the root's. Not allreduce (direct.ts). Invariant: sums are in rank order; a rank returns when all parts
 * are written, so that its own vector is free again.
 */
import type { Region } from '../../memory/index.ts';
import type { Steps } from '../../progress/index.ts';
import type { InPlace, Receiving } from '../../transport/index.ts';
import { alignedPart, cut } from '../parts.ts';
import type { Reduction } from '../reduction.ts';
import { Staging } from '../staging.ts';
import type { Ranks } from './ranks.ts';

const LEND = 0;
const DONE = 1;

/** Lends the region to all others and borrows theirs; the result is in the order of positions, own one included. */
export function* borrowAll(
  ranks: Ranks,
  inPlace: InPlace,
  region: Region,
  weight: number,
  out: Borrowed,
): Steps {
  const { size, position } = ranks;
  for (let i = 1; i < size; i++)
    inPlace.lend(ranks.memberAt(position + i), ranks.envelope(LEND, weight), region);
  const borrowing: Receiving[] = [];
  for (let i = 1; i < size; i++) {
    const member = ranks.memberAt(position + i);
    borrowing.push(inPlace.borrow(member, ranks.envelope(LEND, 0), region.dtype, region.length));
  }
  out.regions[position] = region;
  out.weight = weight;
  for (let i = 1; i < size; i++) {
    const receiving = borrowing[i - 1]!;
    yield receiving;
    out.regions[(position + i) % size] = receiving.region;
    out.weight += receiving.weight;
  }
  out.release = () => borrowing.forEach((receiving) => receiving.release());
}

export interface Borrowed {
  readonly regions: Region[];
  weight: number;
  release: () => void;
}

/** Tells all others that this rank has finished with their regions, and waits until they have with ours. */
export function* allDone(ranks: Ranks, step: number, region: Region): Steps {
  const { size, position } = ranks;
  const nothing = region.slice(0, 0);
  const sends = [];
  const receives: Receiving[] = [];
  for (let i = 1; i < size; i++) sends.push(ranks.send(position + i, step, nothing));
  for (let i = 1; i < size; i++) receives.push(ranks.receive(position - i, step, nothing));
  for (const sending of sends) yield sending;
  for (const receiving of receives) {
    yield receiving;
    receiving.release();
  }
}

/** The root's vector becomes the sum of all, in one pass shared by all ranks. */
export function* gatherToRoot(
  ranks: Ranks,
  inPlace: InPlace,
  root: number,
  vector: Region,
  total: { weight: number },
  reduction: Reduction,
): Steps {
  const staging = new Staging(ranks.operation, inPlace, [vector], reduction.kernels);
  const target = staging.regions[0]!;
  const borrowed: Borrowed = { regions: [], weight: 0, release: () => undefined };
  yield* borrowAll(ranks, inPlace, target, total.weight, borrowed);
  const part = alignedPart(target.length, ranks.size, ranks.position);
  const sources = borrowed.regions.map((region) => cut(region, part));
  inPlace.enter(ranks.envelope(LEND, 0));
  try {
    yield ranks.operation.pause();
    // The root's part may be a late source of the sum, which may not overwrite it: then it is summed beside.
    const into = sources[root]!;
    if (root < reduction.sourcesWithTarget) reduction.combine(into, sources);
    else {
      const sum = ranks.operation.scratch(target.dtype, part.length);
      reduction.combine(sum, sources);
      reduction.kernels.copy(into, sum);
    }
  } finally {
    inPlace.leave();
  }
  borrowed.release();
  yield* allDone(ranks, DONE, target);
  total.weight = borrowed.weight;
  if (ranks.position === root) staging.finish();
}
