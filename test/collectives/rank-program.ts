/**
 * A rank of the oracle tests: runs every case of its group's size by every algorithm that the group has, in memory that
 * peers map and in memory that they cannot, awaited and waited for in turn, and says what differed. Not a test itself.
 */
import type { Region } from '../../src/memory/index.ts';
import type { Handle } from '../../src/progress/index.ts';
import { algorithmsFor, collectiveCases, runCase } from '../support/collective-cases.ts';
import type { MakeRegion } from '../support/collective-cases.ts';
import { enterCluster, leaveCluster, say } from './rank-program-start.ts';

const ARENA_ELEMENTS = 2 ** 18;
const DTYPES = ['float32', 'float64', 'int32'] as const;

const cluster = await enterCluster();
const { world, space, transport } = cluster;

/** Regions one behind the other, so that most of them start at odd places; `reset` takes all of them back. */
class Arena {
  readonly #all: ReadonlyMap<string, Region>;
  #used = 0;

  constructor(allocate: (dtype: (typeof DTYPES)[number]) => Region) {
    this.#all = new Map(DTYPES.map((dtype) => [dtype, allocate(dtype)]));
  }

  readonly region: MakeRegion = (dtype, values) => {
    const region = this.#all.get(dtype)!.slice(this.#used, values.length);
    this.#used += values.length;
    values.forEach((value, i) => (region.view[i] = value));
    return region;
  };

  reset(): void {
    this.#used = 0;
  }
}

const arenas = [new Arena((dtype) => space.allocate(8 * ARENA_ELEMENTS).allocate(dtype, ARENA_ELEMENTS))];
if (transport.inPlace) arenas.push(new Arena((dtype) => cluster.allocate(dtype, ARENA_ELEMENTS)));

let runs = 0;
const finish = async (handle: Handle): Promise<void> => {
  if (runs++ % 2 === 0) await handle;
  else handle.wait();
};

const differences: string[] = [];
for (const one of collectiveCases(world.size)) {
  for (const algorithm of algorithmsFor(one, world)) {
    for (const arena of arenas) {
      arena.reset();
      differences.push(...(await runCase(one, world, arena.region, algorithm, finish)));
    }
  }
}
say('ran', { rank: world.rank, runs, differences });
await leaveCluster(cluster);
