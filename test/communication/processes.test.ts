/** Workers with a communication thread each, as processes, over shared memory and TCP. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RankProcesses } from '../support/rank-processes.ts';
import type { RankLine } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./rank-program.ts', import.meta.url));
const SIZE = 3;
const MEGA = 2 ** 20;

describe.each(['shm', 'tcp'] as const)('communication threads over %s', (transport) => {
  let ranks: RankProcesses;
  let pids: number[];

  beforeAll(async () => {
    ranks = await RankProcesses.start({ program: PROGRAM, transport, size: SIZE });
    const all = await ranks.until('all ranks went through', () => {
      const ready = ranks.processes.filter((one) => one.said('ready').length > 0);
      return ready.length === SIZE && ready;
    });
    const rankOf = (one: (typeof all)[number]) => one.said('ready')[0]!['rank'] as number;
    const byRank = [...all].sort((a, b) => rankOf(a) - rankOf(b));
    pids = byRank.map(({ pid }) => pid);
    byRank[2]!.kill();
    await ranks.untilEnded();
  });

  afterAll(() => ranks.close());

  const title = (rank: number): string => `rank ${rank} (process ${pids[rank]} on `;
  const byRank = (what: string): RankLine[] =>
    [...ranks.said(what)].sort((a, b) => (a['rank'] as number) - (b['rank'] as number));
  const outcomes = (scenario: string): RankLine[] =>
    byRank('outcome').filter((line) => line['scenario'] === scenario);
  const ofAllRanks = (lines: readonly RankLine[], fact: string): unknown[] => lines.map((line) => line[fact]);

  it('join the cluster', () => {
    const lines = byRank('world');
    expect(ofAllRanks(lines, 'rank')).toEqual([0, 1, 2]);
    for (const line of lines) {
      expect(line['size']).toBe(SIZE);
      expect(line['transport']).toBe(transport === 'shm' ? 'shared-memory' : 'tcp');
    }
  });

  it('finish an operation while their caller computes without yielding', () => {
    expect(ofAllRanks(byRank('burnt'), 'meanwhile')).toEqual([true, true, true]);
    for (const line of byRank('burnt')) expect(line['values']).toEqual([6, 6]);
  });

  it('lend regions of named segments in place and copy private ones', () => {
    expect(byRank('lent')).toHaveLength(SIZE);
    for (const { sums, copiedNamed, copiedPrivate } of byRank('lent')) {
      expect(sums).toEqual([6, 6, 6, 6]);
      if (transport !== 'shm') continue;
      expect(copiedNamed).toBeLessThan(4 * MEGA);
      expect(copiedPrivate).toBeGreaterThanOrEqual(4 * MEGA);
    }
  });

  it('match many operations under way by their tags', () => {
    expect(byRank('tags')).toHaveLength(SIZE);
    const wanted = Array.from({ length: 60 }, (_, i) => [i + 1, 6 * (i + 1), 3 * (i + 1)]);
    for (const { values } of byRank('tags')) expect(values).toEqual(wanted);
  });

  it('run every collective with its options', () => {
    const results = ofAllRanks(byRank('collectives'), 'results');
    const wanted = [0, 1, 2].map((rank) => [
      [rank + 1],
      [0, 1, 2],
      [rank, 10 + rank, 20 + rank],
      [1],
      [rank === 2 ? 6 : rank + 1],
      [1.5],
      [1.5],
      [0, 6, 0, 0],
    ]);
    expect(results).toEqual(wanted);
  });

  it('tell every rank who called what, with the facts', () => {
    expect(outcomes('mismatch')).toHaveLength(2 * SIZE);
    for (const { name, code, message, facts, settled } of outcomes('mismatch')) {
      expect([name, code, settled]).toEqual(['PeerError', 'COLLECTIVE_MISMATCH', true]);
      for (const rank of [0, 1, 2]) expect(message).toContain(title(rank));
      expect(facts).toHaveProperty('group');
    }
    // Who is told by another that has left first knows the calls from its message only.
    const calls = outcomes('mismatch').map(({ facts }) => (facts as { calls?: object }).calls);
    expect(calls.map((all) => all && Object.keys(all))).toContainEqual(['0', '1', '2']);
  });

  it('leave an operation by a signal, and go on', () => {
    expect(outcomes('cancel')).toHaveLength(2 * SIZE);
    for (const { code, message } of outcomes('cancel')) {
      expect(code).toBe('CANCELLED');
      expect(message).toContain(title(1));
    }
    expect(ofAllRanks(outcomes('after'), 'code')).toEqual(Array.from({ length: 2 * SIZE }, () => 'none'));
  });

  it('bring faulty arguments back as the errors they are', () => {
    expect(outcomes('usage')).toHaveLength(2 * SIZE);
    for (const { name, code } of outcomes('usage'))
      expect([name, code]).toEqual(['UsageError', 'SHAPE_MISMATCH']);
  });

  it('report who is missing', () => {
    expect(ofAllRanks(byRank('stalled'), 'rank')).toEqual([0, 2]);
    for (const { missing, text } of byRank('stalled')) {
      expect(missing).toEqual([1]);
      expect(text).toContain(`missing: ${title(1)}`);
    }
  });

  it('count only ranks with data once others have joined', () => {
    expect(ofAllRanks(byRank('averages'), 'averages')).toEqual([[2], [2, 2.5], [2, 2.5, 3]]);
  });

  it('run a group beside the world until it is closed', () => {
    expect(ofAllRanks(byRank('group'), 'sum')).toEqual([4, 4]);
    for (const { name, code } of outcomes('closed group')) {
      expect([name, code]).toEqual(['UsageError', 'INVALID_ARGUMENT']);
    }
  });

  it('measure costs that are the same on all ranks', () => {
    const [first, ...others] = byRank('costs');
    expect(first!['before']).toBeNull();
    expect(first!['costs']).not.toEqual([]);
    for (const other of others) expect(other['costs']).toEqual(first!['costs']);
  });

  it('name a killed peer and form a world without it', () => {
    expect(ofAllRanks(outcomes('killed'), 'code')).toEqual(['PEER_LOST', 'PEER_LOST']);
    for (const { message } of outcomes('killed')) expect(message).toContain(title(2));
    const facts = { lost: 2, size: 2, seen: true, formed: 2, sum: 2 };
    expect(byRank('regrouped')).toMatchObject([facts, facts]);
    for (const { code } of outcomes('old world')) expect(code).toBe('INVALID_ARGUMENT');
  });

  it('leave nothing behind when closed, and settle what was under way', () => {
    expect(outcomes('pending at close')).toMatchObject([{ rank: 0, code: 'CANCELLED' }]);
    expect(byRank('closed')).toHaveLength(2);
    for (const { refusal, segments } of byRank('closed')) {
      expect(refusal).toContain('closed');
      expect(segments).toEqual([]);
    }
  });
});
