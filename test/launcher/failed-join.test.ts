/** Joining that fails after the cluster was there. */
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./failed-join-program.ts', import.meta.url));

it('a join that fails while costs are measured leaves nothing behind', async () => {
  const ranks = await RankProcesses.start({ program: PROGRAM, transport: 'shm', size: 2, processes: 1 });
  try {
    const other = ranks.add({ dies: true });
    await ranks.until('the other has joined', () => other.said('joined').length > 0);
    other.kill();
    await ranks.untilEnded();
    expect(ranks.said('rejected')).toMatchObject([{ error: 'PEER_LOST', segments: [] }]);
  } finally {
    await ranks.close();
  }
});
