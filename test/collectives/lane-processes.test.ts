/** The quick lane between real processes: short vectors in slots, long ones summed where they lie. */
import { fileURLToPath } from 'node:url';
import { afterEach, expect, it } from 'vitest';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./rank-program-lane.ts', import.meta.url));
let ranks: RankProcesses | undefined;

afterEach(() => ranks?.close());

it.each([2, 3, 5])('the lane gives exact sums between %i ranks', async (size) => {
  ranks = await RankProcesses.start({ program: PROGRAM, transport: 'shm', size });
  await ranks.untilEnded();
  const results = ranks.said('ran');
  expect(results).toHaveLength(size);
  expect(results.flatMap(({ differences }) => differences)).toEqual([]);
  // Ranks that come late send an operation the ordinary way; on a busy machine that may be most, but not all.
  for (const { byLane } of results) expect(byLane).toBeGreaterThan(0);
});
