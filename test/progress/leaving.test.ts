/** A rank that is done may leave: others finish what it has finished, and learn of it in what they begin afterwards. */
import { mkdtempSync, rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Group } from '../../src/cluster/index.ts';
import { barrier } from '../../src/collectives/index.ts';
import { Kernels } from '../../src/kernels/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { Progress } from '../../src/progress/index.ts';
import { addressOf, closeSides, connectedSides } from '../transport/shared-memory-pair.ts';
import type { Side } from '../transport/shared-memory-pair.ts';

describe.skipIf(!hasSharedMemory())('a rank that leaves after a barrier', () => {
  let directory: string;
  let sides: Side[];
  let groups: Group[];

  beforeEach(async () => {
    directory = mkdtempSync('/dev/shm/test-tributary-');
    sides = await connectedSides(3, directory);
    const addresses = sides.map(addressOf);
    groups = sides.map(({ transport, space }) => {
      const progress = new Progress(transport, { deadlineMs: 5000 });
      return new Group(1, addresses, progress, Kernels.create(space));
    });
  });

  afterEach(async () => {
    for (const { progress } of groups) progress.close();
    await closeSides(sides);
    rmSync(directory, { recursive: true, force: true });
  });

  /** Rank 0 finishes and leaves; rank 1 knows that, and waits for rank 2, which has yet to look. */
  async function leaveBehind(): Promise<ReturnType<typeof barrier>[]> {
    const handles = groups.map((group) => barrier(group));
    for (let i = 0; i < 10; i++) for (const { progress } of groups.slice(0, 2)) progress.poll();
    expect(handles.map(({ settled }) => settled)).toEqual([true, false, false]);
    groups[0]!.progress.close();
    await sides[0]!.transport.close();
    groups[1]!.progress.lookForLosses();
    expect(sides[1]!.transport.hasLeft(0)).toBe(true);
    return handles;
  }

  it('keeps nobody from finishing it', async () => {
    const handles = await leaveBehind();
    await Promise.all(handles);
  });

  it('is named to those that begin something with it', async () => {
    await Promise.all(await leaveBehind());
    const next = [1, 2].map(async (rank) => barrier(groups[rank]!));
    const outcomes = await Promise.allSettled(next);
    const message = expect.stringContaining('side 0') as string;
    for (const outcome of outcomes) expect(outcome).toMatchObject({ reason: { code: 'PEER_LOST', message } });
  });
});
