/** Workers as processes: clients over a store within their first worker, and stores without servers. */
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { component } from '../support/components.ts';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./collective-rank-program.ts', import.meta.url));
const SIZE = 3;
const mpi = component('openmpi-bin');

describe.each(['shm', 'tcp', 'mpi'] as const)('workers over %s', (transport) => {
  it.skipIf(transport === 'mpi' && !mpi.present)(
    'get the same sums from clients and from collectives, whatever the order of their keys',
    async () => {
      const options = { sharedMemory: false };
      const ranks = await RankProcesses.start({ program: PROGRAM, transport, size: SIZE, options });
      try {
        await ranks.untilEnded();
        const trained = ranks.said('trained');
        const of = (store: string) => trained.filter((line) => line['store'] === store);
        for (const store of ['client', 'collective']) {
          expect(
            of(store)
              .map(({ rank }) => rank)
              .sort(),
          ).toEqual([0, 1, 2]);
        }
        for (const { answer } of trained) {
          expect(answer).toEqual({ first: 60, last: 60, short: [30, 60, 30], row: [30, 30, 30] });
        }
        expect(ranks.segments()).toEqual([]);
      } finally {
        await ranks.close();
      }
    },
  );
});
