/** A process that joins a running cluster, with all defaults. */
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./newcomer-program.ts', import.meta.url));

it('a newcomer takes part in the next collective of the others, and old groups end', async () => {
  const ranks = await RankProcesses.start({ program: PROGRAM, transport: 'shm', size: 2 });
  try {
    await ranks.until('the first two have joined', () => ranks.said('joined').length === 2);
    ranks.add();
    await ranks.untilEnded();
    const joined = ranks.said('joined').map(({ isNewcomer, measured }) => [isNewcomer, measured]);
    expect(joined).toEqual([
      [false, true],
      [false, true],
      [true, false],
    ]);
    expect(ranks.said('summed').map(({ size, sum }) => [size, sum])).toEqual([
      [3, 3],
      [3, 3],
      [3, 3],
    ]);
    // Three processes now: those who wait let others run where there are fewer cores.
    for (const { yields } of ranks.said('summed')) expect(yields).toBe(cpus().length < 3);
    const old = ranks.said('summed').flatMap((line) => (line['old'] === undefined ? [] : [line['old']]));
    expect(old).toEqual(['INVALID_ARGUMENT', 'INVALID_ARGUMENT']);
  } finally {
    await ranks.close();
  }
});
