/**
 * Measures the costs of allreduce on a group: every algorithm at a short and a long length, the quick calls of the
 * slowest rank, and the line through them. Collective: all ranks call it together. Invariant: ends with the same figures on all ranks.
 */
import type { Group } from '../cluster/index.ts';
import { allReduce, availableAlgorithms } from './all-reduce.ts';
import type { AllReduceAlgorithm } from './all-reduce.ts';
import { barrier } from './barrier.ts';
import { costsOf, fitLine, setCosts } from './costs.ts';
import type { Cost, GroupCosts } from './costs.ts';

export interface MeasureOptions {
  /** Lengths to measure, in bytes; the line goes through the shortest and the longest. Default 1 KB and 4 MB. */
  readonly bytes?: readonly number[];
  /** Times that every algorithm and length is measured; the quickest counts, the others only lost time. Default 6. */
  readonly rounds?: number;
  /** Algorithms to measure. Default: all that the group can run. */
  readonly algorithms?: readonly AllReduceAlgorithm[];
  readonly signal?: AbortSignal | undefined;
}

const DEFAULT_BYTES = [1024, 4 * 2 ** 20];
/** What one measurement of one algorithm at one length may take, so that slow links are not measured for long. */
const BUDGET_MICROS = 2000;
/** At least so many calls whatever they take: of short vectors, whose times scatter, and of long ones. */
const LEAST_CALLS = { short: 12, long: 2 };
const SHORT_BYTES = 64 * 1024;
const MOST_CALLS = 200;
const DEFAULT_ROUNDS = 6;

/** Fits and remembers the costs of the group; returns those that are known already. */
export async function measureCosts(group: Group, options: MeasureOptions = {}): Promise<GroupCosts> {
  const known = costsOf(group);
  if (known) return known;
  const sizes = options.bytes ?? DEFAULT_BYTES;
  const algorithms = options.algorithms ?? availableAlgorithms(group);
  const { scratch } = group.progress;
  const vector = scratch.take('float32', Math.ceil(Math.max(...sizes) / 4));
  const times = scratch.take('float64', algorithms.length * sizes.length);
  const plan = { name: 'measure', signal: options.signal };
  const durations = new Float64Array(MOST_CALLS);
  const pairs = algorithms.flatMap((algorithm) => sizes.map((bytes) => ({ algorithm, bytes })));

  const time = (algorithm: AllReduceAlgorithm, bytes: number, calls: number) => {
    const part = vector.slice(0, Math.ceil(bytes / 4));
    // Blocking, because ranks that come out of an awaited barrier are a turn of the event loop apart.
    barrier(group, plan).wait();
    for (let i = 0; i < calls; i++) {
      const start = performance.now();
      allReduce(group, part, { ...plan, algorithm, op: 'sum' }).wait();
      durations[i] = performance.now() - start;
    }
    // Not the mean: where ranks share processors, one that waits to run makes a few calls a hundred times as long.
    return durations.subarray(0, calls).sort()[calls >> 2]! * 1000;
  };
  /** All ranks must call equally often, so they share the slowest one's times. */
  const share = () => allReduce(group, times, { ...plan, op: 'max', algorithm: 'tree' });

  try {
    vector.view.fill(0);
    times.view.fill(BUDGET_MICROS);
    // Rounds over all of them, each with as many calls as the last one says are affordable: code that is not yet
    // compiled is slow, and whoever runs first would look slow.
    for (let round = 0; round < (options.rounds ?? DEFAULT_ROUNDS); round++) {
      for (const [i, { algorithm, bytes }] of pairs.entries()) {
        const least = bytes <= SHORT_BYTES ? LEAST_CALLS.short : LEAST_CALLS.long;
        const calls = Math.max(least, Math.min(MOST_CALLS, Math.floor(BUDGET_MICROS / times.view[i]!)));
        const micros = time(algorithm, bytes, calls);
        times.view[i] = round === 0 ? micros : Math.min(times.view[i]!, micros);
      }
      await share();
    }
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
