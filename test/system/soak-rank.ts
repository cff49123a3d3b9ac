/**
 * A rank of the soak: runs rounds of random work until it is told to stop: collectives of random kinds and sizes, several
 * at once under tags, in overlapping groups, joins and cancellations; every result is verified. It forms the world anew
 * after a loss and when a newcomer waits, and says on demand what it holds of the system. Not a test itself.
 * Invariant: what a round does follows from the world's id, the round and the seed, so that all ranks do the same.
 */
import { deriveSeed, PeerError, Random } from '../../src/base/index.ts';
import type { Group } from '../../src/cluster/index.ts';
import { allReduce } from '../../src/collectives/index.ts';
import {
  enterCluster,
  leaveCluster,
  say,
  settings,
  untilTold,
  wasTold,
} from '../collectives/rank-program-start.ts';
import { holdings } from './holdings.ts';
import { SoakWork } from './soak-work.ts';

const CONTROL_TAG = 1000;
const FIRST_WORLD = 1;

say('loaded');
await untilTold('join');
const cluster = await enterCluster();
say('joined', { group: cluster.world.id });
const signals = cluster.allocate('int32', 3);
const work = new SoakWork(cluster);
let rounds = 0;
let measured = 0;

for (;;) {
  try {
    if ((await runWorld(cluster.world)) === 'stop') break;
  } catch (error) {
    tell(error);
  }
  await regroup();
}
say('work', { rounds, ...work.counts });
await leaveCluster(cluster);

async function runWorld(world: Group): Promise<'regroup' | 'stop'> {
  const groups = await overlappingGroups(world);
  try {
    // Who comes later is not compared with itself.
    if (world.id === FIRST_WORLD) await work.warmUp(world);
    for (let round = 0; ; round++) {
      await work.round([world, ...groups], new Random(deriveSeed(settings.seed, world.id, round)));
      rounds++;
      signals.view.set([cluster.newcomers > 0 ? 1 : 0, wasTold('stop') ? 1 : 0, commandsToMeasure()]);
      await allReduce(world, signals, { op: 'max', tag: CONTROL_TAG });
      const [newcomers, stop, measure] = signals.view as unknown as [number, number, number];
      if (round === 0) say('correct', { group: world.id, size: world.size });
      if (measure > measured) say('holds', { held: holdings() });
      measured = measure;
      if (stop > 0) return 'stop';
      if (newcomers > 0) return 'regroup';
    }
  } finally {
    for (const group of groups) group.close();
  }
}

/** All but the last rank, and all but the first: every rank but those two is in both. */
async function overlappingGroups(world: Group): Promise<Group[]> {
  if (world.size < 3) return [];
  const everyone = Array.from({ length: world.size }, (_, rank) => rank);
  const groups: Group[] = [];
  for (const ranks of [everyone.slice(0, -1), everyone.slice(1)]) {
    if (ranks.includes(world.rank)) groups.push(await cluster.group(ranks));
  }
  return groups;
}

/** How often the test has asked for holdings; the next common round answers. */
function commandsToMeasure(): number {
  let count = 0;
  while (wasTold(`measure ${count + 1}`)) count++;
  return count;
}

async function regroup(): Promise<void> {
  for (;;) {
    try {
      await cluster.regroup();
      return;
    } catch (error) {
      tell(error);
    }
  }
}

function tell(error: unknown): void {
  if (!(error instanceof PeerError)) throw error;
  say('named', { code: error.code, message: error.message });
}
