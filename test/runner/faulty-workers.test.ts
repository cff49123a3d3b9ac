/** Workers that go wrong: the first process ends with words that say who and why, and nothing stays behind. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const PROGRAM = fileURLToPath(new URL('./faulty-workers-program.ts', import.meta.url));

function run(fault: string): { status: number | null; stdout: string } {
  const { status, stdout } = spawnSync(
    process.execPath,
    ['--import', import.meta.resolve('tsx'), PROGRAM, fault],
    { encoding: 'utf8', timeout: 60_000 },
  );
  return { status, stdout };
}

it.each([
  ['other model', /the model of worker 1 is not that of worker 0/],
  ['ends early', /worker 1 \(process \d+\) ended with code 1; it last wrote: .*no licence/],
  ['drifts', /after step 5 parameter .* of worker 1 is not that of worker 0/],
  ['killed', /worker 1 \(process \d+\) was ended by SIGKILL/],
  ['unreachable', /worker 1 \(process \d+\) ended with code 1/],
])(
  'a worker that %s',
  (fault, words) => {
    const { status, stdout } = run(fault);
    expect(stdout).toMatch(words);
    expect(status).toBe(1);
  },
  70_000,
);

it('trains without a fault', () => {
  expect(run('none')).toEqual({ status: 0, stdout: 'trained\n' });
}, 70_000);
