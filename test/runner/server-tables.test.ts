/**
 * Tables that live on servers only: a run has the losses, the evaluation and the checkpoints, bit by bit,
 * of one whose workers have the tables, and goes on from checkpoints of either kind.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import * as g from '../../src/graph/index.ts';
import { fit, type FitEvent, type FitOptions, type Workers } from '../../src/runner/index.ts';
import { evaluate, loadCheckpoint, type Evaluation } from '../../src/runtime/index.ts';
import { resolveOn } from '../../src/runner/on.ts';
import { serverTablesOf } from '../../src/runner/server-tables.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { programOf } from '../support/test-program.ts';
import { segmentFiles } from '../support/segment-files.ts';
import { SIZE, WORDS, wordsModel, wordsRun, type WordsOptions } from './words.ts';
import { withoutWaits } from '../support/worker-output.ts';

const PROGRAM = fileURLToPath(new URL('./server-tables-program.ts', import.meta.url));
const folder = temporaryFolders();
const FILES = ['model.safetensors', 'optimizer.safetensors'];
const TABLES = ['words'];
/** Two machines as far as Tributary knows, so that there are two servers. */
const TWO_MACHINES = {
  machines: [
    { name: 'first', workers: 1, address: '127.0.0.1' },
    { name: 'second', workers: 1, command: ['env'], address: '127.0.0.1' },
  ],
};

interface Outcome {
  readonly steps: number;
  readonly evaluation: Evaluation;
  readonly checkpointPath: string;
  readonly events: readonly FitEvent[];
  readonly elements: number;
  readonly refused: readonly string[];
}

type Options = Omit<Partial<FitOptions>, 'on'> & {
  readonly on?: Workers;
  readonly model?: WordsOptions;
  readonly use?: 'runner';
};

function run<T = Outcome>({ on = { workers: 2 }, ...options }: Options): T {
  const { stdout, stderr, status, pid } = spawnSync(
    process.execPath,
    [
      ...programOf(PROGRAM),
      JSON.stringify({ ...options, on: { strategy: 'parallax', merging: 'single', ...on } }),
    ],
    { encoding: 'utf8' },
  );
  expect({ status, stderr: withoutWaits(stderr) }).toEqual({ status: 0, stderr: '' });
  expect(segmentFiles().filter((name) => name.includes(`replica-${pid}-`))).toEqual([]);
  return JSON.parse(stdout) as T;
}

function epochsOf({ events }: Outcome): object[] {
  return events.flatMap((event) => (event.type === 'epoch' ? [event] : []));
}

function expectSameFiles(actual: string, expected: string): void {
  expect(basename(actual)).toBe(basename(expected));
  for (const file of FILES) {
    expect(readFileSync(join(actual, file)).equals(readFileSync(join(expected, file))), file).toBe(true);
  }
}

/** A run takes a few seconds, and there may be much else to do for the processors. */
const DEADLINE_MS = 600_000;

describe('a run whose table is on servers only', { timeout: DEADLINE_MS }, () => {
  it.each<[string, Options]>([
    ['Adam, in each row as a dense update', {}],
    [
      'momentum, in touched rows only',
      { optimizer: { name: 'sgd', lr: 0.1, momentum: 0.9 }, sparseUpdates: 'lazy' },
    ],
    ['clipping, on two servers', { model: { clips: true }, on: TWO_MACHINES }],
    [
      'SGD, with servers for all parameters',
      { optimizer: { name: 'sgd', lr: 0.1 }, on: { workers: 2, strategy: 'servers' } },
    ],
  ])('has the bits of one whose workers have it: %s', (_, options) => {
    const given = options;
    const local = run({ ...given, serverTables: [], checkpointDirectory: folder() });
    const remote = run({ ...given, serverTables: TABLES, checkpointDirectory: folder() });
    expect(local.elements).toBe(WORDS * SIZE);
    // Of eight samples: five words each, and the last one again, by another input.
    expect(remote.elements).toBe(8 * 6 * SIZE);
    expect(remote.steps).toBe(30);
    expect(remote.evaluation).toEqual(local.evaluation);
    expect(epochsOf(remote)).toEqual(epochsOf(local));
    expectSameFiles(remote.checkpointPath, local.checkpointPath);
    expect(local.refused).toEqual(['none', 'none']);
    expect(remote.refused[0]).toMatch(/^words was on servers only \(serverTables\).*runner\.evaluate before/);
    expect(remote.refused[1]).toMatch(/^words is on servers only \(serverTables\).*loadCheckpoint/);
  });

  const operations = { limits: true, clips: true, decays: true, averages: true };
  it.each<[string, Options]>([
    ['Adam, in each row as a dense update', {}],
    ['SGD, in each row', { optimizer: { name: 'sgd', lr: 0.1 } }],
    [
      'momentum, in touched rows only, on two servers',
      { optimizer: { name: 'sgd', lr: 0.1, momentum: 0.9 }, sparseUpdates: 'lazy', on: TWO_MACHINES },
    ],
  ])('is clipped by value and norm, decays and is averaged by the servers: %s', async (_, options) => {
    const given = { ...options, model: operations, epochs: 2 };
    const strategy = { ...(options.on ?? { workers: 2 }), strategy: 'servers' as const };
    const inMemory = run({ ...given, on: strategy, serverTables: [], checkpointDirectory: folder() });
    const remote = run({ ...given, on: strategy, serverTables: TABLES, checkpointDirectory: folder() });
    const single = await fit(wordsModel(operations), {
      ...{ ...wordsRun, ...options, on: undefined, epochs: 2, log: () => undefined },
    });
    const { tensors } = single.replica.snapshot();
    for (const { checkpointPath, evaluation } of [inMemory, remote]) {
      const stored = loadCheckpoint(checkpointPath);
      for (const [name, { data }] of Object.entries(tensors)) {
        const actual = stored.tensors[name]!.data as Float32Array;
        const distance = (data as Float32Array).reduce(
          (most, one, i) => Math.max(most, Math.abs(one - actual[i]!)),
          0,
        );
        expect(distance, `${name} of ${checkpointPath}`).toBeLessThan(1e-6);
      }
      expect(evaluation.loss).toBeCloseTo(single.evaluation!.loss, 5);
    }
    await single.close();
    expectSameFiles(remote.checkpointPath, inMemory.checkpointPath);
  });

  it('is evaluated by its average, which servers have', async () => {
    const given = { use: 'runner' as const, model: { averages: true }, epochs: 1 };
    const single = await fit(wordsModel(given.model), { ...wordsRun, epochs: 1 });
    const expected = evaluate(single.replica, wordsRun.test!, { average: 'slow' });
    await single.close();
    for (const [serverTables, on] of [
      [TABLES, { workers: 2 }],
      [TABLES, TWO_MACHINES],
      [[], { workers: 2, strategy: 'servers' }],
    ] as const) {
      const { averaged, after } = run<{ averaged: Evaluation[]; after: Evaluation }>({
        ...{ ...given, on, serverTables, checkpointDirectory: folder() },
      });
      for (const { loss } of averaged) expect(loss).toBeCloseTo(expected.loss, 5);
      expect(after.loss).not.toBeCloseTo(expected.loss, 3);
    }
  });

  it('goes on from a checkpoint, its own or that of workers that have the table, as if never stopped', () => {
    const [whole, local, remote] = [folder(), folder(), folder()];
    const given = { on: { workers: 2 }, epochs: 2, model: operations };
    const expected = run({ ...given, serverTables: [], checkpointDirectory: whole });
    run({ ...given, serverTables: [], checkpointDirectory: local, maxSteps: 13 });
    run({ ...given, serverTables: TABLES, checkpointDirectory: remote, maxSteps: 13 });
    const other = folder();
    cpSync(remote, other, { recursive: true });
    for (const [checkpointDirectory, serverTables] of [
      [local, TABLES],
      [remote, TABLES],
      [other, []],
    ] as const) {
      const resumed = run({ ...given, serverTables, checkpointDirectory, resume: true });
      expect(resumed.events[0]).toMatchObject({ type: 'resumed', step: 13 });
      expect(resumed.evaluation).toEqual(expected.evaluation);
      expectSameFiles(resumed.checkpointPath, expected.checkpointPath);
    }
  });

  it('evaluates what it resumes from when there is nothing more to train', () => {
    const checkpointDirectory = folder();
    const given = { on: { workers: 2 }, serverTables: TABLES, checkpointDirectory };
    const { evaluation } = run(given);
    const again = run({ ...given, resume: true });
    expect(again.evaluation.accuracy).toBe(evaluation.accuracy);
    expect(again.evaluation.loss).toBeCloseTo(evaluation.loss, 6);
  });

  it('evaluates before, between and after steps by a runner, and has no checkpoint before the first', async () => {
    const said = run<{
      before: Evaluation;
      early: string;
      losses: number[];
      after: Evaluation;
      routes: [string, string][];
    }>({ use: 'runner', serverTables: TABLES, checkpointDirectory: folder(), epochs: 1 });
    const single = await fit(wordsModel(), { ...wordsRun, epochs: 1, maxSteps: 10 });
    await single.close();
    expect(said.losses).toHaveLength(10);
    expect(said.after.loss).toBeCloseTo(single.evaluation!.loss, 4);
    expect(said.after.accuracy).toBeCloseTo(single.evaluation!.accuracy!, 2);
    expect(said.before.loss).toBeGreaterThan(0.5);
    expect(said.early).toMatch(/^There is no checkpoint of step 0 yet: words is on servers only/);
    expect(said.routes).toContainEqual(['words', 'server rows']);
  });
});

describe('tables that could live on servers only', () => {
  const config = { optimizer: { name: 'sgd', lr: 1 }, checkpointDirectory: 'checkpoints' } as const;
  const tablesOf = (model: g.Model, { on, ...more }: Partial<FitOptions> = {}, workers = 2) => {
    const resolved = resolveOn(on ?? { workers: 2 }, 'here');
    return [
      ...serverTablesOf(
        model,
        { ...config, ...more },
        workers,
        resolved.kind === 'workers' ? resolved.way : undefined,
      ),
    ];
  };
  function large(rows: number, prepare: (graph: g.Graph) => void = () => undefined): g.Model {
    const graph = new g.Graph();
    const rowsOf = g.embedding(graph.input('ids', [g.N], 'int32'), rows, 512, { name: 'words' });
    const logits = g.linear(rowsOf, 2);
    prepare(graph);
    return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: {} };
  }
  const [JUST_FITS, TOO_LARGE] = [131_072, 131_073];

  it('are those of more than 256 MiB, unless the options say otherwise', () => {
    expect(tablesOf(large(JUST_FITS))).toEqual([]);
    expect(tablesOf(large(TOO_LARGE))).toEqual(['words.table']);
    expect(tablesOf(large(TOO_LARGE), { serverTables: [] })).toEqual([]);
    expect(tablesOf(large(5), { serverTables: ['words.table'] })).toEqual(['words.table']);
  });

  it('stay on workers where that cannot be, and are refused by name where they are asked for', () => {
    const asked = { serverTables: ['words.table'] };
    const custom = (graph: g.Graph) => g.transformGradients(graph, 'halve', (gradient) => gradient);
    const twice = (graph: g.Graph) => {
      g.clipByGlobalNorm(graph, 1);
      g.clipByValue(graph, 1);
      g.clipByGlobalNorm(graph, 1);
    };
    const cases: readonly [g.Model, Partial<FitOptions>, number, RegExp][] = [
      [large(TOO_LARGE), {}, 1, /a run in one process has no servers/],
      [large(TOO_LARGE), { on: { workers: 2, strategy: 'collectives' } }, 2, /'collectives' uses no servers/],
      [large(TOO_LARGE), { on: { workers: 2, mode: 'dist-asgd' } }, 2, /mode 'dist-asgd' have whole tables/],
      [large(TOO_LARGE), { checkpointDirectory: undefined }, 2, /give a checkpointDirectory/],
      [large(TOO_LARGE, twice), {}, 2, /clipped by their norm twice with another operation in between/],
      [large(TOO_LARGE, custom), {}, 2, /halve is an expression that only workers compute/],
      [large(TOO_LARGE, (graph) => g.clipByGlobalNorm(graph, 1, { order: 1 })), {}, 2, /norm of order 1/],
    ];
    for (const [model, more, workers, reason] of cases) {
      expect(tablesOf(model, more, workers)).toEqual([]);
      expect(() => tablesOf(model, { ...more, ...asked }, workers)).toThrow(reason);
      expect(() => tablesOf(model, { ...more, ...asked }, workers)).toThrow(/^words\.table cannot live on/);
    }
    expect(() => tablesOf(large(5), { serverTables: ['word'] })).toThrow(
      /no parameter of this name; its parameters are words\.table/,
    );
    expect(() => tablesOf(large(5), { serverTables: ['linear1.w'] })).toThrow(
      /is read by .*, which is no lookup/,
    );
  });

  it('are refused before any worker is started', async () => {
    const refused = fit(wordsModel(), { ...wordsRun, on: { workers: 2 }, serverTables: TABLES });
    await expect(refused).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', facts: { table: 'words' } });
    const alone = fit(wordsModel(), { ...wordsRun, serverTables: TABLES });
    await expect(alone).rejects.toThrow(/words cannot live on servers only: a run in one process/);
  });
});
