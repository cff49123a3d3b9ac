/** Whole training runs of several workers against PyTorch on one device, for every route and way of grouping gradients. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { RankProcesses } from '../support/rank-processes.ts';
import { firstDifference } from '../support/shared.ts';
import { evenParts, rowsOf, runsOf, trainingCases } from '../support/training-models.ts';
import type { TrainingCase } from '../support/training-models.ts';

const PROGRAM = fileURLToPath(new URL('./training-program.ts', import.meta.url));

interface Trained {
  readonly case: string;
  readonly grouping: string;
  readonly way: string;
  readonly rank: number;
  readonly losses: readonly number[];
  readonly parameters?: Readonly<Record<string, readonly number[]>>;
  readonly checksum: number;
}

async function train(
  transport: 'shm' | 'tcp' | 'auto',
  size: number,
  options: Readonly<Record<string, unknown>>,
): Promise<Trained[]> {
  const ranks = await RankProcesses.start({ program: PROGRAM, transport, size, options });
  try {
    await ranks.untilEnded(120_000);
    return ranks.said('trained') as unknown as Trained[];
  } finally {
    await ranks.close();
  }
}

/** Where a run leaves that of PyTorch, in words; undefined if it does not. */
function difference(c: TrainingCase, size: number, { losses, parameters }: Trained): string | undefined {
  const [run] = runsOf(c, evenParts(rowsOf(c.batches[0]!), size));
  const loss = firstDifference(losses, run!.losses, c.tolerance.losses);
  if (loss) return `loss ${loss}`;
  for (const [name, values] of Object.entries(parameters ?? {})) {
    const wrong = firstDifference(values, run!.final_params[name]!, c.tolerance.final_params);
    if (wrong) return `${name} ${wrong}`;
  }
  return undefined;
}

describe('workers that exchange gradients', () => {
  const cases = trainingCases();
  const followed = (size: number) =>
    cases.filter((c) => runsOf(c, evenParts(rowsOf(c.batches[0]!), size)).length > 0);

  it.each([
    ['shm', 2, { collectives: ['single', 'layers'], 'whole tables': ['halves'], servers: ['pairs'] }],
    ['shm', 3, { collectives: ['halves'], hybrid: ['single'], 'hybrid in turns': ['halves'] }],
    ['shm', 4, { collectives: ['pairs'] }],
    ['tcp', 2, { hybrid: ['layers'], 'hybrid in turns': ['single'] }],
    ...(process.env['TRIBUTARY_ACCEPTANCE']
      ? ([
          ['shm', 4, { hybrid: ['halves'], servers: ['single'] }],
          ['tcp', 2, { collectives: ['halves'], servers: ['single'] }],
        ] as const)
      : []),
  ] as const)(
    'follow one device over %s with %i workers: %j',
    async (transport, size, ways) => {
      const trained = await train(transport, size, { ways });
      const combinations = Object.values(ways).flat().length;
      expect(trained).toHaveLength(followed(size).length * combinations * size);
      for (const one of trained) {
        const c = cases.find(({ name }) => name === one.case)!;
        const what = `${one.case}, ${one.way}, ${one.grouping}, worker ${one.rank}`;
        expect(difference(c, size, one), what).toBeUndefined();
      }
      for (const { case: name, way, grouping, checksum } of trained) {
        const others = trained.filter(
          (one) => one.case === name && one.way === way && one.grouping === grouping,
        );
        expect(others.map((one) => one.checksum)).toEqual(others.map(() => checksum));
      }
    },
    150_000,
  );

  it('follow one device on two machines of two workers each, with every placement and with none', async () => {
    const machines = mkdtempSync(join(tmpdir(), 'tributary-machines-'));
    try {
      const ways = { hybrid: ['halves'], 'hybrid without placement': ['single'] };
      const trained = await train('auto', 4, { ways, machines, onlyTables: true });
      expect(new Set(trained.map(({ way }) => way)).size).toBe(2);
      for (const one of trained) {
        const c = cases.find(({ name }) => name === one.case)!;
        const what = `${one.case}, ${one.way}, worker ${one.rank}`;
        expect(difference(c, 4, one), what).toBeUndefined();
      }
    } finally {
      rmSync(machines, { recursive: true });
    }
  }, 150_000);

  const clipped = cases.filter(({ clip_global_norm: norm }) => norm !== null);
  it.skipIf(clipped.length === 0)(
    'leave it when each clips its own gradient',
    async () => {
      const trained = await train('shm', 2, { ways: { collectives: ['single'] }, clipsBefore: true });
      for (const c of clipped) {
        const first = trained.find(({ case: name, rank }) => name === c.name && rank === 0)!;
        expect(difference(c, 2, first)).toBeDefined();
      }
    },
    100_000,
  );
});
