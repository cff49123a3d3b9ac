/**
 * The random work of the soak: one round is a few collectives in flight at once, each verified, or a cancellation, or a
 * join. Not the loop around it (soak-rank.ts). Invariants: all ranks of a group draw the same numbers; vectors hold
 * whole numbers, so that sums are exact in any order; a region is in one operation at a time.
 */
import { PeerError } from '../../src/base/index.ts';
import type { Random } from '../../src/base/index.ts';
import type { Cluster, Group } from '../../src/cluster/index.ts';
import {
  allGather,
  allReduce,
  allToAll,
  availableAlgorithms,
  barrier,
  broadcast,
  join,
  reduce,
  reduceScatter,
} from '../../src/collectives/index.ts';
import type { AllReduceAlgorithm } from '../../src/collectives/index.ts';
import type { Region } from '../../src/memory/index.ts';
import type { Handle } from '../../src/progress/index.ts';

const MAX_ELEMENTS = 2 ** 19;
const MOST_AT_ONCE = 4;
/** Above those of operations of the world; groups need no tags of their own. */
const GROUP_TAG = MOST_AT_ONCE;
const KINDS = [
  'allreduce',
  'allgather',
  'alltoall',
  'broadcast',
  'reduce',
  'reducescatter',
  'barrier',
] as const;

interface Plan {
  readonly kind: (typeof KINDS)[number];
  readonly length: number;
  readonly root: number;
  readonly algorithm: AllReduceAlgorithm;
}

interface Started {
  readonly handle: Handle;
  readonly check: () => void;
}

export class SoakWork {
  readonly counts = { collectives: 0, cancelled: 0, cancelledTooLate: 0, joins: 0 };
  /** Two regions for each operation in flight, half of them where peers can map them. */
  readonly #regions: readonly (readonly [Region<'float32'>, Region<'float32'>])[];

  constructor(cluster: Cluster) {
    const own = () => cluster.space.allocate(4 * MAX_ELEMENTS).allocate('float32', MAX_ELEMENTS);
    const shareable = () => cluster.allocate('float32', MAX_ELEMENTS);
    this.#regions = Array.from({ length: 2 * MOST_AT_ONCE }, (_, i) =>
      i % 2 === 0 ? [shareable(), shareable()] : [own(), own()],
    );
  }

  /**
   * As many of the largest operations at once as there will ever be, of each kind and algorithm: what the process keeps
   * for reuse then grows little afterwards, and growth is a leak.
   */
  async warmUp(group: Group): Promise<void> {
    for (let length = MAX_ELEMENTS; length >= MAX_ELEMENTS / 8; length /= 2) {
      for (const kind of KINDS) {
        for (const algorithm of kind === 'allreduce' ? availableAlgorithms(group) : (['direct'] as const)) {
          const plan = { kind, length, root: 0, algorithm };
          const started = Array.from({ length: MOST_AT_ONCE }, (_, slot) => this.#start(group, slot, plan));
          for (const { handle, check } of started) {
            await handle;
            check();
          }
        }
      }
    }
  }

  /** `groups` in an order on which the members of each agree, the world first. */
  async round(groups: readonly Group[], random: Random): Promise<void> {
    const kind = random.below(10);
    if (kind === 0) return this.#cancel(groups[0]!, random);
    if (kind === 1) return this.#join(groups[0]!, random);
    // Operations of the world, and in every group of this rank one more.
    const started: Started[] = [];
    const count = 1 + random.below(MOST_AT_ONCE);
    for (let i = 0; i < count; i++) started.push(this.#start(groups[0]!, i, draw(groups[0]!, random)));
    const seed = random.uint32();
    groups.slice(1).forEach((group, i) => {
      started.push(this.#startIn(group, MOST_AT_ONCE + i, seed));
    });
    const blocked = random.below(2) === 0;
    // In any order: the one that is waited for moves the others as well.
    for (const { handle, check } of random.below(2) === 0 ? started : started.reverse()) {
      if (blocked) handle.wait();
      else await handle;
      check();
      this.counts.collectives++;
    }
  }

  /** Rank `who` leaves an allreduce; the others finish it, if it had done its part, or learn who left. */
  async #cancel(group: Group, random: Random): Promise<void> {
    const who = random.below(group.size);
    const algorithms = availableAlgorithms(group);
    const algorithm = algorithms[random.below(algorithms.length)]!;
    const region = this.#regions[random.below(2)]![0].slice(0, elements(random));
    fill(region, group.rank + 1);
    const handle = allReduce(group, region, { algorithm, tag: 1 });
    if (who === group.rank) handle.cancel();
    try {
      await handle;
      check(region, triangle(group.size), `${algorithm} that rank ${who} left late`);
      this.counts.cancelledTooLate++;
    } catch (error) {
      if (!(error instanceof PeerError) || error.code !== 'CANCELLED') throw error;
      if (!error.message.includes(group.title(who)))
        throw new Error(`not named: rank ${who}`, { cause: error });
      this.counts.cancelled++;
    }
  }

  /** Every rank runs out of data at another time; averages count those that have some. */
  async #join(group: Group, random: Random): Promise<void> {
    const length = elements(random);
    const steps = Array.from({ length: group.size }, () => random.below(4));
    const region = this.#regions[random.below(2)]![0].slice(0, length);
    for (let step = 0; step < steps[group.rank]!; step++) {
      region.view.fill(group.rank + 1);
      await allReduce(group, region, { op: 'mean', name: `step ${step}` });
      const withData = steps.flatMap((count, rank) => (count > step ? [rank + 1] : []));
      const mean = Math.fround(withData.reduce((a, b) => a + b) / withData.length);
      const at = random.below(length);
      const got = region.view[at]!;
      if (Math.abs(got - mean) > 1e-6 * mean) throw new Error(`the average is ${got}, expected ${mean}`);
    }
    await join(group);
    this.counts.joins++;
  }

  #startIn(group: Group, slot: number, seed: number): Started {
    // The rank may be in one of the groups only, so that each group draws from a generator of its own.
    const length = 1 + (((seed ^ group.id) >>> 0) % 100_000);
    const region = this.#regions[slot]![0].slice(0, length);
    fill(region, group.rank + 1);
    const handle = allReduce(group, region, { tag: GROUP_TAG });
    return { handle, check: () => check(region, triangle(group.size), `sum in group ${group.id}`) };
  }

  #start(group: Group, slot: number, { kind, length, root, algorithm }: Plan): Started {
    const { rank, size } = group;
    const [first, second] = this.#regions[slot]!;
    const part = Math.floor(length / size);
    const tag = slot;
    const sum = triangle(size);
    const whole = first.slice(0, length);
    const parts = first.slice(0, part * size);
    const results = second.slice(0, part * size);
    const even = Array.from({ length: size }, () => part);
    switch (kind) {
      case 'allreduce':
        fill(whole, rank + 1);
        return {
          handle: allReduce(group, whole, { algorithm, tag }),
          check: () => check(whole, sum, `allreduce by ${algorithm}`),
        };
      case 'reduce':
        fill(whole, rank + 1);
        return {
          handle: reduce(group, whole, { root, tag }),
          check: () => rank === root && check(whole, sum, 'reduce'),
        };
      case 'broadcast':
        fill(whole, rank + 1);
        return {
          handle: broadcast(group, whole, { root, tag }),
          check: () => check(whole, root + 1, 'broadcast'),
        };
      case 'reducescatter': {
        fill(parts, rank + 1);
        const result = second.slice(0, part);
        return {
          handle: reduceScatter(group, parts, result, { tag }),
          check: () => check(result, sum, 'reduce-scatter', rank * part),
        };
      }
      case 'allgather': {
        const own = first.slice(0, part);
        fill(own, rank + 1);
        return {
          handle: allGather(group, own, results, { counts: even, tag }),
          check: () => even.forEach((_, at) => check(results.slice(at * part, part), at + 1, 'allgather')),
        };
      }
      case 'alltoall':
        fill(parts, rank + 1);
        return {
          handle: allToAll(group, parts, results, { sendCounts: even, receiveCounts: even, tag }),
          check: () =>
            even.forEach((_, at) => check(results.slice(at * part, part), at + 1, 'alltoall', rank * part)),
        };
      case 'barrier':
        return { handle: barrier(group, { tag }), check: () => undefined };
    }
  }
}

function draw(group: Group, random: Random): Plan {
  const algorithms = availableAlgorithms(group);
  return {
    kind: KINDS[random.below(KINDS.length)]!,
    length: elements(random),
    root: random.below(group.size),
    algorithm: algorithms[random.below(algorithms.length)]!,
  };
}

function triangle(size: number): number {
  return (size * (size + 1)) / 2;
}

/** From one element to the most, evenly over the orders of magnitude. */
function elements(random: Random): number {
  return Math.floor(MAX_ELEMENTS ** random.uniform());
}

function fill({ view }: Region<'float32'>, factor: number): void {
  for (let i = 0; i < view.length; i++) view[i] = factor * ((i % 1021) + 1);
}

/** `start`: where the first element stands in the vector as it was filled. */
function check({ view }: Region<'float32'>, factor: number, what: string, start = 0): void {
  for (let i = 0; i < view.length; i++) {
    const wanted = factor * (((start + i) % 1021) + 1);
    if (view[i] !== wanted) throw new Error(`${what}: [${i}] is ${view[i]}, expected ${wanted}`);
  }
}
