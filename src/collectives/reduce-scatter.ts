/**
 * Reduce-scatter: rank r gets part r of the combination of all inputs, which keep their values. Every rank sends part s
 * to rank s and combines the parts it gets; on one host it reads them where they lie. Parts are consecutive in rank
 * order, the first (length mod n) one element longer. Invariant: sums are in rank order.
 */
import { UsageError } from '../base/index.ts';
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import { Ranks } from './algorithms/ranks.ts';
import { checkCall, startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';
import { cut, evenParts } from './parts.ts';
import { checkWeight, Reduction } from './reduction.ts';
import type { CollectiveOperation } from './reduction.ts';

export interface ReduceScatterOptions extends CollectiveOptions {
  /** How elements are combined. Default 'sum'. */
  readonly op?: CollectiveOperation | undefined;
  /** How much this rank counts in an average; if no rank has a weight, the result is zeros. Default 1. */
  readonly weight?: number | undefined;
}

export function reduceScatter(
  group: Group,
  input: Region,
  output: Region,
  options: ReduceScatterOptions & CallPlan = {},
): Handle {
  checkCall(group, 'reduce-scatter', options);
  const { op = 'sum', weight = 1 } = options;
  checkWeight(weight);
  const { dtype, length } = input;
  const reduction = new Reduction(group.kernels, op, dtype);
  const own = evenParts(length, group.size)[group.rank]!;
  if (output.length !== own.length || output.dtype !== dtype) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `the output of reduce-scatter on ${group.title(group.rank)} is ${output.length} ${output.dtype}; part ${group.rank} of ${length} ${dtype} has ${own.length} elements`,
      { rank: group.rank, expected: own.length, actual: output.length, dtype },
    );
  }
  const fields = { collective: 'reduce-scatter', dtype, length, op, name: options.name };
  return startCall(group, fields, options, (operation) => run(operation, input, output, weight, reduction));
}

function* run(
  operation: Operation,
  input: Region,
  output: Region,
  weight: number,
  reduction: Reduction,
): Steps {
  const ranks = Ranks.all(operation);
  const { size, position } = ranks;
  const given = reduction.changes(weight) ? operation.scratch(input.dtype, input.length) : input;
  if (given !== input) {
    reduction.kernels.copy(given, input);
    reduction.weigh(given, weight);
  }
  const parts = evenParts(input.length, size);
  const sends = [];
  const receives = [];
  for (let i = 1; i < size; i++) {
    sends.push(ranks.send(position + i, 0, cut(given, parts[(position + i) % size]!), weight));
  }
  for (let i = 1; i < size; i++) {
    const into = operation.scratch(output.dtype, output.length);
    receives[(position - i + size) % size] = ranks.receive(position - i, 0, into);
  }
  const sources: Region[] = [];
  let total = 0;
  for (let at = 0; at < size; at++) {
    const receiving = receives[at];
    if (receiving) yield receiving;
    sources.push(receiving ? receiving.region : cut(given, parts[position]!));
    total += receiving ? receiving.weight : weight;
  }
  reduction.combine(output, sources);
  for (const receiving of receives) receiving?.release();
  reduction.finish(output, total);
  for (const sending of sends) yield sending;
}
