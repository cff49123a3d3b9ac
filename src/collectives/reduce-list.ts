/**
 * Reduce of a list: the regions of all ranks, combined one by one, become the targets of rank 0, in one operation. On one
 * host every rank takes a part of the whole list, reads it where it lies and writes the result where rank 0 wants it;
 * between hosts the list travels up a tree as one vector. Invariants: sources keep their values, except those that are
 * targets; returns when all ranks have agreed on the call, so a mismatch is an error on every rank.
 */
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import type { InPlace, Receiving } from '../transport/index.ts';
import { allDone } from './algorithms/in-place.ts';
import { Ranks } from './algorithms/ranks.ts';
import { reduceUp } from './algorithms/tree.ts';
import { confirm } from './barrier.ts';
import { checkCall, startCall } from './call.ts';
import { alignedPart } from './parts.ts';
import type { ReduceOptions } from './reduce.ts';
import { checkWeight, Reduction } from './reduction.ts';
import { elementsIn, gathered, listFields, piecesOf, scattered } from './region-list.ts';
import { Staging } from './staging.ts';

export type ReduceListOptions = Omit<ReduceOptions, 'root'>;

/** Above the steps of a list's regions. */
const DONE = 1 << 20;
const CONFIRM = 64;

/** `targets`: on rank 0, of the lengths of the sources, which they may be themselves; on others they are not used. */
export function reduceList(
  group: Group,
  sources: readonly Region[],
  targets: readonly Region[],
  options: ReduceListOptions = {},
): Handle {
  checkCall(group, 'reduce of a list', options);
  const { op = 'sum', weight = 1, name } = options;
  checkWeight(weight);
  const list = listFields('reduce of a list', sources);
  const reduction = new Reduction(group.kernels, op, list.dtype);
  return startCall(group, { ...list, op, name }, options, (operation) =>
    run(operation, sources, targets, weight, reduction),
  );
}

function* run(
  operation: Operation,
  sources: readonly Region[],
  targets: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const ranks = Ranks.all(operation);
  const inPlace = ranks.size > 1 ? ranks.inPlace : undefined;
  if (inPlace) {
    const used = reduction.changes(weight) ? weighed(operation, sources, weight, reduction) : sources;
    return yield* reduceInPlace(ranks, inPlace, used, targets, weight, reduction);
  }
  const total = { weight };
  const whole = gathered(operation, sources, reduction.kernels);
  reduction.weigh(whole, weight);
  yield* reduceUp(ranks, 0, whole, total, reduction);
  yield* confirm(operation, CONFIRM);
  if (ranks.position > 0) return;
  reduction.finish(whole, total.weight);
  scattered(whole, targets, reduction.kernels);
}

function weighed(
  operation: Operation,
  sources: readonly Region[],
  weight: number,
  reduction: Reduction,
): readonly Region[] {
  const whole = gathered(operation, sources, reduction.kernels);
  reduction.weigh(whole, weight);
  let start = 0;
  return sources.map(({ length }) => whole.slice((start += length) - length, length));
}

function* reduceInPlace(
  ranks: Ranks,
  inPlace: InPlace,
  sources: readonly Region[],
  targets: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const { operation, size, position } = ranks;
  const { kernels } = reduction;
  const count = sources.length;
  const own = new Staging(operation, inPlace, sources, kernels).regions;
  const results = position === 0 ? new Staging(operation, inPlace, targets, kernels) : undefined;
  const lent = results ? [...own, ...results.regions] : own;
  for (let at = 0; at < size; at++) {
    if (at === position) continue;
    const member = ranks.memberAt(at);
    lent.forEach((region, i) => inPlace.lend(member, ranks.envelope(i, weight), region));
  }
  const borrowed: Receiving[] = [];
  const regions: (readonly Region[])[] = [];
  let total = weight;
  for (let at = 0; at < size; at++) {
    if (at === position) {
      regions.push(lent);
      continue;
    }
    const theirs: Receiving[] = [];
    for (let i = 0; i < (at === 0 ? 2 * count : count); i++) {
      const { dtype, length } = sources[i % count]!;
      theirs.push(inPlace.borrow(ranks.memberAt(at), ranks.envelope(i, 0), dtype, length));
    }
    for (const borrowing of theirs) if (!borrowing.done) yield borrowing;
    borrowed.push(...theirs);
    regions.push(theirs.map(({ region }) => region));
    total += theirs[0]!.weight;
  }
  inPlace.enter(ranks.envelope(0, 0));
  try {
    yield operation.pause();
    for (const { index, start, length } of piecesOf(
      sources,
      alignedPart(elementsIn(sources), size, position),
    )) {
      const into = regions[0]![count + index]!.slice(start, length);
      // Rank 0's is the first source, and a kernel may write to that.
      reduction.combine(
        into,
        regions.map((list) => list[index]!.slice(start, length)),
      );
      reduction.finish(into, total);
    }
  } finally {
    inPlace.leave();
  }
  for (const borrowing of borrowed) borrowing.release();
  yield* allDone(ranks, DONE, sources[0]!);
  results?.finish();
}
