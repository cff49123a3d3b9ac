/** How operations end that cannot succeed: every rank gets an error that names who, and nobody hangs. */
import { describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/base/index.ts';
import { allGather, allReduce, barrier, broadcast, join, reduce } from '../../src/collectives/index.ts';
import type { StallReport } from '../../src/progress/index.ts';
import type { Handle } from '../../src/progress/index.ts';
import { runGroup } from '../support/run-group.ts';
import type { RankContext } from '../support/run-group.ts';

async function failure(handle: Handle): Promise<TributaryError> {
  try {
    await handle;
  } catch (error) {
    expect(error).toBeInstanceOf(TributaryError);
    return error as TributaryError;
  }
  throw new Error('it succeeded');
}

const calls: Record<string, (context: RankContext) => Handle> = {
  length: ({ group, rank, region }) => allReduce(group, region('float32', rank === 2 ? [1, 2] : [1])),
  type: ({ group, rank, region }) => allReduce(group, region(rank === 1 ? 'int32' : 'float32', [1])),
  operation: ({ group, rank, region }) =>
    allReduce(group, region('float32', [1]), { op: rank === 0 ? 'max' : 'sum' }),
  name: ({ group, rank, region }) =>
    allReduce(group, region('float32', [1]), { name: rank === 3 ? 'b' : 'a', algorithm: 'ring' }),
  collective: ({ group, rank, region }) =>
    rank === 1 ? barrier(group) : broadcast(group, region('float32', [1])),
  root: ({ group, rank, region }) => reduce(group, region('float32', [1]), { root: rank === 2 ? 1 : 0 }),
  counts: ({ group, rank, region }) => {
    const mine = rank === 1 ? 2 : 1;
    const counts = rank === 1 ? [1, 2, 1, 1] : [1, 1, 1, 1];
    return allGather(
      group,
      region('float32', Array(mine).fill(1)),
      region('float32', Array(rank === 1 ? 5 : 4).fill(0)),
      { counts },
    );
  },
};

describe('ranks that disagree', () => {
  for (const [what, call] of Object.entries(calls)) {
    it(`about the ${what}: every rank is told who called what, and the group goes on`, async () => {
      await runGroup({ size: 4, seed: 2 }, async (context) => {
        const { group, region } = context;
        const startMs = performance.now();
        const error = await failure(call(context));
        expect(performance.now() - startMs).toBeLessThan(5000);
        expect(error.code).toBe('COLLECTIVE_MISMATCH');
        for (let rank = 0; rank < 4; rank++)
          expect(error.message).toContain(`rank ${rank} (process ${1000 + rank} on test):`);
        const vector = region('float32', [1]);
        await allReduce(group, vector);
        expect(vector.view[0]).toBe(4);
      });
    });
  }
});

describe('a rank that does not come', () => {
  it('is named in reports to those who wait, again and again, until it comes', async () => {
    const reports: StallReport[] = [];
    let late = () => undefined as void;
    const waited = new Promise<void>((resolve) => (late = resolve));
    const options = {
      stallAfterMs: 40,
      onStall: (report: StallReport) => {
        reports.push(report);
        if (reports.filter(({ rank }) => rank === 0).length >= 2) late();
      },
    };
    await runGroup({ size: 3, progress: options }, async ({ group, rank, region }) => {
      if (rank === 2) await waited;
      await allReduce(group, region('float32', [1]), { name: 'gradients' });
    });
    expect(reports[0]!.missing).toEqual([2]);
    expect(reports[0]!.text).toMatch(
      /allreduce 'gradients'.*missing: rank 2 \(process 1002 on test\).*rank 0 waits for/,
    );
  });

  it('is named in the error when the deadline passes', async () => {
    await runGroup({ size: 3 }, async ({ group, rank, region }) => {
      if (rank === 1) return;
      const error = await failure(allReduce(group, region('float32', [1]), { deadlineMs: 100 }));
      expect(error.code).toBe('TIMEOUT');
      expect(error.message).toContain('missing: rank 1 (process 1001 on test)');
    });
  });

  it('learns when it comes late that the others have given up', async () => {
    let gone = () => undefined as void;
    const givenUp = new Promise<void>((resolve) => (gone = resolve));
    await runGroup({ size: 2 }, async ({ group, rank, region }) => {
      if (rank === 1) await givenUp;
      const error = await failure(allReduce(group, region('float32', [1]), { deadlineMs: 50 }));
      expect(error.code).toBe('TIMEOUT');
      gone();
    });
  });
});

describe('cancellation', () => {
  it('names the rank that left to the others, and the next operation works', async () => {
    for (const shared of [false, true]) {
      await runGroup({ size: 3, shared, seed: 4 }, async ({ group, rank, region }) => {
        const vector = region(
          'float32',
          Array.from({ length: 9000 }, () => rank),
        );
        const abort = new AbortController();
        const handle = allReduce(group, vector, {
          signal: abort.signal,
          algorithm: rank === 1 ? 'direct' : 'direct',
        });
        if (rank === 1) abort.abort();
        const error = await failure(handle);
        expect(error.code).toBe('CANCELLED');
        expect(error.message).toContain('rank 1 (process 1001 on test) left');
        vector.view.fill(rank);
        await allReduce(group, vector);
        expect(vector.view[0]).toBe(3);
      });
    }
  });

  it('works before the operation starts', async () => {
    await runGroup({ size: 2 }, async ({ group, region }) => {
      const error = await failure(allReduce(group, region('float32', [1]), { signal: AbortSignal.abort() }));
      expect(error.code).toBe('CANCELLED');
    });
  });
});

describe('a dead rank', () => {
  it('is named to all others, in operations under way and in those that follow', async () => {
    await runGroup({ size: 4 }, async ({ group, rank, region, network }) => {
      if (rank === 3) {
        await new Promise((resolve) => setImmediate(resolve));
        return network.kill(3);
      }
      const error = await failure(allReduce(group, region('float32', [1])));
      expect(error.code).toBe('PEER_LOST');
      expect(error.message).toContain('rank 3 (process 1003 on test)');
      expect(group.broken?.message).toContain('rank 3');
      expect(() => barrier(group)).toThrow(/regroup/);
    });
  });
});

describe('join', () => {
  it('lets ranks run out of data at different times; averages count those that have some', async () => {
    for (const shared of [false, true]) {
      for (const length of [3, 6000]) {
        await runGroup({ size: 3, shared, seed: 6 }, async ({ group, rank, region }) => {
          for (let step = 0; step < 2 + 2 * rank; step++) {
            const vector = region(
              'float32',
              Array.from({ length }, () => rank + 1),
            );
            await allReduce(group, vector, { op: 'mean', name: `step ${step}` });
            expect(vector.view[length - 1]).toBe(step < 2 ? 2 : step < 4 ? 2.5 : 3);
          }
          await join(group);
          const after = region('float32', [1]);
          await allReduce(group, after);
          expect(after.view[0]).toBe(3);
        });
      }
    }
  });

  it('takes part in every reducing collective with neutral values', async () => {
    await runGroup({ size: 2, seed: 8 }, async ({ group, rank, region }) => {
      if (rank === 1) return join(group);
      for (const op of ['sum', 'mean', 'min', 'max', 'product'] as const) {
        for (const algorithm of ['ring', 'tree', 'halving-doubling', 'rings', 'direct'] as const) {
          const vector = region('float32', [-3, 4]);
          await allReduce(group, vector, { op, algorithm });
          expect([...vector.view], `${op} by ${algorithm}`).toEqual([-3, 4]);
        }
        const vector = region('float64', [5]);
        await reduce(group, vector, { op });
        expect(vector.view[0]).toBe(5);
      }
      const coded = region('float32', [0.7, -0.2]);
      await allReduce(group, coded, {
        op: 'mean',
        codec: { kind: '1bit', threshold: 0, residual: region('float32', [0, 0]) },
      });
      expect([...coded.view]).toEqual([1, -1]);
      await barrier(group);
      await broadcast(group, coded);
      await join(group);
    });
  });
});
