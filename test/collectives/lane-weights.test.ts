/** Weights in the quick lane between real processes: who has no weight is left out of the average. */
import { fileURLToPath } from 'node:url';
import { afterEach, expect, it } from 'vitest';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./rank-program-weights.ts', import.meta.url));
let ranks: RankProcesses | undefined;

afterEach(() => ranks?.close());

it('a rank of no weight is left out of averages by the lane', async () => {
  const started = await RankProcesses.start({ program: PROGRAM, transport: 'shm', size: 2 });
  ranks = started;
  const results = await started.until('both ranks have run', () => {
    const said = started.said('ran');
    return said.length === 2 && said;
  });
  await started.untilEnded();
  expect(results.flatMap(({ differences }) => differences)).toEqual([]);
  for (const { byLane } of results) expect(byLane).toBeGreaterThan(0);
});
