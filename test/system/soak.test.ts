/**
 * The soak: random collectives in several groups, joins, cancellations and two kills with newcomers in their place, for
 * TRIBUTARY_SOAK_SECONDS (default 16) shared by the transports. All results are verified by the ranks; here is judged
 * what the processes that lived through it hold at the end against what they held after warming up. TRIBUTARY_SEED
 * repeats a run as far as the machine's timing lets it.
 */
import { fileURLToPath } from 'node:url';
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { chooseSeed, RankProcesses } from '../support/rank-processes.ts';
import type { RankProcess, RankTransport } from '../support/rank-processes.ts';
import type { Holdings } from './holdings.ts';

const PROGRAM = fileURLToPath(new URL('./soak-rank.ts', import.meta.url));
const SIZE = 4;
const TRANSPORTS = ['shm', 'tcp', 'auto'] satisfies RankTransport[];
const SECONDS = Number(process.env['TRIBUTARY_SOAK_SECONDS'] ?? 16) / TRANSPORTS.length;
/** What processes take at first, when memory for the largest operations is made, is no leak. */
const WARM_UP_PART = 0.3;
const KILL_PARTS = [0.45, 0.65];

/**
 * By how much a process may hold more at the end than after warming up. Scratch memory is kept for reuse, so chance adds a
 * piece whenever more large operations meet than ever before; the heap and the allocator settle slowly. A leak of one
 * file, segment or kilobyte in each operation, cancellation or join would go far beyond.
 */
const MOST_GROWTH: Partial<Record<keyof Held, number>> = {
  privateMb: 32,
  heapMb: 4,
  descriptors: 0,
  segments: 8,
  orphans: 0,
  // V8 takes and returns its heap in pages of 256 KiB; every segment cuts the space that it lies in once more.
  otherMappings: 160,
};

interface Held extends Holdings {
  /** Segments in shared memory that the process owns. */
  readonly segments: number;
}

let ranks: RankProcesses | undefined;
afterEach(() => ranks?.close());

describe.each(TRANSPORTS)('a soak over %s', (transport) => {
  it(
    `of ${SECONDS.toFixed(0)} s leaks nothing`,
    async () => {
      const seed = chooseSeed();
      const random = new Random(seed);
      ranks = await RankProcesses.start({ program: PROGRAM, transport, size: SIZE, seed });
      const all = ranks;
      const living = new Set(all.processes);
      for (const one of living) one.tell('join');
      const spares = KILL_PARTS.map(() => all.add());
      const settled = () =>
        all.until('all living ranks have finished a round of one world', () => {
          const last = [...living].map((one) => one.said('correct').at(-1));
          return last.every((line) => line?.['size'] === living.size && line['group'] === last[0]!['group']);
        });
      await settled();
      await all.until('the spares are loaded', () => spares.every((one) => one.said('loaded').length > 0));
      const startMs = performance.now();
      const reach = (part: number) => pause(Math.max(0, startMs + part * SECONDS * 1000 - performance.now()));

      await reach(WARM_UP_PART);
      const before = await measure(all, [...living], 1);
      for (const part of KILL_PARTS) {
        await reach(part);
        const victim = [...living][random.below(living.size)]!;
        victim.kill();
        living.delete(victim);
        await settled();
        const newcomer = spares.shift()!;
        newcomer.tell('join');
        living.add(newcomer);
        await settled();
      }
      await reach(1);
      const after = await measure(all, [...living], 2);

      const work = { rounds: 0, collectives: 0, cancelled: 0, joins: 0 };
      for (const one of living) one.tell('stop');
      await all.untilEnded();
      for (const line of all.said('work')) {
        for (const what of Object.keys(work) as (keyof typeof work)[]) work[what] += line[what] as number;
      }
      const survivors = [...living].filter((one) => before.has(one));
      console.log(`${transport}, seed ${seed}: ${JSON.stringify(work)}`);
      for (const one of survivors) {
        const was = before.get(one)!;
        const is = after.get(one)!;
        const kinds = Object.keys(was) as (keyof Held)[];
        console.log(
          `  process ${one.pid}: ${kinds.map((what) => `${what} ${show(was[what])} -> ${show(is[what])}`).join(', ')}`,
        );
        for (const what of kinds) {
          const most = MOST_GROWTH[what];
          if (most === undefined) continue;
          expect(is[what] - was[what], `growth of ${what} in process ${one.pid}`).toBeLessThanOrEqual(most);
        }
      }
      expect(survivors.length).toBeGreaterThanOrEqual(SIZE - KILL_PARTS.length);
      expect(all.segments()).toEqual([]);
    },
    SECONDS * 1000 + 60_000,
  );
});

/** What each process holds, as it says itself, and its segments in shared memory. */
async function measure(
  all: RankProcesses,
  living: readonly RankProcess[],
  time: number,
): Promise<ReadonlyMap<RankProcess, Held>> {
  const said = living.map((one) => one.said('holds').length);
  for (const one of living) one.tell(`measure ${time}`);
  await all.until('all ranks have said what they hold', () =>
    living.every((one, i) => one.said('holds').length > said[i]!),
  );
  return new Map(
    living.map((one) => {
      const held = one.said('holds').at(-1)!['held'] as Holdings;
      return [one, { ...held, segments: all.segments([one]).length }];
    }),
  );
}

function show(value: number): string {
  return Number.isInteger(value) ? `${value}` : value.toFixed(1);
}
