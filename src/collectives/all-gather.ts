/**
 * Allgather: afterwards every rank holds the inputs of all ranks, one after the other in rank order; lengths may differ.
 * Each rank sends its input to every other, starting with its neighbour, so that no rank is everyone's first target.
 * Invariant: the output is the concatenation by `counts`.
 */
import { UsageError } from '../base/index.ts';
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import { Ranks, settle } from './algorithms/ranks.ts';
import { checkCall, startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';
import { cut, partsByCounts } from './parts.ts';
import type { Part } from './parts.ts';

export interface AllGatherOptions extends CollectiveOptions {
  /** Elements of each rank. Default: all have as many as this one. */
  readonly counts?: readonly number[] | undefined;
}

export function allGather(
  group: Group,
  input: Region,
  output: Region,
  options: AllGatherOptions & CallPlan = {},
): Handle {
  checkCall(group, 'allgather', options);
  const counts = options.counts ?? Array.from({ length: group.size }, () => input.length);
  checkCounts(group, input, output, counts);
  const fields = { collective: 'allgather', dtype: input.dtype, counts, name: options.name };
  return startCall(group, fields, options, (operation) =>
    gather(operation, input, output, partsByCounts(counts), group),
  );
}

/** Every rank sends `input` to all others and puts what comes into its parts of `output`. */
export function* gather(
  operation: Operation,
  input: Region,
  output: Region,
  parts: readonly Part[],
  { kernels }: Group,
  firstStep = 0,
): Steps {
  const ranks = Ranks.all(operation).withSteps(firstStep);
  const { size, position } = ranks;
  const own = cut(output, parts[position]!);
  if (own.byteOffset !== input.byteOffset) kernels.copy(own, input);
  const sends = [];
  const receives = [];
  for (let i = 1; i < size; i++) sends.push(ranks.send(position + i, 0, input));
  for (let i = 1; i < size; i++) {
    const into = cut(output, parts[(position - i + size) % size]!);
    receives.push({ into, receiving: ranks.receive(position - i, 0, into) });
  }
  for (const { into, receiving } of receives) {
    yield receiving;
    settle(receiving, into, kernels);
  }
  for (const sending of sends) yield sending;
}

function checkCounts(group: Group, input: Region, output: Region, counts: readonly number[]): void {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const valid =
    counts.length === group.size && counts.every((count) => Number.isInteger(count) && count >= 0);
  if (
    !valid ||
    counts[group.rank] !== input.length ||
    output.length !== total ||
    input.dtype !== output.dtype
  ) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `allgather on ${group.title(group.rank)}: counts ${counts.join(' ')} for ${group.size} ranks, ${input.length} ${input.dtype} given, room for ${output.length} ${output.dtype}; counts[rank] must be the input's length and the output as long as all counts together`,
      { counts, input: input.length, output: output.length, rank: group.rank },
    );
  }
}
