/**
 * A rank that joins with all defaults, costs measured. The first ones wait for a newcomer and take it in; then all sum.
 * Not a test itself.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { allReduce, costsOf } from '../../src/collectives/index.ts';
import { joinCluster } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { leaveCluster, say, settings } from '../collectives/rank-program-start.ts';

const { scheduler, secret } = settings;
const space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
const cluster = await joinCluster({ scheduler, secret, space, transport: 'shm', deadlineMs: 30_000 });
const measured = costsOf(cluster.world) !== undefined;
const pair = cluster.isNewcomer ? undefined : await cluster.group([0, 1]);
say('joined', { isNewcomer: cluster.isNewcomer, measured });
if (!cluster.isNewcomer) {
  while (cluster.newcomers === 0) await sleep(5);
  await cluster.regroup();
}
const vector = cluster.allocate('float32', 10);
vector.view.fill(1);
allReduce(cluster.world, vector).wait();
const old = pair && (await attempt(() => allReduce(pair, vector)));
say('summed', {
  size: cluster.world.size,
  sum: vector.view[9],
  old,
  yields: cluster.progress.yieldsWhileSpinning,
});
await leaveCluster(cluster);

async function attempt(act: () => PromiseLike<void>): Promise<string> {
  try {
    await act();
    return 'it went through';
  } catch (error) {
    return (error as { code: string }).code;
  }
}
