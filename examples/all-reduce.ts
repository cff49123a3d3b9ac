/** Four processes add up their vectors. Run: npx tsx examples/all-reduce.ts */
import { fork } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { allReduce, joinCluster, Scheduler } from 'tributary';

const RANKS = 4;
const secret = process.env.EXAMPLE_SECRET ?? randomBytes(16).toString('hex');
const address = process.argv[2];

if (address === undefined) {
  // The scheduler brings the processes together; here they all run on this machine.
  const scheduler = await Scheduler.start({ size: RANKS, secret });
  const env = { ...process.env, EXAMPLE_SECRET: secret };
  const program = fileURLToPath(import.meta.url);
  const ranks = Array.from({ length: RANKS }, () => fork(program, [scheduler.address], { env }));
  await Promise.all(ranks.map((rank) => new Promise((resolve) => rank.once('exit', resolve))));
  await scheduler.close();
} else {
  const cluster = await joinCluster({ scheduler: address, secret });
  const { world } = cluster;
  const vector = cluster.allocate('float32', 1_000_000);
  vector.view.fill(world.rank + 1);
  await allReduce(world, vector, { op: 'mean', name: 'vector' });
  console.log(`rank ${world.rank} of ${world.size}: the mean is ${vector.view[0]}`);
  await cluster.close();
}
