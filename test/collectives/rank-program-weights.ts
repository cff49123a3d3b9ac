/**
 * A rank that averages many vectors by the algorithm that takes the quick lane, where the last rank has no weight, and
 * then nobody has. Says what came out wrong and how many calls went by the lane. Not a test itself.
 */
import { allReduce, barrier } from '../../src/collectives/index.ts';
import { FINISHED } from '../../src/progress/index.ts';
import { enterCluster, leaveCluster, say } from './rank-program-start.ts';

/** One that a slot carries, and one that is summed where it lies. */
const LENGTHS = [10, 5001];
/** Calls of each kind that are to go by the lane, and the most that are made for it: on a busy machine few go by it. */
const BY_LANE = 10;
const MOST_CALLS = 4000;

const cluster = await enterCluster();
const { world } = cluster;
const { rank, size } = world;
const differences: string[] = [];
let byLane = 0;

for (const dtype of ['float32', 'float64'] as const) {
  for (const length of LENGTHS) {
    const region = cluster.allocate(dtype, length);
    // All ranks agree which calls went by the lane, so all of them make as many.
    const enough = byLane + BY_LANE;
    for (let round = 0; byLane < enough && round < MOST_CALLS; round++) {
      const weightless = round % 2 === 1 || rank === size - 1;
      const expected = round % 2 === 1 ? 0 : 10;
      region.view.fill(rank === size - 1 ? Infinity : 10);
      const options = { algorithm: 'direct', op: 'mean', weight: weightless ? 0 : rank + 1 } as const;
      const handle = allReduce(world, region, options);
      if (handle === FINISHED) byLane++;
      handle.wait();
      const wrong = region.view.find((value: number) => value !== expected);
      if (wrong === undefined) continue;
      differences.push(`rank ${rank}: ${length} ${dtype}, round ${round}: ${wrong} instead of ${expected}`);
    }
  }
}
// Nobody leaves while another is still in the last call.
barrier(world).wait();
say('ran', { rank, byLane, differences });
await leaveCluster(cluster);
