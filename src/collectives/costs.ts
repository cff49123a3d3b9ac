/**
 * What an allreduce costs on a group: `a + b * bytes` for each algorithm (MG-WFBP, section II), measured on the group
 * itself, fitted once and remembered. Not a simulator: the figures hold for these ranks on these links. Invariant:
 * all ranks of a group have the same figures, those of its slowest rank, and so always choose the same algorithm.
 */
import type { Group } from '../cluster/index.ts';
import type { AllReduceAlgorithm } from './all-reduce.ts';

export interface Cost {
  readonly algorithm: AllReduceAlgorithm;
  /** Microseconds that a call takes however short it is. */
  readonly aMicros: number;
  /** Microseconds for each byte. */
  readonly bMicros: number;
}

/** What was measured on a group, and between whom. */
export interface GroupCosts {
  readonly transport: string;
  readonly ranks: number;
  readonly hosts: number;
  readonly costs: readonly Cost[];
}

const known = new WeakMap<Group, GroupCosts>();

export function costsOf(group: Group): GroupCosts | undefined {
  return known.get(group);
}

export function setCosts(group: Group, costs: GroupCosts): void {
  known.set(group, costs);
}

/** The algorithm with the lowest cost; before anything was measured, a rule of thumb. */
export function chooseAlgorithm(group: Group, bytes: number): AllReduceAlgorithm {
  if (group.size === 1) return 'direct';
  const measured = known.get(group);
  if (measured) return cheapest(measured.costs, bytes);
  const oneHost = group.hosts.every((host) => host === group.hosts[0]);
  if (oneHost && group.progress.transport.inPlace) return 'direct';
  if (group.progress.transport.native) return 'native';
  if (bytes <= 16 * 1024) return group.size <= 4 ? 'direct' : 'halving-doubling';
  const shared = new Set(group.hosts).size < group.size && group.progress.transport.inPlace !== undefined;
  return shared ? 'hierarchical' : bytes <= 512 * 1024 ? 'ring' : 'rings';
}

/** An algorithm must be this much quicker to be taken instead of one that stands before it. */
const CLEARLY = 0.9;

export function cheapest(costs: readonly Cost[], bytes: number): AllReduceAlgorithm {
  let best = costs[0]!;
  for (const cost of costs) if (costOf(cost, bytes) < CLEARLY * costOf(best, bytes)) best = cost;
  return best.algorithm;
}

export function costOf({ aMicros, bMicros }: Cost, bytes: number): number {
  return aMicros + bMicros * bytes;
}

/**
 * The line through the shortest and the longest of the measured times. One that is fitted to all of them follows the
 * lengths between, which the buffers of a link carry quicker than it carries long vectors, and promises several times
 * the link's rate. Neither a nor b is below 0.
 */
export function fitLine(points: readonly { readonly bytes: number; readonly micros: number }[]): {
  aMicros: number;
  bMicros: number;
} {
  const byLength = points.toSorted((x, y) => x.bytes - y.bytes);
  const shortest = byLength[0]!;
  const longest = byLength.at(-1)!;
  const slope = (longest.micros - shortest.micros) / Math.max(1, longest.bytes - shortest.bytes);
  const bMicros = Math.max(0, slope);
  return { aMicros: Math.max(0, shortest.micros - bMicros * shortest.bytes), bMicros };
}

/** For people: one line for each algorithm and where it is the quickest. */
export function printCosts({ transport, ranks, hosts, costs }: GroupCosts): string {
  const sizes = Array.from({ length: 18 }, (_, i) => 2 ** (10 + i));
  const lines = costs.map((cost) => {
    const best = sizes.filter((bytes) => cheapest(costs, bytes) === cost.algorithm);
    const range =
      best.length === 0 ? 'never the quickest' : `quickest from ${title(best[0]!)} to ${title(best.at(-1)!)}`;
    const rate =
      cost.bMicros > 0 ? `${(1e-3 / cost.bMicros).toFixed(2)} GB/s` : 'no measurable cost by length';
    return `  ${cost.algorithm.padEnd(16)} ${cost.aMicros.toFixed(1).padStart(8)} us + bytes at ${rate.padEnd(12)} ${range}`;
  });
  return [
    `allreduce on ${transport}, ${ranks} ranks, ${hosts} ${hosts === 1 ? 'host' : 'hosts'}:`,
    ...lines,
  ].join('\n');
}

function title(bytes: number): string {
  return bytes >= 2 ** 20 ? `${bytes / 2 ** 20} MB` : `${bytes / 2 ** 10} KB`;
}
