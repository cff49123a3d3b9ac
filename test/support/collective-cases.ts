/** The oracle cases of collectives, how a rank runs one, and how its result is judged. Shared by every transport. */
import {
  allGather,
  allReduce,
  allToAll,
  availableAlgorithms,
  broadcast,
  reduce,
  reduceScatter,
} from '../../src/collectives/index.ts';
import type { AllReduceAlgorithm, CollectiveOperation } from '../../src/collectives/index.ts';
import type { Group } from '../../src/cluster/index.ts';
import type { Region } from '../../src/memory/index.ts';
import type { Handle } from '../../src/progress/index.ts';
import { numbers, readVectors } from './shared.ts';

type Numbers = (number | string)[];

export interface CollectiveCase {
  readonly name: string;
  readonly collective: 'allreduce' | 'reduce_scatter' | 'allgather' | 'alltoall' | 'broadcast' | 'reduce';
  readonly world: number;
  readonly dtype: 'float32' | 'float64' | 'int32';
  readonly attrs: { op?: string; root?: number; counts?: number[]; send_counts?: number[][] };
  readonly inputs: Numbers[];
  readonly outputs: (Numbers | null)[];
  readonly tolerance: { rtol: number; abs_sum_factor: number };
}

/** How many ranks there are cases for, ascending. */
export function collectiveWorlds(): number[] {
  const worlds = readVectors<CollectiveCase>('collectives.json').map(({ world }) => world);
  return [...new Set(worlds)].sort((a, b) => a - b);
}

export function collectiveCases(world: number): CollectiveCase[] {
  return readVectors<CollectiveCase>('collectives.json', (one) => one.world === world);
}

export type MakeRegion = (dtype: 'float32' | 'float64' | 'int32', values: readonly number[]) => Region;

/** Runs a case on one rank by one algorithm (only allreduce has several); the differences found, none if it passed. */
export async function runCase(
  one: CollectiveCase,
  group: Group,
  region: MakeRegion,
  algorithm: AllReduceAlgorithm,
  finish: (handle: Handle) => Promise<void> = async (handle) => handle,
): Promise<string[]> {
  const { rank } = group;
  const { dtype, attrs } = one;
  const op = (attrs.op === 'prod' ? 'product' : attrs.op) as CollectiveOperation;
  const input = region(dtype, numbers(one.inputs[rank]!));
  const wanted = one.outputs[rank];
  const room = () =>
    region(
      dtype,
      Array.from({ length: wanted!.length }, () => 0),
    );
  let result: Region;
  switch (one.collective) {
    case 'allreduce':
      await finish(allReduce(group, (result = input), { op, algorithm }));
      break;
    case 'reduce_scatter':
      await finish(reduceScatter(group, input, (result = room()), { op }));
      break;
    case 'allgather':
      await finish(allGather(group, input, (result = room()), { counts: attrs.counts! }));
      break;
    case 'alltoall': {
      const counts = attrs.send_counts!;
      const receiveCounts = counts.map((row) => row[rank]!);
      await finish(allToAll(group, input, (result = room()), { sendCounts: counts[rank]!, receiveCounts }));
      break;
    }
    case 'broadcast':
      await finish(broadcast(group, (result = input), { root: attrs.root! }));
      break;
    case 'reduce':
      await finish(reduce(group, (result = input), { op, root: attrs.root! }));
  }
  if (!wanted) return [];
  // Nine digits name a float32 exactly, once rounded to it.
  const expected = numbers(wanted).map((value) => (dtype === 'float32' ? Math.fround(value) : value));
  const difference = judge(one, result.view as unknown as ArrayLike<number>, expected, rank);
  return difference === undefined ? [] : [`${one.name} by ${algorithm} on rank ${rank}: ${difference}`];
}

function judge(
  one: CollectiveCase,
  got: ArrayLike<number>,
  want: readonly number[],
  rank: number,
): string | undefined {
  if (got.length !== want.length) return `${got.length} elements instead of ${want.length}`;
  const { rtol, abs_sum_factor: factor } = one.tolerance;
  const start = one.collective === 'reduce_scatter' ? sum(one.attrs.counts!.slice(0, rank)) : 0;
  for (let i = 0; i < want.length; i++) {
    if (Object.is(got[i], want[i]) || got[i] === want[i]) continue;
    const spread =
      factor === 0 ? 0 : factor * sum(one.inputs.map((input) => Math.abs(Number(input[start + i]))));
    if (!(Math.abs(got[i]! - want[i]!) <= rtol * Math.abs(want[i]!) + spread)) {
      return `[${i}] is ${got[i]}, expected ${want[i]}`;
    }
  }
  return undefined;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** Algorithms to try a case with. */
export function algorithmsFor(one: CollectiveCase, group: Group): AllReduceAlgorithm[] {
  return one.collective === 'allreduce' ? availableAlgorithms(group) : ['direct'];
}
