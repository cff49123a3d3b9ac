/** `bench merge` with real workers: every merging predicted and measured in turn, and drawn. */
import { expect, it } from 'vitest';
import { benchMerge, mergeChart } from '../../src/bench/merge/index.ts';

it('measures every merging on shared memory', async () => {
  const result = await benchMerge({ models: ['mlp'], links: ['shm'], batchSize: 16, rounds: 1, steps: 2 });
  expect(result).toMatchObject({ bench: 'merge', skipped: [] });
  expect(result.cases.map(({ strategy }) => strategy)).toEqual([
    ...['layer by layer', 'single', 'buckets', 'algorithm 1', 'optimal'],
  ]);
  const byName = new Map(result.cases.map((one) => [one.strategy, one]));
  expect(byName.get('layer by layer')!.groups).toBe(26);
  expect(byName.get('single')!.groups).toBe(1);
  for (const { predictedMs, measuredMs, link, workers } of result.cases) {
    expect({ link, workers }).toEqual({ link: 'shared memory', workers: 2 });
    expect(predictedMs).toBeGreaterThan(0);
    expect(measuredMs).toBeGreaterThan(0);
    expect(predictedMs).toBeGreaterThanOrEqual(byName.get('optimal')!.predictedMs);
  }
  const picture = mergeChart(result);
  expect(picture).toMatch(/^<svg.*<\/svg>\s*$/s);
  expect(picture).toContain('26 messages');
});

it.each([
  [{ workers: 0 }, /workers is 0/],
  [{ steps: 1.5 }, /steps is 1.5/],
])('refuses %j', async (options, words) => {
  await expect(benchMerge(options)).rejects.toThrow(words);
});
