/** Workers that go wrong: the first process ends with words that say who and why, and nothing stays behind. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { programOf } from '../support/test-program.ts';

const PROGRAM = fileURLToPath(new URL('./faulty-workers-program.ts', import.meta.url));

function run(fault: string): { status: number | null; stdout: string; unhandled: boolean } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [...programOf(PROGRAM), fault], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  return { status, stdout, unhandled: /unhandled/i.test(stderr) };
}

it.each([
  ['other model', /the model of worker 1 is not that of worker 0/],
  ['other data', /the samples of worker 1 and worker 0 are not the same; load the data alike/],
  ['wider data', /worker 1: The data does not fit the model: column "x" has samples of shape \[5\]/],
  ['ends early', /worker 1 \(process \d+\) ended with code 1; it last wrote: .*no licence/],
  ['drifts', /after step 5 parameter .* of worker 1 is not that of worker 0/],
  ['killed', /worker 1 \(process \d+\) was ended by SIGKILL/],
  ['killed with servers', /worker 1 \(process \d+\) was ended by SIGKILL/],
  ['killed at the end', /rank 1/],
  ['unreachable', /worker 1 \(process \d+\) ended with code 1/],
  ['not started', /^worker 1 could not be started: spawn no-such-program ENOENT on b\. Check the command/],
])(
  'a worker that %s',
  (fault, words) => {
    const { stdout, ...others } = run(fault);
    expect(stdout).toMatch(words);
    expect(others).toEqual({ status: 1, unhandled: false });
  },
  70_000,
);

it('says that every worker does the same without shard', () => {
  const { status, stdout } = run('no shard');
  expect(status).toBe(0);
  expect(stdout).toMatch(
    /^every worker trains on the same 5 samples of each step.*run\(shard\(data\)\).*\ntrained\n$/,
  );
}, 70_000);

it('trains without a fault', () => {
  expect(run('none with servers')).toEqual({ status: 0, stdout: 'trained\n', unhandled: false });
}, 70_000);
