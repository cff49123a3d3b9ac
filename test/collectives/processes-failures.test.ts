/** What ranks in processes of their own are told when an operation cannot succeed, over shared memory and TCP. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RankProcesses } from '../support/rank-processes.ts';
import type { RankLine, RankTransport } from '../support/rank-processes.ts';

const PROGRAM = fileURLToPath(new URL('./rank-program-failures.ts', import.meta.url));
const SIZE = 3;
const ALL_RANKS = [0, 1, 2];
const DISAGREEMENTS = ['length', 'type', 'operation', 'name', 'collective', 'root', 'counts'];

interface Outcome extends RankLine {
  readonly rank: number;
  readonly code: string;
  readonly message: string;
  readonly ms: number;
}

describe.each(['shm', 'tcp'] satisfies RankTransport[])('processes over %s', (transport) => {
  let ranks: RankProcesses;
  /** The process of each rank, by what they said themselves. */
  let pids: number[];

  beforeAll(async () => {
    ranks = await RankProcesses.start({ program: PROGRAM, transport, size: SIZE });
    const all = await ranks.until('all ranks went through', () => {
      const ready = ranks.processes.filter((one) => one.said('ready').length > 0);
      return ready.length === SIZE && ready;
    });
    const rankOf = (one: (typeof all)[number]) => one.said('ready')[0]!['rank'] as number;
    pids = [...all].sort((a, b) => rankOf(a) - rankOf(b)).map(({ pid }) => pid);
  });

  afterAll(() => ranks.close());

  const outcomes = (scenario: string): Outcome[] =>
    (ranks.said('outcome') as Outcome[]).filter((line) => line['scenario'] === scenario);
  const title = (rank: number): string => `rank ${rank} (process ${pids[rank]} on `;
  const ranksOf = (lines: readonly RankLine[]) => [...new Set(lines.map(({ rank }) => rank))].sort();
  const sumsAfter = (scenario: string) =>
    new Set(
      ranks
        .said('after')
        .filter((line) => line['scenario'] === scenario)
        .map(({ sum }) => sum),
    );

  it.each(DISAGREEMENTS)('that disagree about the %s are all told who called what', (what) => {
    const ended = outcomes(`disagree about the ${what}`);
    expect(ended).toHaveLength(2 * SIZE);
    expect(ranksOf(ended)).toEqual(ALL_RANKS);
    for (const { code, message, ms } of ended) {
      expect(code).toBe('COLLECTIVE_MISMATCH');
      for (const rank of ALL_RANKS) expect(message).toContain(title(rank));
      // A second is what a quiet machine needs; a busy one may take its time, but not the deadline.
      expect(ms).toBeLessThan(10_000);
    }
    expect(sumsAfter(`disagree about the ${what}`)).toEqual(new Set([6]));
  });

  it('learn who cancelled, and the next operation works', () => {
    const ended = outcomes('cancel before');
    expect(ranksOf(ended)).toEqual(ALL_RANKS);
    for (const { code, message } of ended) {
      expect(code).toBe('CANCELLED');
      expect(message).toContain(title(1));
    }
    expect(sumsAfter('cancel before')).toEqual(new Set([6]));
  });

  it('that are cancelled under way have the result or are told who left', () => {
    const ended = outcomes('cancel amid');
    const after = ranks.said('after').filter(({ scenario }) => scenario === 'cancel amid');
    expect(after).toHaveLength(ended.length);
    for (const [i, { code, message }] of ended.entries()) {
      if (code === 'none') {
        expect(after[i]!['last']).toBe(6);
      } else {
        expect(code).toBe('CANCELLED');
        expect(message).toContain(title(1));
      }
    }
    expect(sumsAfter('cancel amid')).toEqual(new Set([6]));
  });

  it('learn at their deadline who has not come, and who comes late learns that they gave up', () => {
    const ended = outcomes('deadline');
    expect(ranksOf(ended)).toEqual([0, 2]);
    for (const { code, message } of ended) {
      expect(code).toBe('TIMEOUT');
      expect(message).toContain(title(1));
      expect(message).toContain('has not called it');
    }
    const late = outcomes('come late');
    expect(late).toHaveLength(2);
    for (const { code } of late) expect(code).toBe('TIMEOUT');
    expect(sumsAfter('deadline')).toEqual(new Set([6]));
  });

  it('report again and again who is missing until it comes', () => {
    const reports = ranks.said('stall');
    expect(reports.length).toBeGreaterThanOrEqual(4);
    for (const report of reports) {
      expect(report['missing']).toEqual([1]);
      expect(report['text']).toMatch(/allreduce 'gradients'/);
      expect(report['text']).toContain(`missing: ${title(1)}`);
    }
  });

  it('join when they are out of data, and averages count those that have some', () => {
    const lines = ranks.said('averages');
    expect(lines).toHaveLength(4 * SIZE);
    for (const { rank, averages } of lines) {
      expect(averages).toEqual([2, 2, 2.5, 2.5, 3, 3].slice(0, 2 + 2 * (rank as number)));
    }
    expect(sumsAfter('join')).toEqual(new Set([6]));
  });

  it('name a peer that is stopped, and go on when it does', async () => {
    const stopped = ranks.processes.find(({ pid }) => pid === pids[2])!;
    stopped.signal('SIGSTOP');
    for (const one of ranks.processes) one.tell('go');
    const reports = await ranks.until('both others have reported', () => {
      const said = ranks.said('stopped');
      return said.length === SIZE - 1 && said;
    });
    for (const report of reports) {
      expect(report['missing']).toEqual([2]);
      expect(report['text']).toContain(`${title(2)}`);
      expect(report['text']).toContain('does not answer');
    }
    stopped.signal('SIGCONT');
    await ranks.untilEnded();
  });
});
