/**
 * Hierarchical: the ranks of each host reduce to their first rank, the first ranks of all hosts allreduce among
 * themselves, and each hands the result to its host. On a host with shared memory every rank reduces one part straight
 * into the first rank's vector, and reads the result from it. Invariant: only first ranks talk to other hosts.
 */
import type { Region } from '../../memory/index.ts';
import type { Operation, Steps } from '../../progress/index.ts';
import type { Reduction } from '../reduction.ts';
import { gatherToRoot } from './in-place.ts';
import { Ranks } from './ranks.ts';
import { rings } from './rings.ts';
import { reduceUp, spreadDown } from './tree.ts';

// Each stage has steps of its own.
const BETWEEN = 1 << 10;
const SPREAD = 1 << 30;

export function* hierarchical(
  operation: Operation,
  vectors: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const { hosts, rank } = operation.group;
  const target = vectors[0]!;
  if (vectors.length > 1) reduction.combine(target, vectors);

  const local = new Ranks(operation, positionsOf(hosts, hosts[rank]!));
  const total = { weight };
  if (local.size > 1) {
    const { inPlace } = local;
    if (inPlace) yield* gatherToRoot(local, inPlace, 0, target, total, reduction);
    else yield* reduceUp(local, 0, target, total, reduction);
  }
  if (local.position === 0) {
    const firsts = [...new Set(hosts)].map((host) => hosts.indexOf(host));
    const between = new Ranks(operation, firsts, BETWEEN);
    if (between.size > 1) yield* rings(between, [target], total.weight, reduction);
    else reduction.finish(target, total.weight);
  }
  if (local.size > 1) yield* spreadDown(local.withSteps(SPREAD), 0, target, reduction.kernels);
  for (const vector of vectors.slice(1)) reduction.kernels.copy(vector, target);
}

/** All groups of one host's ranks, as positions in rank order. */
function positionsOf(hosts: readonly string[], host: string): number[] {
  return hosts.flatMap((other, rank) => (other === host ? [rank] : []));
}
