/**
 * Join: a rank that is out of data announces it and keeps taking part in what the others call, with nothing: zeros in sums,
 * no weight in averages. It returns when all ranks have joined. Invariant: a joined rank starts an operation only
 * after a rank with data has called it, under that rank's number.
 */
import type { Group } from '../cluster/index.ts';
import { isDType } from '../memory/index.ts';
import type { DType, Region } from '../memory/index.ts';
import type { Handle, Members } from '../progress/index.ts';
import { ALL_REDUCE_ALGORITHMS, allReduce } from './all-reduce.ts';
import type { AllReduceAlgorithm } from './all-reduce.ts';
import { barrier } from './barrier.ts';
import { broadcast } from './broadcast.ts';
import { JOIN_TAG, checkCall, startCall } from './call.ts';
import type { CollectiveOptions } from './call.ts';
import { parseCodec } from './compressed.ts';
import { reduce } from './reduce.ts';
import { REDUCE_OPERATIONS, Reduction } from './reduction.ts';
import type { CollectiveOperation } from './reduction.ts';

/** Waits until all ranks have joined; meanwhile this rank contributes nothing to their collectives. */
export function join(group: Group, options: Omit<CollectiveOptions, 'tag'> = {}): Handle {
  checkCall(group, 'join', options);
  group.progress.onCall(takePart);
  const plan = { ...options, tag: JOIN_TAG };
  return startCall(group, { collective: 'join', name: options.name }, plan, (operation) =>
    group.progress.join(operation),
  );
}

/**
 * Calls what another rank called, on neutral values. Collectives whose result depends on every rank's own data, such
 * as allgather, cannot be called with nothing: they end by their deadline, which names the joined rank. Throws what the
 * collective throws, if the call is one that this rank cannot make.
 */
function takePart(members: Members, spec: Readonly<Record<string, unknown>>, sequence: number): void {
  const group = members as Group;
  const call = checkedSpec(spec);
  if (!call) return;
  const { tag, name, root, op, algorithm } = call;
  const plan = { sequence, tag, name, root, op, algorithm, weight: 0 };
  if (call.collective === 'barrier') return ignore(barrier(group, plan));
  const neutral = call.collective === 'broadcast' ? 0 : new Reduction(group.kernels, op, call.dtype).neutral;
  const { scratch } = group.progress;
  const taken: Region[] = [];
  const take = <T extends DType>(dtype: T, fill: number): Region<T> => {
    const region = scratch.take(dtype, call.length);
    (region.view as Float32Array).fill(fill);
    taken.push(region);
    return region;
  };
  const free = () => taken.forEach((region) => scratch.giveBack(region));
  const start = (): Handle => {
    const vectors = Array.from({ length: call.vectors }, () => take(call.dtype, neutral));
    if (call.collective === 'broadcast') return broadcast(group, vectors[0]!, plan);
    if (call.collective === 'reduce') return reduce(group, vectors[0]!, plan);
    const codec = call.codec === undefined ? undefined : parseCodec(call.codec, take('float32', 0));
    return allReduce(group, vectors, { ...plan, codec });
  };
  try {
    ignore(start(), free);
  } catch (error) {
    free();
    throw error;
  }
}

/** Ranks that called with data get the failure; here it only ends. */
function ignore(handle: Handle, free: () => void = () => undefined): void {
  void handle.then(free, free);
}

const MAX_VECTORS = 64;

interface CheckedSpec {
  readonly collective: string;
  readonly dtype: DType;
  readonly length: number;
  readonly op: CollectiveOperation;
  readonly algorithm: AllReduceAlgorithm | undefined;
  readonly root: number;
  readonly vectors: number;
  readonly codec: string | undefined;
  readonly tag: number;
  readonly name: string | undefined;
}

/** The fields of a call as another process sent them, or undefined if they are not what a call has. */
function checkedSpec(spec: Readonly<Record<string, unknown>>): CheckedSpec | undefined {
  const { collective, dtype = 'float32', length = 0, op = 'sum', algorithm, root = 0 } = spec;
  const { vectors = 1, codec, tag, name } = spec;
  const ok =
    typeof collective === 'string' &&
    ['allreduce', 'reduce', 'broadcast', 'barrier'].includes(collective) &&
    typeof dtype === 'string' &&
    isDType(dtype) &&
    isCount(length, 2 ** 30) &&
    REDUCE_OPERATIONS.includes(op as CollectiveOperation) &&
    (algorithm === undefined || ALL_REDUCE_ALGORITHMS.includes(algorithm as AllReduceAlgorithm)) &&
    isCount(root, 2 ** 16) &&
    isCount(vectors, MAX_VECTORS) &&
    isCount(tag, 2 ** 32 - 1) &&
    (codec === undefined || typeof codec === 'string') &&
    (name === undefined || typeof name === 'string');
  return ok
    ? ({ collective, dtype, length, op, algorithm, root, vectors, codec, tag, name } as CheckedSpec)
    : undefined;
}

function isCount(value: unknown, most: number): boolean {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= most;
}
