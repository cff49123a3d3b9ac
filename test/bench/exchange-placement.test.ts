/** What `bench exchange` decides before it starts anything: placements, rows that are touched, whether sides did the same. */
import fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import { planPlacement, rowSets } from '../../src/bench/exchange/index.ts';
import { hostedServer } from '../../src/bench/exchange/placement.ts';
import { checkSameWork } from '../../src/bench/exchange/peer-sides.ts';
import type { Contender } from '../../src/bench/allreduce/turns.ts';

describe('placements', () => {
  it.each([
    [
      { transport: 'shm', workers: 2 },
      { placement: 'NCC', servers: 1 },
    ],
    [
      { transport: 'tcp', workers: 3 },
      { placement: 'CS', servers: 3, coresPerServer: 1 },
    ],
    [
      { transport: 'tcp', workers: 3, servers: 1 },
      { placement: 'NCC', servers: 1 },
    ],
    [
      { transport: 'tcp', workers: 3, servers: 2 },
      { placement: 'NCS', servers: 2 },
    ],
    [
      { transport: 'shm', workers: 2, servers: 2 },
      { placement: 'NCS', servers: 2 },
    ],
    [
      { transport: 'shm', workers: 2, placement: 'NCS', cores: 3 },
      { servers: 2, coresPerServer: 3 },
    ],
    [
      { transport: 'shm', workers: 2, placement: 'CC', cores: 1 },
      { servers: 1, coresPerServer: 1 },
    ],
  ] as const)('%o', (options, expected) => {
    expect(planPlacement(options)).toMatchObject(expected);
  });

  it('say which worker has a server in its process', () => {
    const hosts = (['CC', 'CS', 'NCC', 'NCS'] as const).map((placement) =>
      [0, 1].map((worker) => hostedServer(placement, worker)),
    );
    expect(hosts).toEqual([
      [0, undefined],
      [0, 1],
      [undefined, undefined],
      [undefined, undefined],
    ]);
  });
});

test('a row belongs to one set of one worker, and lies in the table', () => {
  const sizes = fc.record({ rows: fc.integer({ min: 1, max: 50 }), workers: fc.integer({ min: 1, max: 5 }) });
  fc.assert(
    fc.property(sizes, fc.integer({ min: 0, max: 1000 }), ({ rows, workers }, more) => {
      const tableRows = rows * workers + more;
      const all = Array.from({ length: workers }, (_, worker) =>
        rowSets({ rows, tableRows, worker, workers }).map((set) => [...set]),
      ).flat(2);
      expect(new Set(all).size).toBe(all.length);
      expect(all.length % (rows * workers)).toBe(0);
      expect(Math.min(...all)).toBeGreaterThanOrEqual(0);
      expect(Math.max(...all)).toBeLessThan(tableRows);
    }),
  );
});

test('sides whose weights differ are not compared', () => {
  const side = (name: string, chosen: string): Contender =>
    ({ group: { command: { name } }, chosen }) as unknown as Contender;
  expect(() => checkSameWork([side('ours', 'aa'), side('gloo', 'aa')])).not.toThrow();
  expect(() => checkSameWork([side('ours', 'aa'), side('gloo', 'bb')])).toThrow(/gloo.*bb.*ours.*aa/);
});
