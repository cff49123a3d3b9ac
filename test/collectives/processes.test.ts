/** The oracle cases of collectives between real processes: every transport, size, algorithm, and both kinds of memory. */
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { collectiveCases, collectiveWorlds } from '../support/collective-cases.ts';
import { component } from '../support/components.ts';
import { RankProcesses } from '../support/rank-processes.ts';
import type { RankTransport } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./rank-program.ts', import.meta.url));
const SIZES = collectiveWorlds();
/** Every third, where the memory is the same as without MPI. */
const SOME_SIZES = SIZES.filter((_, i) => i % 3 === Math.min(1, SIZES.length - 1));
const openMpi = component('openmpi-bin');
let ranks: RankProcesses | undefined;

afterEach(() => ranks?.close());

function runs(transport: RankTransport, sizes = SIZES, options = {}): void {
  it.each(sizes)('give the oracle values between %i ranks', async (size) => {
    ranks = await RankProcesses.start({ program: PROGRAM, transport, size, options });
    await ranks.untilEnded();
    const results = ranks.said('ran');
    expect(results.map(({ rank }) => rank).sort()).toEqual(Array.from({ length: size }, (_, rank) => rank));
    expect(results.flatMap(({ differences }) => differences)).toEqual([]);
    for (const { runs } of results) expect(runs).toBeGreaterThanOrEqual(collectiveCases(size).length);
  });
}

describe('collectives of processes', () => {
  describe('over shared memory', () => runs('shm'));
  describe('over TCP', () => runs('tcp'));
  describe.skipIf(!openMpi.present)(`over MPI (${openMpi.needs})`, () =>
    runs('mpi', SIZES, { sharedMemory: false }),
  );
  describe.skipIf(!openMpi.present)(`under mpirun, by shared memory (${openMpi.needs})`, () =>
    runs('mpi', SOME_SIZES, { sharedMemory: true }),
  );
});
