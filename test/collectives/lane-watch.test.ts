/** When a wait in the lane is over, and what is said then. */
import { expect, it } from 'vitest';
import { LaneWatch } from '../../src/collectives/lane/lane-watch.ts';
import type { LaneLimits } from '../../src/collectives/lane/lane-watch.ts';
import { runGroup } from '../support/run-group.ts';

async function look(limits: LaneLimits): Promise<{ code?: string; message?: string } | undefined> {
  const [first] = await runGroup({ size: 2 }, ({ group, rank }) =>
    Promise.resolve(rank === 0 ? new LaneWatch(group, 1, limits).look() : undefined),
  );
  return first;
}

it('a wait in the lane goes on until the deadline of its call', async () => {
  expect(await look({ deadlineMs: 60_000 })).toBeUndefined();
  expect(await look({})).toBeUndefined();
  const error = await look({ deadlineMs: 0 });
  expect(error).toMatchObject({ code: 'TIMEOUT' });
  expect(error!.message).toMatch(/missing: rank 1 .*may still write to the vector/);
});

it('a wait in the lane ends when its caller cancels it', async () => {
  const error = await look({ signal: AbortSignal.abort() });
  expect(error).toMatchObject({ code: 'CANCELLED' });
  expect(error!.message).toMatch(/Cancelled by rank 0/);
});
