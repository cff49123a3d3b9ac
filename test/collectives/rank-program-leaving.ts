/** A rank as a process, three in all, in the scenario of its settings: the first one leaves, and the others say how they end. */
import { barrier, broadcast, join } from '../../src/collectives/index.ts';
import { setTimeout as pause } from 'node:timers/promises';
import type { Group } from '../../src/cluster/index.ts';
import { enterCluster, leaveCluster, say, settings } from './rank-program-start.ts';

const cluster = await enterCluster({
  onStall: ({ missing }) => say('stall', { missing }),
  stallAfterMs: 500,
});
const { world } = cluster;

/** Nothing of this rank is answered meanwhile. */
function sleep(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** The engine goes on for so long, and then not until it is used again. */
function pollFor(group: Group, ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end; sleep(1)) group.progress.poll();
}

async function outcome(work: PromiseLike<unknown>): Promise<void> {
  try {
    await work;
    say('outcome', { rank: world.rank, code: 'none' });
  } catch (error) {
    const { code, message } = error as { code: string; message: string };
    say('outcome', { rank: world.rank, code, message });
  }
}

const scenarios: Record<string, () => Promise<void>> = {
  /** The first rank asks around, is done and leaves; the second hears all of that at once, and waits for the third. */
  async finish() {
    if (world.rank === 2) sleep(400);
    const handle = barrier(world);
    if (world.rank === 1) {
      pollFor(world, 100);
      sleep(600);
    }
    if (world.rank === 2) sleep(1000);
    await outcome(handle);
  },

  /** The first rank leaves without having joined; that the others wait for it shows in no message. */
  async join() {
    if (world.rank > 0) return outcome(join(world));
    await pause(200);
  },

  /** The first rank has left, and the second is in something with the third when they form their group anew. */
  async regroup() {
    if (world.rank === 0) return;
    await pause(300);
    if (world.rank === 1) void outcome(broadcast(world, cluster.allocate('float32', 4), { root: 2 }));
    await pause(world.rank === 1 ? 100 : 600);
    await barrier(await cluster.regroup());
    say('regrouped', { rank: world.rank });
  },
};

await barrier(world);
await scenarios[settings['scenario'] as string]!();
await leaveCluster(cluster);
