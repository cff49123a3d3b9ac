/** What every collective checks of its call, and the words in which a call is told to the other ranks. */
import { describe, expect, it } from 'vitest';
import { Cluster } from '../../src/cluster/index.ts';
import type { Group } from '../../src/cluster/index.ts';
import { allReduce, allToAll, barrier, reduce, reduceScatter } from '../../src/collectives/index.ts';
import type { CollectiveOptions } from '../../src/collectives/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { Region } from '../../src/memory/index.ts';
import type { Handle } from '../../src/progress/index.ts';
import { InProcessNetwork } from '../support/in-process-transport.ts';
import { runGroup } from '../support/run-group.ts';

type Collective = (group: Group, region: Region, options?: CollectiveOptions) => Handle;

const collectives: Readonly<Record<string, Collective>> = {
  allreduce: allReduce,
  reduce,
  'reduce-scatter': (group, region, options) => reduceScatter(group, region, region, options),
  alltoall: (group, region, options) => allToAll(group, region, region, options),
  barrier: (group, _, options) => barrier(group, options),
};

describe('a call with counts that do not fit together', () => {
  it('is told to every rank with the counts of all', async () => {
    await runGroup({ size: 2, seed: 1 }, async ({ group, rank, region }) => {
      const [input, output] = [region('float32', [1, 2, 3, 4]), region('float32', [0, 0, 0, 0])];
      const counts = rank === 0 ? {} : { sendCounts: [3, 1], receiveCounts: [3, 1] };
      await expect(allToAll(group, input, output, counts)).rejects.toMatchObject({
        code: 'COLLECTIVE_MISMATCH',
        facts: {
          calls: {
            0: 'alltoall (float32, sends 2 2, receives 2 2)',
            1: 'alltoall (float32, sends 3 1, receives 3 1)',
          },
        },
      });
    });
  });

  it('goes through where counts differ by rank but fit together', async () => {
    await runGroup({ size: 2, seed: 1 }, async ({ group, rank, region }) => {
      const input = region('float32', rank === 0 ? [1, 2, 3] : [4, 5]);
      const output = region('float32', rank === 0 ? [0, 0] : [0, 0, 0]);
      const sendCounts = rank === 0 ? [1, 2] : [1, 1];
      const receiveCounts = rank === 0 ? [1, 1] : [2, 1];
      await allToAll(group, input, output, { sendCounts, receiveCounts });
      expect([...output.view]).toEqual(rank === 0 ? [1, 4] : [2, 3, 5]);
    });
  });
});

describe.each(Object.entries(collectives))('%s', (name, collective) => {
  it('refuses a cluster in place of a group, and says which group to give', async () => {
    const transport = new InProcessNetwork().attach(0, SharedSpace.create({ maxBytes: 2 ** 26 }));
    const self = { member: 0, title: 'process 1 on test', host: 'test', address: {} };
    const cluster = await Cluster.ofFixed(transport, [self]);
    try {
      const region = cluster.allocate('float32', 1);
      const refused = expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: expect.stringMatching(new RegExp(`^${name} was given a cluster.*cluster\\.world`)) as string,
      }) as Error;
      expect(() => collective(cluster as unknown as Group, region)).toThrow(refused);
      await collective(cluster.world, region);
    } finally {
      await cluster.close();
    }
  });

  it('refuses what is no group at all', async () => {
    await runGroup({ size: 1 }, ({ region }) => {
      const vector = region('float32', [1]);
      expect(() => collective(undefined as unknown as Group, vector)).toThrow(/was given no group/);
      return Promise.resolve();
    });
  });

  it.each([-5, 0, NaN, Infinity])('refuses a deadline of %d ms', async (deadlineMs) => {
    await runGroup({ size: 1 }, ({ group, region }) => {
      const refused = expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: expect.stringContaining(`deadlineMs is ${deadlineMs}`) as string,
      }) as Error;
      expect(() => collective(group, region('float32', [1]), { deadlineMs })).toThrow(refused);
      return Promise.resolve();
    });
  });
});
