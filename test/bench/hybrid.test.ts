/** `tributary bench hybrid`: a small run with real workers, what it refuses, how cases are made of times, and the picture. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { benchHybrid, casesOf, hybridChart, type HybridBench } from '../../src/bench/hybrid/index.ts';
import type { HybridTimes } from '../../src/bench/hybrid/hybrid-program.ts';
import { run } from '../cli/fake-io.ts';

const machine = { processor: 'Chip <1>', cores: 2, memoryGiB: 4, system: 'linux x64', node: 'v20' };
const group = { model: 'words & rows', workers: 4, hosts: 2, link: '1000 Mbit/s' };

function times(
  strategy: string,
  stepsMs: readonly number[],
  losses: readonly number[] = [2, 1],
): HybridTimes {
  const plan = { predictedMs: 1, routes: { 'server rows': 2 }, rowBytes: 4096, samePlanAs: [] };
  return { strategy, losses, stepsMs, ...plan };
}

const madeUp = [
  times('servers', [20, 10, 30]),
  times('collectives', [40, 40, 40]),
  times('hybrid', [10, 10, 10]),
  times('base', [40, 40]),
  times('+hybrid', [20, 20]),
  times('+local aggregation', [25, 25]),
];

let cwd = '';
beforeAll(() => {
  cwd = mkdtempSync(join(tmpdir(), 'bench-hybrid-'));
});
afterAll(() => rmSync(cwd, { recursive: true, force: true }));

it('measures every strategy on shared memory, and prints and draws it', { timeout: 300_000 }, async () => {
  const short = ['--models', 'text-cnn', '--links', 'shm', '--rounds', '1', '--steps', '3'];
  const files = ['--output', 'result.json', '--picture', 'picture.svg'];
  const { code, stdout, stderr } = await run(['bench', 'hybrid', ...short, ...files], { cwd });
  expect(code, stderr).toBe(0);
  expect(stderr).toContain('2 workers, shared memory: 1 act(s) of 1 round(s) of 3 steps');
  expect(stdout).toMatch(/model +workers +hosts +link +strategy +samples\/s +of best pure/);
  expect(stdout.match(/^text-CNN, 20,000 words {2}/gm)).toHaveLength(3);
  expect(readFileSync(join(cwd, 'picture.svg'), 'utf8')).toContain('2 workers, shared memory');
  const result = JSON.parse(readFileSync(join(cwd, 'result.json'), 'utf8')) as HybridBench;
  expect(result).toMatchObject({ bench: 'hybrid', skipped: [] });
  expect(result.cases.map(({ strategy }) => strategy)).toEqual(['servers', 'collectives', 'hybrid']);
  for (const one of result.cases) {
    expect(one).toMatchObject({ workers: 2, hosts: 1, link: 'shared memory' });
    expect(Object.values(one.routes).reduce((sum, count) => sum + count, 0)).toBe(9);
    for (const figure of [one.samplesPerSec, one.stepMs, one.predictedMs, one.rowBytes])
      expect(figure).toBeGreaterThan(0);
  }
  const [servers, collectives, hybrid] = result.cases;
  expect(Object.keys(servers!.routes).every((route) => route.startsWith('server'))).toBe(true);
  expect(Object.keys(collectives!.routes).every((route) => route.startsWith('collective'))).toBe(true);
  expect(Math.max(servers!.relativeToBestPure, collectives!.relativeToBestPure)).toBe(1);
  expect(hybrid!.collectivesRatio).toBeCloseTo(hybrid!.samplesPerSec / collectives!.samplesPerSec, 9);
});

describe('cases', () => {
  const cases = casesOf(group, 32, [madeUp.slice(0, 3), madeUp.slice(3)]);
  const byName = new Map(cases.map((one) => [one.strategy, one]));

  it('are rates by the median step, relative to the better pure strategy', () => {
    expect(byName.get('servers')).toMatchObject({ ...group, samplesPerSec: 1600, stepMs: 20 });
    expect(byName.get('servers')!.quartilesMs).toEqual([15, 25]);
    expect(byName.get('collectives')!.relativeToBestPure).toBe(0.5);
    expect(byName.get('hybrid')).toMatchObject({ relativeToBestPure: 2, collectivesRatio: 4 });
  });

  it('give switches a gain over the one before, and no other strategy', () => {
    expect(cases.map(({ gain }) => gain)).toEqual([undefined, undefined, undefined, undefined, 2, 0.8]);
  });

  it('are refused when strategies do not train alike', () => {
    const strange = [...madeUp.slice(0, 2), times('hybrid', [1], [2, 1.01])];
    expect(() => casesOf(group, 32, [strange])).toThrow(/step 2 is 1.01 by "hybrid" and 1 by "servers"/);
    expect(() => casesOf(group, 32, [[madeUp[0]!, times('collectives', [1], [2, NaN])]])).toThrow(/NaN/);
    expect(casesOf(group, 32, [[madeUp[0]!, times('collectives', [1], [2, 1.0001])]])).toHaveLength(2);
  });

  it('are drawn in two blocks, switches with their gains', () => {
    const result: HybridBench = {
      ...{ bench: 'hybrid', date: '2026-01-02T03:04:05.678Z', machine, configuration: {} },
      ...{ skipped: [], notes: [], cases },
    };
    const picture = hybridChart(result);
    expect(picture).toMatch(/^<svg.*<\/svg>\s*$/s);
    expect(picture.match(/words &amp; rows, 4 workers on 2 hosts, 1000 Mbit\/s/g)).toHaveLength(2);
    expect(picture).toContain('3200 (2.00× best pure, 4.00× collectives)');
    expect(picture).toContain('1600 (+100 %)');
    expect(picture).toContain('1280 (-20 %)');
    expect(picture).toContain('Chip &lt;1&gt;');
    const dense = hybridChart({ ...result, cases: cases.slice(0, 3) });
    expect(dense).not.toContain('Switches');
  });
});

it.each([
  [{ workers: 0 }, /workers is 0/],
  [{ workers: 1 }, /workers is 1; give 2 or more/],
  [{ rounds: 1.5 }, /rounds is 1.5/],
  [{ hosts: 1 }, /give hosts from 2 to 16/],
  [{ hosts: 17 }, /give hosts from 2 to 16/],
  [{ hosts: 2, workers: 3 }, /3 workers cannot be shared evenly by 2 hosts/],
])('refuses %j', async (options, words) => {
  await expect(benchHybrid(options)).rejects.toThrow(words);
});

it.each([
  [
    ['--models', 'mlp'],
    '--models has "mlp"; tributary bench hybrid takes text-cnn, lm, large-lm, cnn, resnet',
  ],
  [['--links', 'wire'], '--links has "wire"; tributary bench hybrid takes shm, link'],
  [['--batch', '3'], '--batch is an option of tributary bench scaleup, not of hybrid'],
])('refuses %j on the command line', async (args, fault) => {
  const { code, stderr } = await run(['bench', 'hybrid', ...args]);
  expect(code).toBe(2);
  expect(stderr).toContain(fault);
});
