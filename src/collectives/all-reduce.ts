/**
 * Allreduce: afterwards every rank holds the combination of all ranks' vectors. Chooses the algorithm, lets it run, and
 * ends averages; the algorithms themselves are in `algorithms/`. A rank may hold several vectors, one for each of its
 * learners or devices: they take part as one object (MXNET-MPI, section 6) and all receive the result. Invariant:
 * the same inputs give the same bits for a given algorithm and number of ranks.
 */
import { UsageError } from '../base/index.ts';
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import { FINISHED } from '../progress/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import { direct } from './algorithms/direct.ts';
import { halvingDoubling } from './algorithms/halving-doubling.ts';
import { hierarchical } from './algorithms/hierarchical.ts';
import { Ranks } from './algorithms/ranks.ts';
import { ring } from './algorithms/ring.ts';
import { rings } from './algorithms/rings.ts';
import { tree } from './algorithms/tree.ts';
import { checkCall, signatureOf, startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';
import { compressedAllReduce, describeCodec } from './compressed.ts';
import type { Codec } from './compressed.ts';
import { chooseAlgorithm } from './costs.ts';
import { laneOf } from './lane/lanes.ts';
import { nativeAllReduce } from './native.ts';
import { checkWeight, Reduction } from './reduction.ts';
import type { CollectiveOperation } from './reduction.ts';

/** Where two cost nearly the same, the one that stands first is taken. */
export const ALL_REDUCE_ALGORITHMS = [
  'native',
  'direct',
  'rings',
  'ring',
  'halving-doubling',
  'tree',
  'hierarchical',
] as const;
export type AllReduceAlgorithm = (typeof ALL_REDUCE_ALGORITHMS)[number];

export interface AllReduceOptions extends CollectiveOptions {
  /** How elements are combined. Default 'sum'. */
  readonly op?: CollectiveOperation | undefined;
  /** Default 'auto': the quickest for this group and length by its measured costs. */
  readonly algorithm?: AllReduceAlgorithm | 'auto' | undefined;
  /**
   * How much this rank's vectors count in an average, for instance its number of samples. With 0 they do not count,
   * whatever they hold; if no rank has a weight, the result is zeros. Default: the number of vectors, so that every
   * vector counts as one.
   */
  readonly weight?: number | undefined;
  /** Smaller numbers on the wire, for sums and averages of float32. Default none. */
  readonly codec?: Codec | undefined;
}

type Algorithm = (
  operation: Operation,
  vectors: readonly Region[],
  weight: number,
  reduction: Reduction,
) => Steps;

const algorithms: Readonly<Record<AllReduceAlgorithm, Algorithm>> = {
  direct: (operation, vectors, weight, reduction) => direct(Ranks.all(operation), vectors, weight, reduction),
  ring: (operation, vectors, weight, reduction) => ring(Ranks.all(operation), vectors, weight, reduction),
  rings: (operation, vectors, weight, reduction) => rings(Ranks.all(operation), vectors, weight, reduction),
  'halving-doubling': (operation, vectors, weight, reduction) =>
    halvingDoubling(Ranks.all(operation), vectors, weight, reduction),
  tree: (operation, vectors, weight, reduction) => tree(Ranks.all(operation), vectors, weight, reduction),
  hierarchical,
  native: nativeAllReduce,
};

/** Combines the regions of all ranks; each rank's regions, one or several of the same length, receive the result. */
export function allReduce(
  group: Group,
  regions: Region | readonly Region[],
  options: AllReduceOptions & CallPlan = {},
): Handle {
  checkCall(group, 'allreduce', options);
  const given = isRegion(regions) ? [regions] : regions;
  const { dtype, length } = checkVectors(given);
  const op = options.op ?? 'sum';
  const reduction = new Reduction(group.kernels, op, dtype);
  const weight = options.weight ?? given.length;
  checkWeight(weight);
  const { codec } = options;
  const algorithm = codec ? undefined : pick(group, given[0]!, options.algorithm ?? 'auto');
  const fields = {
    collective: 'allreduce',
    dtype,
    length,
    op,
    algorithm,
    codec: codec && describeCodec(codec),
    vectors: given.length,
    name: options.name,
  };
  const weigh = () => {
    for (const vector of given) reduction.weigh(vector, weight / given.length);
  };
  const lane = takesLane(given, algorithm, options) ? laneOf(group) : undefined;
  if (!lane) {
    return startCall(group, fields, options, (operation) => {
      weigh();
      return run(operation, given, weight, reduction, algorithm, codec);
    });
  }
  const sequence = group.progress.reserve(group, 0);
  weigh();
  if (!group.progress.isQuiet(group)) lane.decline(sequence);
  else if (lane.allReduce(sequence, signatureOf(fields), given[0]!, weight, reduction, options))
    return FINISHED;
  return startCall(group, fields, { ...options, sequence }, (operation) =>
    run(operation, given, weight, reduction, algorithm, codec),
  );
}

/** The lane is for single vectors that are called in order and summed in place. */
function takesLane(
  given: readonly Region[],
  algorithm: string | undefined,
  options: AllReduceOptions & CallPlan,
): boolean {
  return (
    algorithm === 'direct' &&
    given.length === 1 &&
    (options.tag ?? 0) === 0 &&
    options.sequence === undefined &&
    options.signal?.aborted !== true
  );
}

function run(
  operation: Operation,
  given: readonly Region[],
  weight: number,
  reduction: Reduction,
  algorithm: AllReduceAlgorithm | undefined,
  codec: Codec | undefined,
): Steps {
  if (codec) return compressedAllReduce(operation, given, weight, reduction, codec);
  if (operation.group.size === 1) return alone(given, weight, reduction);
  return algorithms[algorithm!](operation, given, weight, reduction);
}

// eslint-disable-next-line require-yield -- an algorithm without anything to wait for is still one
function* alone(vectors: readonly Region[], weight: number, reduction: Reduction): Steps {
  if (vectors.length > 1) reduction.combineToAll(vectors, weight, vectors.length * vectors[0]!.byteLength);
  else reduction.finish(vectors[0]!, weight);
}

/** Algorithms that this group can run. */
export function availableAlgorithms(group: Group): AllReduceAlgorithm[] {
  const oneHost = new Set(group.hosts).size === 1;
  const oneEach = new Set(group.hosts).size === group.size;
  return ALL_REDUCE_ALGORITHMS.filter((name) => {
    if (name === 'native') return group.progress.transport.native !== undefined;
    if (name === 'hierarchical') return !oneEach && !oneHost;
    return true;
  });
}

function pick(group: Group, region: Region, wanted: AllReduceAlgorithm | 'auto'): AllReduceAlgorithm {
  if (wanted === 'auto') return chooseAlgorithm(group, region.byteLength);
  if (!ALL_REDUCE_ALGORITHMS.includes(wanted)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `algorithm is '${String(wanted)}'; give 'auto' or one of ${ALL_REDUCE_ALGORITHMS.join(', ')}`,
      { algorithm: wanted },
    );
  }
  if (wanted === 'native' && !group.progress.transport.native) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `algorithm 'native' is the MPI library's own, but the transport is ${group.progress.transport.kind}; give another algorithm`,
      { algorithm: wanted, transport: group.progress.transport.kind },
    );
  }
  return wanted;
}

export function isRegion(value: Region | readonly Region[]): value is Region {
  return !Array.isArray(value);
}

function checkVectors(vectors: readonly Region[]): Region {
  const first = vectors[0];
  if (!first) {
    throw new UsageError('INVALID_ARGUMENT', 'allreduce was given no region; give one or more', {});
  }
  for (const { dtype, length } of vectors) {
    if (dtype === first.dtype && length === first.length) continue;
    throw new UsageError(
      'SHAPE_MISMATCH',
      `the vectors of one rank differ: ${first.length} ${first.dtype} and ${length} ${dtype}; give vectors of one type and length`,
      { expected: [first.length, first.dtype], actual: [length, dtype] },
    );
  }
  return first;
}
