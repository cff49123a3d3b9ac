/** A rank under mpirun that sums in groups which overlap, each made by its own members only. Not a test itself. */
import { allReduce } from '../../src/collectives/index.ts';
import { enterCluster, leaveCluster, say } from '../collectives/rank-program-start.ts';

const LISTS = [
  [0, 1],
  [0, 2],
  [2, 1],
  [0, 1],
];

const cluster = await enterCluster();
const { rank } = cluster.world;
const sums: number[] = [];
for (const list of LISTS) {
  if (!list.includes(rank)) continue;
  const group = await cluster.group(list);
  const vector = cluster.allocate('float32', 1);
  vector.view[0] = 10 ** rank;
  await allReduce(group, vector);
  sums.push(vector.view[0]);
}
const refusals = [];
for (const list of [[0, 0, rank], [(rank + 1) % 3]]) {
  refusals.push(
    await cluster.group(list).then(
      () => 'formed',
      (error: { code: string }) => error.code,
    ),
  );
}
say('summed', { rank, sums, refusals });
await leaveCluster(cluster);
