/** Groups that change in mid-run: the program is bound anew, and what was started before still counts. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { programOf } from '../support/test-program.ts';

const PROGRAM = fileURLToPath(new URL('./regroup-program.ts', import.meta.url));

it.each(['servers', 'collectives'])(
  'other groups between steps change no loss, with %s',
  (strategy) => {
    const { stdout, status, stderr } = spawnSync(process.execPath, [...programOf(PROGRAM), strategy], {
      ...{ encoding: 'utf8', timeout: 120_000 },
    });
    expect(status, stderr).toBe(0);
    const { plain, regrouped } = JSON.parse(stdout) as Record<'plain' | 'regrouped', number[]>;
    expect(plain).toHaveLength(13);
    regrouped.forEach((loss, i) => expect(loss, `loss ${i}`).toBeCloseTo(plain[i]!, 5));
  },
  150_000,
);
