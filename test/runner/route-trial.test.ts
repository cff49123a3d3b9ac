/** Candidates that predictions do not tell apart take real steps, of which nothing stays. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { TriedRoutes } from '../../src/plan/index.ts';
import { quickestOf } from '../../src/runner/route-trial.ts';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./route-trial-program.ts', import.meta.url));
const SIZE = 2;

describe.each([
  { where: 'on one host', transport: 'shm' as const, options: {} },
  {
    ...{ where: 'on two hosts, of which one has no samples', transport: 'tcp' as const },
    options: { onHostsOfTheirOwn: true, hasEmptyWorker: true },
  },
])('a trial of routes $where', ({ transport, options }) => {
  let ranks: RankProcesses;

  beforeAll(async () => {
    ranks = await RankProcesses.start({ program: PROGRAM, transport, size: SIZE, options });
    await ranks.untilEnded();
  }, 180_000);
  afterAll(() => ranks.close());

  it('takes steps with each of at most three candidates, and the quickest of them', () => {
    const lines = ranks.said('tried');
    expect(lines).toHaveLength(SIZE);
    const { tried, routes, given, reason } = lines[0]! as unknown as {
      readonly tried: readonly TriedRoutes[];
      readonly routes: TriedRoutes['routes'];
      readonly given: TriedRoutes['routes'];
      readonly reason: string;
    };
    expect(tried).toHaveLength(3);
    expect(new Set(tried.map((one) => JSON.stringify(one.routes))).size).toBe(3);
    for (const { measuredMs, passesMs, predictedMs, steps } of tried) {
      expect(passesMs).toHaveLength(2);
      expect(measuredMs).toBeGreaterThan(0);
      expect(predictedMs).toBeGreaterThan(0);
      expect(steps).toBeGreaterThanOrEqual(4);
    }
    expect(routes).toEqual(quickestOf(tried).routes);
    expect(given).toEqual(routes);
    for (const { name } of tried) expect(reason).toMatch(new RegExp(`tried in real steps: .*${name} `));
    expect(lines[1]).toMatchObject({ tried, routes, reason });
  });

  it('leaves parameters, states and what the optimizer keeps as they were', () => {
    expect(ranks.said('tried').map(({ isUntouched }) => isUntouched)).toEqual([true, true]);
    for (const { trained, untried } of ranks.said('trained')) expect(trained).toEqual(untried);
  });
});

describe('of tried routes', () => {
  const tried = (name: TriedRoutes['name'], passesMs: readonly number[]): TriedRoutes => ({
    ...{ name, routes: {}, predictedMs: 1, steps: 4, passesMs },
    measuredMs: passesMs.reduce((sum, ms) => sum + ms, 0) / passesMs.length,
  });
  const own = tried('hybrid', [100, 100]);

  it('another than predicted is taken if it was quicker in every pass, the quickest of those', () => {
    const others = [tried('servers', [90, 99]), tried('collectives', [80, 81]), tried('parallax', [10, 101])];
    expect(quickestOf([own, ...others]).name).toBe('collectives');
  });

  it('the predicted one stays where one pass was another pass', () => {
    expect(quickestOf([own, tried('parallax', [50, 100])]).name).toBe('hybrid');
  });
});
