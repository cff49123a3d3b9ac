/** What the engine keeps of groups: nothing of those that have ended, everything of those that are about to begin. */
import { describe, expect, it } from 'vitest';
import type { Group } from '../../src/cluster/index.ts';
import { allReduce } from '../../src/collectives/index.ts';
import { EndedGroups } from '../../src/progress/ended-groups.ts';
import { runGroup } from '../support/run-group.ts';
import type { RankContext } from '../support/run-group.ts';

/** One script plays both ranks, so that it decides who has heard what when. */
async function play(script: (ranks: [RankContext, RankContext]) => void | Promise<void>): Promise<void> {
  let first: RankContext | undefined;
  await runGroup({ size: 2, progress: { deadlineMs: 3000 } }, async (context) => {
    if (first) await script([first, context]);
    else first = context;
  });
}

function talk(ranks: readonly RankContext[]): void {
  while (ranks.map(({ group }) => group.progress.poll()).some(Boolean));
}

function isQuiet(group: Group): boolean {
  return group.progress.isQuiet(group);
}

function dispute(group: number): string {
  return JSON.stringify({ kind: 'dispute', group, tag: 0, sequence: 3, called: 'something else' });
}

describe('news of a group', () => {
  it('that has ended here is not kept', async () => {
    await play((ranks) => {
      const [closer, other] = ranks;
      closer.subgroup(2, [0, 1]).close();
      const group = other.subgroup(2, [0, 1]);
      allReduce(group, other.region('float32', [1])).cancel();
      other.network.transports.get(1)!.notify(0, dispute(2));
      talk(ranks);
      // Ids are never given twice; here one is, to see whether anything was kept under it.
      expect(isQuiet(closer.subgroup(2, [0, 1]))).toBe(true);
    });
  });

  it('goes when the group ends', async () => {
    await play((ranks) => {
      const [hearer, other] = ranks;
      const group = hearer.subgroup(2, [0, 1]);
      allReduce(other.subgroup(2, [0, 1]), other.region('float32', [1])).cancel();
      other.network.transports.get(1)!.notify(0, dispute(2));
      talk(ranks);
      expect(isQuiet(group)).toBe(false);
      expect(isQuiet(hearer.group), 'another group').toBe(true);
      group.close();
      expect(isQuiet(hearer.subgroup(2, [0, 1]))).toBe(true);
    });
  });

  it('that is not formed here yet is kept, also when later groups have ended', async () => {
    await play(async (ranks) => {
      const [late, other] = ranks;
      late.subgroup(3, [0, 1]).close();
      late.subgroup(22, [0, 1]).close();
      allReduce(other.subgroup(2, [0, 1]), other.region('float32', [1])).cancel();
      talk(ranks);
      late.subgroup(1000, [0]).close();
      const handle = allReduce(late.subgroup(2, [0, 1]), late.region('float32', [1]));
      await expect(handle).rejects.toThrow('rank 1 (process 1001 on test) left allreduce');
    });
  });
});

describe('EndedGroups', () => {
  it('has what was added, in whatever order, and nothing else', () => {
    const ended = new EndedGroups();
    for (const id of [7, 3, 5, 4, 4, 12, 6, 0]) ended.add(id);
    const ids = Array.from({ length: 14 }, (_, id) => id);
    expect(ids.filter((id) => ended.has(id))).toEqual([0, 3, 4, 5, 6, 7, 12]);
    expect(ended.runs).toBe(3);
  });
});
