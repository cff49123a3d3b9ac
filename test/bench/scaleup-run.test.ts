/** `tributary bench scaleup` as typed: its options, what it prints and writes, on a few texts and without peers. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { ScaleupBench } from '../../src/bench/index.ts';
import { run } from '../cli/fake-io.ts';

let cwd = '';
beforeAll(() => {
  cwd = mkdtempSync(join(tmpdir(), 'scaleup-'));
  const line = (_: unknown, i: number): string => `word${i % 7} word${i % 5} word${i % 3},label${i % 3}`;
  writeFileSync(join(cwd, 'texts.csv'), `${Array.from({ length: 60 }, line).join('\n')}\n`);
});
afterAll(() => rmSync(cwd, { recursive: true, force: true }));

const bench = (...args: string[]): ReturnType<typeof run> => run(['bench', 'scaleup', ...args], { cwd });

it('measures learners against one and against independent copies', async () => {
  const { code, stdout, stderr } = await bench(
    ...['--data', 'texts.csv', '--learners', '2', '--batch', '4', '--modes', 'direct-lock-free'],
    ...['--rounds', '1', '--turn-ms', '200', '--peers', 'none', '--picture', 'p.svg', '--output', 'r.json'],
  );
  expect(code, stderr).toBe(0);
  expect(stderr).toContain('batch 4: round 1 of 1, 3 sides');
  expect(stdout).toMatch(/^batch +learners +mode +samples\/s .* efficiency /m);
  expect(stdout).toMatch(/^4 +2 +direct lock-free +[\d,]+ /m);
  expect(readFileSync(join(cwd, 'p.svg'), 'utf8')).toContain('Speed-up of 2 learners');
  const { cases, configuration, data } = JSON.parse(
    readFileSync(join(cwd, 'r.json'), 'utf8'),
  ) as ScaleupBench;
  expect(data).toBe('texts.csv');
  expect(configuration['bytes']).toContain('bytes of a step =');
  const [one, ...others] = cases;
  expect(others).toEqual([]);
  expect(one).toMatchObject({ batch: 4, learners: 2, mode: 'direct lock-free', ddpSamplesPerSec: null });
  expect(one).toMatchObject({ mpiSamplesPerSec: null, torchSamplesPerSec: null });
  const { samplesPerSec, singleSamplesPerSec, ceilingSamplesPerSec, speedup, efficiency } = one!;
  expect(Math.min(samplesPerSec, singleSamplesPerSec, ceilingSamplesPerSec)).toBeGreaterThan(0);
  expect(speedup).toBeCloseTo(samplesPerSec / singleSamplesPerSec, 9);
  expect(efficiency).toBeCloseTo(samplesPerSec / ceilingSamplesPerSec, 9);
  expect(one!.bytesPerSec).toBeCloseTo((one!.bytesPerStep * samplesPerSec) / 4, 3);
  expect(one!.meanStaleness).toBeGreaterThanOrEqual(0);
}, 60_000);

it.each([
  [[], 'give them by --data FILE.csv'],
  [
    ['--data', 'texts.csv', '--learners', 'two'],
    '--learners has "two"; give whole numbers as in --learners 1,2',
  ],
  [['--data', 'texts.csv', '--batch', '0'], 'batches is 0'],
  [['--data', 'texts.csv', '--modes', 'by-post'], '--modes has "by-post"; give some of direct-lock-free'],
  [
    ['--data', 'texts.csv', '--peers', 'gloo'],
    '--peers has "gloo"; tributary bench scaleup takes ddp, mpi or none',
  ],
  [['--data', 'texts.csv', '--workers', '2'], 'an option of tributary bench exchange, not of scaleup'],
])('refuses %j with what to do', async (args, message) => {
  const { code, stderr } = await bench(...args);
  expect(code).toBe(2);
  expect(stderr).toMatch(/^error \[INVALID_COMMAND\]: /);
  expect(stderr).toContain(message);
});

it('has an example in the help', async () => {
  const { stdout } = await run(['bench', '--help']);
  expect(stdout).toContain('tributary bench scaleup --data');
  expect(stdout).toContain('--modes');
});
