/**
 * Measures the costs of allreduce on a group: every algorithm at a few lengths, the quickest call of the slowest rank,
 * one line fitted through them. Collective: all ranks call it together. Invariant: ends with the same figures on all ranks.
 */
import type { Group } from '../cluster/index.ts';
import { allReduce, availableAlgorithms } from './all-reduce.ts';
import type { AllReduceAlgorithm } from './all-reduce.ts';
import { barrier } from './barrier.ts';
import { MEASURE_TAG } from './call.ts';
import { costsOf, fitLine, setCosts } from './costs.ts';
import type { Cost, GroupCosts } from './costs.ts';

export interface MeasureOptions {
  /** Lengths to measure, in bytes. Default 1 KB, 32 KB, 256 KB and 2 MB. */
  readonly bytes?: readonly number[];
  /** Most calls for each algorithm and length; the quickest counts, because others only lost time. Default 7. */
  readonly repeats?: number;
  /** Algorithms to measure. Default: all that the group can run. */
  readonly algorithms?: readonly AllReduceAlgorithm[];
  readonly signal?: AbortSignal | undefined;
}

/** Slow links and long vectors are measured less often. */
const BUDGET_MICROS = 10_000;
const DEFAULT_BYTES = [1024, 32 * 1024, 256 * 1024, 2 * 2 ** 20];

/** Fits and remembers the costs of the group; returns those that are known already. */
export async function measureCosts(group: Group, options: MeasureOptions = {}): Promise<GroupCosts> {
  const known = costsOf(group);
  if (known) return known;
  const sizes = options.bytes ?? DEFAULT_BYTES;
  const repeats = options.repeats ?? 7;
  const algorithms = options.algorithms ?? availableAlgorithms(group);
  const { scratch } = group.progress;
  const vector = scratch.take('float32', Math.ceil(Math.max(...sizes) / 4));
  const times = scratch.take('float64', algorithms.length * sizes.length);
  const plan = { tag: MEASURE_TAG, signal: options.signal };
  try {
    vector.view.fill(1);
    for (const [a, algorithm] of algorithms.entries()) {
      for (const [s, bytes] of sizes.entries()) {
        const part = vector.slice(0, Math.ceil(bytes / 4));
        const once = async () => {
          await barrier(group, plan);
          const start = performance.now();
          allReduce(group, part, { ...plan, algorithm, op: 'max' }).wait();
          return (performance.now() - start) * 1000;
        };
        // All ranks must repeat equally often, so the slowest one's first time decides.
        const slot = times.slice(a * sizes.length + s, 1);
        slot.view[0] = await once();
        await allReduce(group, slot, { ...plan, op: 'max', algorithm: 'tree' });
        const affordable = Math.floor(BUDGET_MICROS / slot.view[0]);
        slot.view[0] = await quickestMicros(Math.max(1, Math.min(repeats, affordable)), once);
      }
    }
    await allReduce(group, times, { ...plan, op: 'max', algorithm: 'tree' });
    const costs: Cost[] = algorithms.map((algorithm, a) => ({
      algorithm,
      ...fitLine(sizes.map((bytes, s) => ({ bytes, micros: times.view[a * sizes.length + s]! }))),
    }));
    const measured = {
      transport: group.progress.transport.kind,
      ranks: group.size,
      hosts: new Set(group.hosts).size,
      costs,
    };
    setCosts(group, measured);
    return measured;
  } finally {
    scratch.giveBack(vector);
    scratch.giveBack(times);
  }
}

async function quickestMicros(repeats: number, once: () => Promise<number>): Promise<number> {
  let quickest = Infinity;
  for (let i = 0; i < repeats; i++) quickest = Math.min(quickest, await once());
  return quickest;
}
