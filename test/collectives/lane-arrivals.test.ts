/** All interleavings of ranks that count themselves in at a lane, give up waiting, or decline: they always agree. */
import { describe, expect, it } from 'vitest';
import { arrive, close, countOf, isOlder } from '../../src/collectives/lane/arrivals.ts';

/** Where a rank is in one operation. */
type Phase = 'before' | 'waiting' | 'lane' | 'ordinary';

interface State {
  readonly word: number;
  readonly phases: readonly Phase[];
}

/** Everything that one rank can do next, each on a copy of the word. */
function steps({ word, phases }: State, rank: number, sequence: number): State[] {
  const act = (action: (words: Int32Array) => Phase): State => {
    const words = Int32Array.of(word);
    const phase = action(words);
    return { word: words[0]!, phases: phases.map((other, i) => (i === rank ? phase : other)) };
  };
  const ranks = phases.length;
  switch (phases[rank]) {
    case 'before':
      return [
        act((words) => (arrive(words, 0, sequence) ? 'waiting' : 'ordinary')),
        act((words) => (close(words, 0, sequence, ranks) ? 'ordinary' : 'lane')),
      ];
    case 'waiting':
      return word === countOf(sequence, ranks)
        ? [act(() => 'lane')]
        : [act((words) => (close(words, 0, sequence, ranks) ? 'ordinary' : 'lane'))];
    default:
      return [];
  }
}

/** The ends of all interleavings from a state on. */
function ends(start: State, sequence: number): State[] {
  const seen = new Set<string>();
  const found: State[] = [];
  const visit = (state: State): void => {
    const key = `${state.word} ${state.phases.join(' ')}`;
    if (seen.has(key)) return;
    seen.add(key);
    const next = state.phases.flatMap((_, rank) => steps(state, rank, sequence));
    if (next.length === 0) found.push(state);
    next.forEach(visit);
  };
  visit(start);
  return found;
}

/** Operations that meet in the same slots. */
const SAME_SLOTS = [4, 6, 8];

interface Walker {
  /** Which of the operations it is in. */
  readonly at: number;
  readonly phase: 'before' | 'waiting' | 'reading';
  /** Which way each operation went for it. */
  readonly ways: readonly ('lane' | 'ordinary')[];
  /** It has finished all that met in the lane up to here; one more than the operation. */
  readonly done: number;
  readonly lastMet: number;
}

interface Walk {
  readonly word: number;
  readonly walkers: readonly Walker[];
}

/** How all interleavings of ranks that never wait for the ordinary way end: the way of each operation, or 'apart'. */
function waysOfAll(ranks: number, guarded: boolean): string[][] {
  const seen = new Set<string>();
  const found: string[][] = [];
  const visit = (walk: Walk): void => {
    const key = JSON.stringify(walk);
    if (seen.has(key)) return;
    seen.add(key);
    const next = walk.walkers.flatMap((_, rank) => moves(walk, rank, guarded));
    if (next.length === 0) {
      found.push(
        SAME_SLOTS.map((_, i) => {
          const ways = new Set(walk.walkers.map(({ ways }) => ways[i]));
          return ways.size === 1 ? [...ways][0]! : 'apart';
        }),
      );
    }
    next.forEach(visit);
  };
  const start: Walker = { at: 0, phase: 'before', ways: [], done: 0, lastMet: -1 };
  visit({ word: 0, walkers: Array.from({ length: ranks }, () => start) });
  return found;
}

function moves({ word, walkers }: Walk, rank: number, guarded: boolean): Walk[] {
  const walker = walkers[rank]!;
  const sequence = SAME_SLOTS[walker.at];
  if (sequence === undefined) return [];
  const ranks = walkers.length;
  const isFree = walkers.every(({ done }) => done > walker.lastMet);
  const act = (action: (words: Int32Array) => Partial<Walker>): Walk => {
    const words = Int32Array.of(word);
    const changed = { ...walker, ...action(words) };
    return { word: words[0]!, walkers: walkers.map((other, i) => (i === rank ? changed : other)) };
  };
  const ordinary = { at: walker.at + 1, phase: 'before', ways: [...walker.ways, 'ordinary'] } as const;
  const reading = { phase: 'reading', lastMet: sequence } as const;
  const giveUp = act((words) => (close(words, 0, sequence, ranks) ? ordinary : reading));
  switch (walker.phase) {
    case 'before':
      if (isFree)
        return [act((words) => (arrive(words, 0, sequence) ? { phase: 'waiting' } : ordinary)), giveUp];
      return [guarded ? act(() => ordinary) : giveUp];
    case 'waiting':
      return [word === countOf(sequence, ranks) ? act(() => reading) : giveUp];
    case 'reading':
      return [
        act(() => ({
          at: walker.at + 1,
          phase: 'before',
          ways: [...walker.ways, 'lane'],
          done: sequence + 1,
        })),
      ];
  }
}

describe('the counter of a lane', () => {
  for (const ranks of [2, 3, 4, 5]) {
    it(`brings ${ranks} ranks to the same way in every interleaving, operation after operation`, () => {
      let starts = [0];
      // Numbers around the point at which they no longer fit and start again.
      for (const sequence of [0, 2, 4, 2 ** 22 - 2, 2 ** 22, 2 ** 22 + 2]) {
        const reached = starts.flatMap((word) =>
          ends({ word, phases: Array.from({ length: ranks }, () => 'before' as const) }, sequence),
        );
        for (const { phases } of reached) expect(new Set(phases).size, phases.join(' ')).toBe(1);
        const ways = new Set(reached.map(({ phases }) => phases[0]));
        expect(ways).toEqual(new Set(['lane', 'ordinary']));
        starts =
          sequence === 4 ? [countOf(2 ** 22 - 4, ranks)] : [...new Set(reached.map(({ word }) => word))];
      }
    });
  }

  for (const ranks of [2, 3]) {
    it(`keeps ${ranks} ranks together while some are operations ahead in the same slots`, () => {
      expect(new Set(waysOfAll(ranks, true).flat())).toEqual(new Set(['lane', 'ordinary']));
      // Without the look at who has finished, a rank that is ahead takes the word from one that still reads it.
      expect(waysOfAll(ranks, false).flat()).toContain('apart');
    });
  }

  it('leaves an operation to the ordinary way when others are past it', () => {
    const words = Int32Array.of(countOf(6, 2));
    expect(arrive(words, 0, 4)).toBe(false);
    expect(close(words, 0, 4, 2)).toBe(true);
    expect(words[0]).toBe(countOf(6, 2));
  });

  it('orders numbers across the point at which they start again', () => {
    expect(isOlder(2 ** 22 - 1, 0)).toBe(true);
    expect(isOlder(0, 2 ** 22 - 1)).toBe(false);
    expect(isOlder(5, 5)).toBe(false);
  });
});
