/**
 * Whether a cluster's workers should use racks: who is in which, how fast the network is inside and between them, and what the
 * inequality of PHub (section 3.4) says to it. Measures where nobody gave figures; the decision itself is `plan`'s. Invariant:
 * all workers come to the same answer, since they go by the slowest that anyone has seen.
 */
import { UsageError } from '../base/index.ts';
import type { Cluster, Group } from '../cluster/index.ts';
import { allReduce, allToAll, barrier } from '../collectives/index.ts';
import { chooseReduction } from '../plan/index.ts';
import type { RackNetwork, ReductionChoice } from '../plan/index.ts';

export type BetweenRacks = RackNetwork['between'];
/** What the network can do, as somebody has measured it. */
export type RackBandwidths = Pick<
  RackNetwork,
  'boxBytesPerSecond' | 'coreBytesPerSecond' | 'workerBytesPerSecond'
>;

export interface RackLayout {
  /** Ranks of each rack, ascending; the first leads it. In the order of their leaders. */
  readonly ranks: readonly (readonly number[])[];
  /** The rack of this process, as a place in that list. */
  readonly own: number;
}

/** `racks`: a number for the rack of every rank, or 'hosts' for one rack on each host. */
export function rackLayout({ rank, size, hosts }: Group, racks: readonly number[] | 'hosts'): RackLayout {
  const labels: readonly (number | string)[] = racks === 'hosts' ? hosts : racks;
  if (
    labels.length !== size ||
    labels.some((label) => typeof label === 'number' && !Number.isInteger(label))
  ) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `racks are [${labels.join(', ')}] for ${size} workers; give the number of the rack of every worker, or 'hosts'`,
      { rank, racks, workers: size },
    );
  }
  // A map keeps the order in which racks were first seen, which is that of their lowest ranks.
  const byLabel = new Map<number | string, number[]>();
  labels.forEach((label, one) => byLabel.set(label, [...(byLabel.get(label) ?? []), one]));
  const ranks = [...byLabel.values()];
  return { ranks, own: ranks.findIndex((rack) => rack.includes(rank)) };
}

/** To be called by all workers. Racks of different sizes are taken for as large as the largest. */
export async function planRacks(
  cluster: Cluster,
  layout: RackLayout,
  between: BetweenRacks,
  given: RackBandwidths | undefined,
): Promise<ReductionChoice> {
  const bandwidths = given ?? (await measureBandwidths(cluster, layout));
  return chooseReduction({
    ...{ racks: layout.ranks.length, between, ...bandwidths },
    workersPerRack: Math.max(...layout.ranks.map(({ length }) => length)),
  });
}

const PROBE_ELEMENTS = 2 ** 20;
const PROBES = 8;

/**
 * Timed transfers of 4 MB: all leaders at once to the next rack (core), all workers of a rack at once to its leader (box), one
 * of them alone (worker). The best of eight, since what disturbs a transfer only makes it longer; of all racks the
 * slowest. Where there is nobody to send, the other figures stand in.
 */
export async function measureBandwidths(
  cluster: Cluster,
  { ranks, own }: RackLayout,
): Promise<RackBandwidths> {
  const { world } = cluster;
  const [rack, leaders] = [ranks[own]!, ranks.map(([first]) => first!)];
  const seen = { core: Infinity, box: Infinity, worker: Infinity };
  if (rack.length > 1) {
    const group = await cluster.group(rack);
    seen.box = await probe(cluster, group, (from, to) => from > 0 && to === 0, rack.length - 1);
    seen.worker = await probe(cluster, group, (from, to) => from === 1 && to === 0, 1);
    group.close();
  }
  // One after the other, so that racks do not disturb the core.
  await barrier(world, { name: 'bandwidth inside racks' });
  if (leaders.length > 1 && leaders.includes(world.rank)) {
    const group = await cluster.group(leaders);
    seen.core = await probe(cluster, group, (from, to) => to === (from + 1) % group.size, 1);
    group.close();
  }
  const slowest = cluster.allocate('float64', 3);
  slowest.view.set([seen.core, seen.box, seen.worker]);
  await allReduce(world, slowest, { op: 'min', name: 'bandwidths of racks' });
  const [core, box, worker] = slowest.view as unknown as [number, number, number];
  const known = [core, box, worker].filter(Number.isFinite);
  // A single worker sends nothing, and any figure gives the same answer.
  const fastest = known.length > 0 ? Math.max(...known) : 1;
  const or = (figure: number) => (Number.isFinite(figure) ? figure : fastest);
  return { boxBytesPerSecond: or(box), coreBytesPerSecond: or(core), workerBytesPerSecond: or(worker) };
}

/** Bytes a second through the narrowest place, where `parts` probes pass. */
async function probe(
  cluster: Cluster,
  group: Group,
  sends: (from: number, to: number) => boolean,
  parts: number,
): Promise<number> {
  const counts = (count: (peer: number) => boolean) =>
    Array.from({ length: group.size }, (_, peer) => (count(peer) ? PROBE_ELEMENTS : 0));
  const sendCounts = counts((to) => sends(group.rank, to));
  const receiveCounts = counts((from) => sends(from, group.rank));
  const sumOf = (list: readonly number[]) => list.reduce((sum, count) => sum + count, 0);
  const { scratch } = cluster.progress;
  const input = scratch.take('float32', sumOf(sendCounts));
  const output = scratch.take('float32', sumOf(receiveCounts));
  let best = Infinity;
  for (let i = 0; i < PROBES; i++) {
    await barrier(group, { name: 'probe of a rack' });
    const startedMs = performance.now();
    await allToAll(group, input, output, { sendCounts, receiveCounts, name: 'probe of a rack' });
    // Whoever sends may be done before the others have received.
    await barrier(group, { name: 'end of a probe of a rack' });
    best = Math.min(best, performance.now() - startedMs);
  }
  scratch.giveBack(input);
  scratch.giveBack(output);
  return (parts * 4 * PROBE_ELEMENTS) / (best / 1000);
}
