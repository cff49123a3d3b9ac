/** Join where something goes wrong: calls that a joined rank cannot take part in, and joins that are given up. */
import { describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/base/index.ts';
import { allReduce, join } from '../../src/collectives/index.ts';
import type { Handle } from '../../src/progress/index.ts';
import { runGroup } from '../support/run-group.ts';
import type { RankContext } from '../support/run-group.ts';

/** One script plays all ranks, so that it decides who has heard what when. */
async function play(size: number, script: (ranks: readonly RankContext[]) => Promise<void>): Promise<void> {
  const ranks: RankContext[] = [];
  await runGroup({ size, progress: { deadlineMs: 10_000 } }, async (context) => {
    ranks.push(context);
    if (ranks.length === size) await script(ranks);
  });
}

/** Lets the ranks hear everything that has been said. */
function talk(ranks: readonly RankContext[]): void {
  while (ranks.map(({ group }) => group.progress.poll()).some(Boolean));
}

async function failure(handle: Handle): Promise<TributaryError> {
  const error: unknown = await handle.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (error instanceof TributaryError) return error;
  throw new Error('it did not fail as it should', { cause: error });
}

/** Keeps back what one rank has said to another, until the function that it returns is called. */
function hold(ranks: readonly RankContext[], { from, to }: { from: number; to: number }): () => void {
  const { notices } = ranks[0]!.network.transports.get(to)!;
  const said = notices.splice(0);
  notices.push(...said.filter((notice) => notice.from !== from));
  return () => void notices.push(...said.filter((notice) => notice.from === from));
}

/** The sum over all ranks, where rank i gives 10^i. Each hears of the others' calls before it makes its own. */
async function sumOfAll(ranks: readonly RankContext[]): Promise<number[]> {
  const vectors = ranks.map(({ region, rank }) => region('float32', [10 ** rank]));
  const handles = ranks.toReversed().map(({ group, rank }) => {
    const handle = allReduce(group, vectors[rank]!);
    talk(ranks);
    return handle;
  });
  await Promise.all(handles);
  return vectors.map(({ view }) => view[0]!);
}

async function joinAll(ranks: readonly RankContext[]): Promise<void> {
  await Promise.all(ranks.map(({ group }) => join(group)));
}

describe('a joined rank that cannot take part', () => {
  it('tells a caller that has not heard of it which rank was lost', async () => {
    await play(3, async (ranks) => {
      const [joined, caller] = ranks as [RankContext, RankContext];
      const joining = failure(join(joined.group));
      talk(ranks);
      joined.network.transports.get(0)!.lose(2);
      joined.group.progress.poll();
      expect((await joining).code).toBe('PEER_LOST');
      const vector = caller.region('float32', [1, 2, 3]);
      const told = failure(allReduce(caller.group, vector, { algorithm: 'ring' }));
      expect(() => talk(ranks)).not.toThrow();
      const error = await told;
      expect(error.code).toBe('PEER_LOST');
      expect(error.message).toMatch(/^rank 0 \(process 1000 on test\) left allreduce.*rank 2 \(process 1002/);
    });
  });

  const nonsense: Record<string, [spec: Record<string, unknown>, why: RegExp]> = {
    'a root that is no rank': [{ collective: 'broadcast', length: 4, root: 99 }, /root of broadcast is 99/],
    'the mean of int32': [{ collective: 'reduce', dtype: 'int32', length: 4, op: 'mean' }, /mean of int32/],
    'no vector': [{ collective: 'allreduce', length: 4, vectors: 0 }, /no region/],
    'more than there is room for': [
      { collective: 'allreduce', length: 2 ** 27, vectors: 64 },
      /room|space|bytes/,
    ],
    'an algorithm that is not there': [{ collective: 'allreduce', length: 4, algorithm: 'native' }, /native/],
  };
  for (const [what, [spec, why]] of Object.entries(nonsense)) {
    it(`says so to whoever calls ${what}, and goes on`, async () => {
      await play(2, async (ranks) => {
        const [joined, caller] = ranks as [RankContext, RankContext];
        const { scratch } = joined.group.progress;
        const piece = scratch.take('float32', 4);
        scratch.giveBack(piece);
        const joining = join(joined.group);
        talk(ranks);
        const call = { tag: 0, signature: 1, describe: () => 'a call', spec: { ...spec, tag: 0 } };
        const into = caller.region('float32', [0]);
        const handle = caller.group.progress.start(caller.group, call, function* (operation) {
          yield operation.receive(0, 0, into);
        });
        expect(() => talk(ranks)).not.toThrow();
        const error = await failure(handle);
        expect(error.code).toBe('CANCELLED');
        expect(error.message).toMatch(/^rank 0 \(process 1000 on test\) left a call of group 1: /);
        expect(error.message).toMatch(why);
        const again = scratch.take('float32', 4);
        expect(again.byteOffset, 'memory was not given back').toBe(piece.byteOffset);
        scratch.giveBack(again);
        await join(caller.group);
        await joining;
        expect(await sumOfAll(ranks)).toEqual([11, 11]);
      });
    });
  }
});

describe('two joins of a rank', () => {
  it('are two rounds, also when the second is called before the first has ended', async () => {
    await play(2, async (ranks) => {
      const [first, second] = ranks as [RankContext, RankContext];
      const joining = join(first.group);
      const next = join(first.group);
      talk(ranks);
      await Promise.all([join(second.group), joining]);
      talk(ranks);
      expect(next.settled).toBe(false);
      await Promise.all([join(second.group), next]);
      expect(ranks.map(({ group }) => group.progress.isQuiet(group))).toEqual([true, true]);
      expect(await sumOfAll(ranks)).toEqual([11, 11]);
    });
  });
});

describe('a join that is given up', () => {
  it('no longer holds: the rank contributes again, and may join again', async () => {
    await play(2, async (ranks) => {
      const [first, second] = ranks as [RankContext, RankContext];
      const joining = join(first.group);
      talk(ranks);
      joining.cancel();
      talk(ranks);
      expect(ranks.map(({ group }) => group.progress.isQuiet(group))).toEqual([true, true]);
      expect(await sumOfAll(ranks)).toEqual([11, 11]);
      // The join of the other rank is the one that was given up.
      const error = await failure(join(second.group));
      expect(error.message).toContain('rank 0 (process 1000 on test) left join');
      const rejoining = join(first.group);
      const vector = second.region('float32', [3]);
      talk(ranks);
      await allReduce(second.group, vector);
      expect(vector.view[0]).toBe(3);
      await join(second.group);
      await rejoining;
      expect(await sumOfAll(ranks)).toEqual([11, 11]);
      expect(ranks.map(({ group }) => group.progress.isQuiet(group))).toEqual([true, true]);
    });
  });

  it('fails on the others that had joined, which contribute again too', async () => {
    await play(3, async (ranks) => {
      const [first, second, third] = ranks as [RankContext, RankContext, RankContext];
      const joining = join(first.group);
      const also = join(third.group);
      talk(ranks);
      joining.cancel();
      talk(ranks);
      expect((await failure(also)).message).toContain('rank 0 (process 1000 on test) left join');
      expect(await sumOfAll(ranks)).toEqual([111, 111, 111]);
      await failure(join(second.group));
      await joinAll(ranks);
      expect(await sumOfAll(ranks)).toEqual([111, 111, 111]);
    });
  });

  it('may have succeeded elsewhere: the ranks still agree on what follows', async () => {
    await play(2, async (ranks) => {
      const [first, second] = ranks as [RankContext, RankContext];
      const joining = join(first.group);
      talk(ranks);
      // The last rank joins and is done; the first gives up before it hears of that.
      await join(second.group);
      joining.cancel();
      expect((await failure(joining)).code).toBe('CANCELLED');
      talk(ranks);
      expect(await sumOfAll(ranks)).toEqual([11, 11]);
      const rejoining = join(first.group);
      talk(ranks);
      expect(rejoining.settled).toBe(false);
      await Promise.all([join(second.group), rejoining]);
      expect(await sumOfAll(ranks)).toEqual([11, 11]);
    });
  });

  it('may be followed by one that was already called', async () => {
    await play(2, async (ranks) => {
      const [first, second] = ranks as [RankContext, RankContext];
      const joining = join(first.group);
      const next = join(first.group);
      talk(ranks);
      joining.cancel();
      talk(ranks);
      const error = await failure(join(second.group));
      expect(error.message).toContain('rank 0 (process 1000 on test) left join');
      await Promise.all([join(second.group), next]);
      expect(await sumOfAll(ranks)).toEqual([11, 11]);
    });
  });

  it('need not have begun', async () => {
    await play(2, async (ranks) => {
      const [first, second] = ranks as [RankContext, RankContext];
      await failure(join(first.group, { signal: AbortSignal.abort() }));
      const joining = join(first.group);
      talk(ranks);
      const vector = second.region('float32', [3]);
      await allReduce(second.group, vector);
      expect(vector.view[0]).toBe(3);
      await failure(join(second.group));
      await join(second.group);
      await joining;
      expect(await sumOfAll(ranks)).toEqual([11, 11]);
    });
  });

  it('of a round that others have not reached yet is not counted there', async () => {
    await play(3, async (ranks) => {
      const [first, second, third] = ranks as [RankContext, RankContext, RankContext];
      const joins = ranks.map(({ group }) => join(group));
      // The second rank has not heard the third's join when the first is done, joins again and gives up, twice.
      const release = hold(ranks, { from: 2, to: 1 });
      first.group.progress.poll();
      first.group.progress.poll();
      await joins[0];
      join(first.group).cancel();
      join(first.group).cancel();
      talk(ranks);
      release();
      talk(ranks);
      await Promise.all(joins);
      expect(ranks.map(({ group }) => group.progress.isQuiet(group))).toEqual([true, true, true]);
      expect(await sumOfAll(ranks)).toEqual([111, 111, 111]);
      const rejoining = join(first.group);
      talk(ranks);
      const vectors = [second, third].map(({ region }) => region('float32', [3]));
      await Promise.all([second, third].map(({ group }, i) => allReduce(group, vectors[i]!)));
      expect(vectors.map(({ view }) => view[0])).toEqual([6, 6]);
      for (const { group } of [second, third]) {
        await failure(join(group));
        await failure(join(group));
      }
      await Promise.all([rejoining, join(second.group), join(third.group)]);
      expect(await sumOfAll(ranks)).toEqual([111, 111, 111]);
    });
  });
});
