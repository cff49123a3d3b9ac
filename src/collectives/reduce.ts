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
import { startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';
import { Reduction } from './reduction.ts';
import type { CollectiveOperation } from './reduction.ts';
import { checkRoot } from './root.ts';

export interface ReduceOptions extends CollectiveOptions {
  /** How elements are combined. Default 'sum'. */
  readonly op?: CollectiveOperation | undefined;
  /** The rank that gets the result. Default 0. */
  readonly root?: number | undefined;
  /** How much this rank counts in an average. Default 1. */
  readonly weight?: number | undefined;
}

const CONFIRM = 64;

export function reduce(group: Group, region: Region, options: ReduceOptions & CallPlan = {}): Handle {
  const root = checkRoot(group, 'reduce', options.root ?? 0);
  const op = options.op ?? 'sum';
  const { dtype, length } = region;
  const reduction = new Reduction(group.kernels, op, dtype);
  const fields = { collective: 'reduce', dtype, length, op, root, name: options.name };
  return startCall(group, fields, options, (operation) =>
    run(operation, region, root, options.weight ?? 1, reduction),
  );
}

function* run(
  operation: Operation,
  region: Region,
  root: number,
  weight: number,
  reduction: Reduction,
): Steps {
  const ranks = Ranks.all(operation);
  const { kernels } = reduction;
  const isRoot = ranks.position === root;
  const total = { weight };
  const { inPlace } = ranks;
  if (isRoot || weight !== 1) reduction.weigh(region, weight);
  if (inPlace && ranks.size > 1) {
    yield* gatherToRoot(ranks, inPlace, root, region, total, reduction);
  } else {
    const target = isRoot ? region : operation.scratch(region.dtype, region.length);
    if (!isRoot) kernels.copy(target, region);
    yield* reduceUp(ranks, root, target, total, reduction);
    yield* confirm(operation, CONFIRM);
  }
  if (isRoot) reduction.finish(region, total.weight);
}
