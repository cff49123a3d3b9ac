/**
 * All-to-all: every rank sends a part of its own to each rank, itself included; what it gets is laid one after the
 * other in rank order. Lengths may differ by pair. Invariant: what rank r sends to s is as long as what s expects
 * from r, or all ranks get an error.
 */
import { UsageError } from '../base/index.ts';
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import { Ranks, settle } from './algorithms/ranks.ts';
import { checkCall, startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';
import { cut, partsByCounts } from './parts.ts';

export interface AllToAllOptions extends CollectiveOptions {
  /** Elements for each rank. Default: the input in equal parts. */
  readonly sendCounts?: readonly number[] | undefined;
  /** Elements from each rank. Default: the output in equal parts. */
  readonly receiveCounts?: readonly number[] | undefined;
}

export function allToAll(
  group: Group,
  input: Region,
  output: Region,
  options: AllToAllOptions & CallPlan = {},
): Handle {
  checkCall(group, 'alltoall', options);
  const sendCounts = countsOf(group, 'sendCounts', options.sendCounts, input);
  const receiveCounts = countsOf(group, 'receiveCounts', options.receiveCounts, output);
  const { rank } = group;
  if (input.dtype !== output.dtype || sendCounts[rank] !== receiveCounts[rank]) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `alltoall on ${group.title(rank)} keeps ${sendCounts[rank]} ${input.dtype} for itself but expects ${receiveCounts[rank]} ${output.dtype} from itself; make both the same`,
      { rank, sendCounts, receiveCounts },
    );
  }
  const fields = {
    collective: 'alltoall',
    dtype: input.dtype,
    sendCounts,
    receiveCounts,
    name: options.name,
  };
  return startCall(group, fields, options, (operation) =>
    exchange(operation, input, output, sendCounts, receiveCounts, group),
  );
}

function* exchange(
  operation: Operation,
  input: Region,
  output: Region,
  sendCounts: readonly number[],
  receiveCounts: readonly number[],
  { kernels }: Group,
): Steps {
  const ranks = Ranks.all(operation);
  const { size, position } = ranks;
  const from = partsByCounts(sendCounts);
  const to = partsByCounts(receiveCounts);
  const sends = [];
  const receives = [];
  for (let i = 1; i < size; i++) {
    sends.push(ranks.send(position + i, 0, cut(input, from[(position + i) % size]!)));
  }
  for (let i = 1; i < size; i++) {
    const into = cut(output, to[(position - i + size) % size]!);
    receives.push({ into, receiving: ranks.receive(position - i, 0, into) });
  }
  kernels.copy(cut(output, to[position]!), cut(input, from[position]!));
  for (const { into, receiving } of receives) {
    yield receiving;
    settle(receiving, into, kernels);
  }
  for (const sending of sends) yield sending;
}

function countsOf(
  group: Group,
  what: string,
  given: readonly number[] | undefined,
  region: Region,
): readonly number[] {
  const counts = given ?? Array.from({ length: group.size }, () => region.length / group.size);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const valid =
    counts.length === group.size && counts.every((count) => Number.isInteger(count) && count >= 0);
  if (valid && total === region.length) return counts;
  throw new UsageError(
    'SHAPE_MISMATCH',
    `${what} of alltoall on ${group.title(group.rank)} is ${counts.join(' ')}, but the region has ${region.length} elements for ${group.size} ranks; give one whole number for each rank, as many as there are elements in all`,
    { what, counts, length: region.length, rank: group.rank },
  );
}
