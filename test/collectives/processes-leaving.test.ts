/** Ranks as processes of which one leaves in order, over every transport: who needs nothing of it goes on, and who does is told. */
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { component } from '../support/components.ts';
import { RankProcesses } from '../support/rank-processes.ts';
import type { RankTransport } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./rank-program-leaving.ts', import.meta.url));
const mpi = component('openmpi-bin');

interface Outcome {
  readonly rank: number;
  readonly code: string;
  readonly message?: string;
}

interface Run {
  readonly outcomes: readonly Outcome[];
  readonly said: (what: string) => readonly Readonly<Record<string, unknown>>[];
}

async function play(scenario: string, transport: RankTransport): Promise<Run> {
  const options = { scenario, sharedMemory: false };
  const ranks = await RankProcesses.start({ program: PROGRAM, transport, size: 3, options });
  try {
    await ranks.untilEnded();
    const said = (what: string) => ranks.said(what);
    return { outcomes: said('outcome') as unknown as Outcome[], said };
  } finally {
    await ranks.close();
  }
}

describe.each(['shm', 'tcp', 'auto', 'mpi'] as const)('a rank that leaves over %s', (transport) => {
  it.skipIf(transport === 'mpi' && !mpi.present)(
    'keeps nobody from finishing what it has finished',
    async () => {
      const { outcomes, said } = await play('finish', transport);
      expect(outcomes.map(({ rank, code }) => [rank, code]).sort()).toEqual(
        [0, 1, 2].map((rank) => [rank, 'none']),
      );
      expect(said('stall').flatMap(({ missing }) => missing)).not.toContain(0);
    },
  );
});

describe.each(['tcp', 'auto'] as const)('a rank that leaves over %s', (transport) => {
  it('is named to those that wait for it to join', async () => {
    const { outcomes } = await play('join', transport);
    expect(outcomes.map(({ code }) => code)).toEqual(['PEER_LOST', 'PEER_LOST']);
  });

  it('is left out of the group that is formed anew, whatever is under way', async () => {
    const { outcomes, said } = await play('regroup', transport);
    expect(said('regrouped')).toHaveLength(2);
    expect(outcomes).toMatchObject([{ rank: 1, code: 'PEER_LOST' }]);
  });
});
