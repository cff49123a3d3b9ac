/** The scripts of the README, as a user runs them: on one device, and on all workers with the same result. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { segmentFiles } from '../support/segment-files.ts';

const pathOf = (name: string): string => fileURLToPath(new URL(`../../examples/${name}.ts`, import.meta.url));

interface Outcome {
  readonly output: string;
  readonly errors: string;
  readonly code: number | null;
  readonly pid: number;
}

async function run(name: string): Promise<Outcome> {
  const child = spawn(process.execPath, ['--import', 'tsx', pathOf(name)], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const texts = [child.stdout, child.stderr].map(async (stream) => {
    let text = '';
    for await (const part of stream.setEncoding('utf8')) text += part as string;
    return text;
  });
  const [code] = (await once(child, 'close')) as [number | null];
  const [output, errors] = await Promise.all(texts);
  return { output: output!, errors: errors!, code, pid: child.pid! };
}

const numbers = (text: string): number[] => (text.match(/\d+\.\d+/g) ?? []).map(Number);

it('differ in at most four lines', () => {
  const [one, all] = ['one-device', 'all-workers'].map((name) =>
    readFileSync(pathOf(name), 'utf8').split('\n'),
  );
  const different = one!.filter((line, i) => line !== all![i]);
  expect(all).toHaveLength(one!.length);
  // The first line says how to run it.
  expect(different.slice(1).length).toBeLessThanOrEqual(4);
});

it('trains on data of its own', async () => {
  const { output, errors, code } = await run('own-data');
  expect([code, errors]).toEqual([0, '']);
  expect(numbers(output)[0]).toBeGreaterThan(0.9);
}, 60_000);

it('give the same losses and the same accuracy on one device and on all workers', async () => {
  const [one, all] = [await run('one-device'), await run('all-workers')];
  expect([one.code, all.code, one.errors]).toEqual([0, 0, '']);
  // How the run goes, and on a busy machine that one worker would be faster.
  expect(all.errors).toMatch(/^90 steps: .*predicted .*\n(slower than one worker.*\n)?$/);
  const [expected, actual] = [numbers(one.output), numbers(all.output)];
  expect(expected).toHaveLength(3);
  expect(all.output.split('\n')).toHaveLength(one.output.split('\n').length);
  expected.forEach((value, i) => expect(Math.abs(actual[i]! - value)).toBeLessThanOrEqual(0.0021));
  expect(segmentFiles().filter((name) => name.includes(`-${all.pid}-`))).toEqual([]);
}, 120_000);
