/** What measuring before a run leaves behind: nothing, on workers and on servers. */
import fc from 'fast-check';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { measuredRows, rowsOf } from '../../src/exchange/server-costs.ts';
import { RankProcesses } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./measuring-program.ts', import.meta.url));
const SIZE = 2;
const MEGA = 2 ** 20;

describe('measuring', () => {
  let ranks: RankProcesses;

  beforeAll(async () => {
    const options = { messageBytes: 2 * MEGA, mostRows: 4000 };
    ranks = await RankProcesses.start({ program: PROGRAM, transport: 'shm', size: SIZE, options });
    await ranks.untilEnded();
  }, 60_000);
  afterAll(() => ranks.close());

  it('gives back its memory, and that of peers', () => {
    for (const rank of [0, 1]) {
      const rounds = ranks.said('measured').filter((line) => line['rank'] === rank);
      const [taken, regions] = ['takenBytes', 'regions'].map((fact) =>
        rounds.map((line) => Number(line[fact])),
      );
      expect(rounds).toHaveLength(3);
      expect(regions!.map((count) => count - regions![0]!)).toEqual([0, 0, 0]);
      // The last message may still be mapped by the lane of its peer; each round takes many times that.
      expect(taken!.at(-1)! - taken![0]!, taken!.join(', ')).toBeLessThanOrEqual(2.5 * MEGA);
    }
  });

  it('leaves no parameters on servers', () => {
    const lines = ranks.said('servers');
    expect(lines).toHaveLength(SIZE);
    for (const { rank, lengths, values, grownBytes } of lines) {
      expect(lengths).toEqual([3, 3]);
      expect(values).toEqual([rank === 0 ? 2 : 0, 0]);
      expect(grownBytes).toBeLessThan(MEGA);
    }
  });

  it('tells what share of an exchange with servers is the push, on all workers the same', () => {
    const [first, second] = ranks.said('servers').map(({ pushShare }) => pushShare as number);
    expect(first).toBeGreaterThan(0);
    expect(first).toBeLessThan(1);
    expect(second).toBe(first);
  });

  it('frees a region once, and none after the thread was closed', () => {
    expect(ranks.said('again').map(({ name, code }) => [name, code])).toEqual(
      Array.from({ length: SIZE }, () => ['UsageError', 'INVALID_ARGUMENT']),
    );
    expect(ranks.said('closed')).toHaveLength(SIZE);
  });
});

describe('servers of workers on hosts of their own', () => {
  let ranks: RankProcesses;

  beforeAll(async () => {
    // What tells hosts apart is their identity: here all could map the memory of all.
    const options = { messageBytes: 1024, mostRows: 64, onHostsOfTheirOwn: true };
    ranks = await RankProcesses.start({ program: PROGRAM, transport: 'tcp', size: SIZE, options });
    await ranks.untilEnded();
  }, 60_000);
  afterAll(() => ranks.close());

  it('use the memory of no other host in place, whose link would carry nothing then', () => {
    const stores = ranks.said('store').map(({ servers, sharesMemory }) => [servers, sharesMemory]);
    expect(stores).toEqual(Array.from({ length: SIZE }, () => [SIZE, false]));
  });
});

it('measures servers with different rows, all of them in the table', () => {
  const teams = fc
    .integer({ min: 1, max: 8 })
    .chain((workers) =>
      fc.tuple(
        fc.constant(workers),
        fc.subarray([...Array(workers).keys()]),
        fc.integer({ min: 1, max: 50 }),
      ),
    );
  fc.assert(
    fc.property(teams, ([workers, ranks, count]) => {
      const rows = rowsOf(ranks, workers, count);
      expect(rows).toHaveLength(ranks.length * count);
      expect([...new Set(rows)].sort((a, b) => a - b)).toEqual([...rows]);
      expect(Math.max(0, ...rows)).toBeLessThan(measuredRows(workers, count));
      // Nobody has the row of another.
      const each = ranks.flatMap((rank) => [...rowsOf([rank], workers, count)]);
      expect(each.sort((a, b) => a - b)).toEqual([...rows]);
    }),
  );
});
