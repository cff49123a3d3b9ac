/** Groups of an MPI job, which has no scheduler to number them. */
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { component } from '../support/components.ts';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./mpi-groups-program.ts', import.meta.url));
const openMpi = component('openmpi-bin');

describe.skipIf(!openMpi.present)(`groups of an MPI job (${openMpi.needs})`, () => {
  it.each([true, false])('may overlap, with shared memory %s', async (sharedMemory) => {
    const options = { sharedMemory };
    const ranks = await RankProcesses.start({ program: PROGRAM, transport: 'mpi', size: 3, options });
    try {
      await ranks.untilEnded();
      const said = [...ranks.said('summed')].sort((a, b) => (a['rank'] as number) - (b['rank'] as number));
      expect(said.map(({ sums }) => sums)).toEqual([
        [11, 101, 11],
        [11, 110, 11],
        [101, 110],
      ]);
      for (const { refusals } of said) expect(refusals).toEqual(['INVALID_ARGUMENT', 'INVALID_ARGUMENT']);
    } finally {
      await ranks.close();
    }
  });
});
