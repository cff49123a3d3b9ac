/** Communication threads of processes that mpirun started. */
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { component } from '../support/components.ts';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./mpi-program.ts', import.meta.url));
const mpi = component('openmpi-bin');

describe.skipIf(!mpi.present)(`communication threads under mpirun (${mpi.needs})`, () => {
  it.each([
    { sharedMemory: true, transport: 'shared-memory+mpi' },
    { sharedMemory: false, transport: 'mpi' },
  ])('run collectives by $transport while their callers compute', async ({ sharedMemory, transport }) => {
    const options = { sharedMemory };
    const ranks = await RankProcesses.start({ program: PROGRAM, transport: 'mpi', size: 2, options });
    try {
      await ranks.untilEnded();
      const results = ranks.said('results');
      expect(results.map(({ rank }) => rank).sort()).toEqual([0, 1]);
      for (const result of results) {
        const wanted = { transport, size: 2, meanwhile: true, sum: 3, product: 2, group: 'number' };
        expect(result).toMatchObject(wanted);
        expect(result['refusal']).toContain('regroup needs a scheduler');
      }
      expect(ranks.said('closed')).toHaveLength(2);
    } finally {
      await ranks.close();
    }
  });
});
