/**
 * Reduce: the root's region becomes the combination of all; those of the others keep their values. On one host every
 * rank reduces one part straight into the root's region; otherwise sums travel up a tree. Invariant: returns when all
 * ranks have agreed on the call, so a mismatch is an error on every rank.
 */
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import { gatherToRoot } from './algorithms/in-place.ts';
import { Ranks } from './algorithms/ranks.ts';
import { reduceUp } from './algorithms/tree.ts';
import { confirm } from './barrier.ts';
import { checkCall, startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';
import { checkWeight, Reduction } from './reduction.ts';
import type { CollectiveOperation } from './reduction.ts';
import { checkRoot } from './root.ts';

export interface ReduceOptions extends CollectiveOptions {
  /** How elements are combined. Default 'sum'. */
  readonly op?: CollectiveOperation | undefined;
  /** The rank that gets the result. Default 0. */
  readonly root?: number | undefined;
  /** How much this rank counts in an average; if no rank has a weight, the result is zeros. Default 1. */
  readonly weight?: number | undefined;
}

const CONFIRM = 64;

export function reduce(group: Group, region: Region, options: ReduceOptions & CallPlan = {}): Handle {
  checkCall(group, 'reduce', options);
  const root = checkRoot(group, 'reduce', options.root ?? 0);
  const { op = 'sum', weight = 1 } = options;
  checkWeight(weight);
  const { dtype, length } = region;
  const reduction = new Reduction(group.kernels, op, dtype);
  const fields = { collective: 'reduce', dtype, length, op, root, name: options.name };
  return startCall(group, fields, options, (operation) => run(operation, region, root, weight, reduction));
}

function* run(
  operation: Operation,
  region: Region,
  root: number,
  weight: number,
  reduction: Reduction,
): Steps {
  const ranks = Ranks.all(operation);
  const isRoot = ranks.position === root;
  const total = { weight };
  const inPlace = ranks.size > 1 ? ranks.inPlace : undefined;
  // In place only the root's region is written to, and those that are weighed; on the way up a tree all are.
  const isSpared = !isRoot && (inPlace === undefined || reduction.changes(weight));
  const target = isSpared ? operation.scratch(region.dtype, region.length) : region;
  if (isSpared) reduction.kernels.copy(target, region);
  reduction.weigh(target, weight);
  if (inPlace) {
    yield* gatherToRoot(ranks, inPlace, root, target, total, reduction);
  } else {
    yield* reduceUp(ranks, root, target, total, reduction);
    yield* confirm(operation, CONFIRM);
  }
  if (isRoot) reduction.finish(region, total.weight);
}
