/** `tributary train` by learner processes: what it writes, stops and resumes is as with one, and each takes over from the other. */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { programOf } from '../support/test-program.ts';
import { segmentFiles } from '../support/segment-files.ts';
import { run } from './fake-io.ts';
import { parse, start, type ProgramEvent } from './program.ts';
import { rows, writeTinyRun } from './tiny-run.ts';

const folder = temporaryFolders();
const BATCHES = 75;
const larger = { train: rows(8 * BATCHES, 1) };

/** Learners run the program from its beginning, so it is one of its own. */
async function program(args: readonly string[], cwd: string) {
  const started = start(['train', ...args], cwd);
  const ended = await started.ended;
  const left = segmentFiles().filter((name) => name.includes(`learners-${started.child.pid}-`));
  expect(left).toEqual([]);
  return { ...ended, stdout: ended.lines.join('\n') };
}

const events = (stdout: string): ProgramEvent[] => stdout.trimEnd().split('\n').map(parse);
const metricsIn = (cwd: string, output: string) =>
  JSON.parse(readFileSync(join(cwd, output, 'metrics.json'), 'utf8')) as {
    epochs: { epoch: number; step: number }[];
    final: Record<string, unknown>;
  };

describe.skipIf(!hasSharedMemory())('a run by learners', () => {
  test('leaves what a run by one leaves, and either goes on where the other ended an epoch', async () => {
    const cwd = folder();
    const config = { epochs: 6, movingAverage: 0.9, clipGlobalNorm: 5, schedule: undefined };
    writeTinyRun(cwd, { ...larger, config });
    const train = (...args: string[]) => program(['tiny.json', '--output', 'out', '--json', ...args], cwd);

    const first = await train('--learners', '2', '--epochs', '3');
    expect(first.code, first.stderr).toBe(0);
    const told = events(first.stdout);
    expect(told.slice(0, 3).map(({ type }) => type)).toEqual(['run', 'learners', 'started']);
    expect(told[1]).toMatchObject({ learners: 2, mode: 'direct lock-free' });
    expect(told[2]).toMatchObject({ step: 0, totalSteps: 3 * BATCHES });
    expect(told.filter(({ type }) => type === 'epoch').map(({ epoch }) => epoch)).toEqual([1, 2, 3]);
    expect(told.at(-1)).toMatchObject({ type: 'finished', steps: 3 * BATCHES, learners: 2 });
    expect(readdirSync(join(cwd, 'out')).sort()).toEqual([
      ...['checkpoints', 'config.json', 'labels.json', 'metrics.json', 'model.onnx', 'vocabulary.json'],
    ]);
    const { epochs, final } = metricsIn(cwd, 'out');
    expect(epochs.map(({ epoch, step }) => [epoch, step])).toEqual(
      [1, 2, 3].map((epoch) => [epoch, epoch * BATCHES]),
    );
    expect(final).toMatchObject({ learners: 2, mode: 'direct lock-free', accuracy: 1 });
    expect(final['meanStaleness']).toBeGreaterThanOrEqual(0);
    expect(first.stderr).toBe('');
    const evaluated = await run(['evaluate', 'out', '--json'], { cwd });
    const { loss } = JSON.parse(evaluated.stdout) as { loss: number };
    // By the moving average, which learners keep as one does.
    expect(loss).toBeCloseTo(final['loss'] as number, 5);

    const byOne = await train('--resume', '--learners', '1', '--epochs', '4');
    expect(byOne.code, byOne.stderr).toBe(0);
    const byTwo = await train('--resume', '--learners', '2', '--mode', 'server locked', '--epochs', '5');
    expect(byTwo.code, byTwo.stderr).toBe(0);
    for (const [result, epoch] of [
      [byOne, 4],
      [byTwo, 5],
    ] as const) {
      const resumed = events(result.stdout).find(({ type }) => type === 'resumed');
      expect(resumed).toMatchObject({ step: (epoch - 1) * BATCHES });
      expect(events(result.stdout).at(-1)).toMatchObject({ steps: epoch * BATCHES, accuracy: 1 });
    }
    const carried = (result: { stdout: string }) =>
      events(result.stdout).find(({ type }) => type === 'note')?.['note'];
    expect(carried(byOne)).toMatch(
      /was made by 2 learners\. Carried over to one process: parameters, states/,
    );
    expect(carried(byTwo)).toMatch(/was made by one process\. Carried over to 2 learners: parameters/);
    expect(metricsIn(cwd, 'out').epochs.map(({ epoch }) => epoch)).toEqual([1, 2, 3, 4, 5]);
    expect(metricsIn(cwd, 'out').final).toMatchObject({ learners: 2, mode: 'server locked' });
    const stored = JSON.parse(readFileSync(join(cwd, 'out', 'config.json'), 'utf8')) as unknown;
    expect(stored).toMatchObject({ on: { learners: 2, update: 'locked', appliedBy: 'server' } });

    const otherSeed = await train('--resume', '--learners', '2', '--seed', '9');
    expect(otherSeed.code).toBe(1);
    expect(otherSeed.stdout).toContain('CHECKPOINT_MISMATCH');
  });

  test('stopped in the middle of an epoch keeps a checkpoint; others finish the batches that are left', async () => {
    const cwd = folder();
    const batches = 1000;
    const model = { name: 'text-cnn', size: 32, widths: [2, 3, 4], filters: 64 };
    writeTinyRun(cwd, {
      train: rows(8 * batches, 1),
      config: { epochs: 1, model, checkpointEverySteps: 50 },
    });
    const cut = start(['train', 'tiny.json', '--output', 'cut', '--learners', '2', '--json'], cwd);
    await cut.waitFor('checkpoint');
    cut.child.kill('SIGINT');
    const interrupted = await cut.ended;
    expect(interrupted.code, interrupted.stderr).toBe(130);
    const { type, step } = parse(interrupted.lines.at(-1)!);
    expect(type).toBe('interrupted');
    const stopped = Number(step);
    expect(stopped).toBeGreaterThanOrEqual(50 - 1);
    expect(stopped).toBeLessThan(batches);
    expect(existsSync(join(cwd, 'cut', 'model.onnx'))).toBe(false);

    const otherBatch = await program(['cut', '--resume', '--batch-size', '4'], cwd);
    expect(otherBatch.stderr).toContain('error [CHECKPOINT_MISMATCH]');
    expect(otherBatch.stderr).toContain('batchSize 8; this run has batchSize 4');

    // Each goes on within the epoch: learners up to a step, workers, and one process, which ends it.
    const ends = [stopped + 100, stopped + 200, batches] as const;
    const ways = [
      ['--learners', '2', '--mode', 'server lock-free', '--max-steps', String(ends[0])],
      ['--workers', '2', '--max-steps', String(ends[1])],
      ['--learners', '1'],
    ] as const;
    for (const [i, way] of ways.entries()) {
      const resumed = await program(['cut', '--resume', '--json', ...way], cwd);
      expect(resumed.code, resumed.stderr).toBe(0);
      const told = events(resumed.stdout);
      expect(told.find((event) => event.type === 'resumed')?.['step']).toBe(ends[i - 1] ?? stopped);
      expect(told.at(-1)).toMatchObject({ type: 'finished', steps: ends[i] });
      const kept = told.filter((event) => event.type === 'checkpoint').map((event) => Number(event['step']));
      expect(kept.at(-1)).toBe(ends[i]);
    }
    expect(metricsIn(cwd, 'cut').final).toMatchObject({ steps: batches, accuracy: 1 });
  }, 120_000);

  test('goes on within an epoch of one process, in the order that this one has', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    expect((await run(['train', 'tiny.json', '--max-steps', '5'], { cwd })).code).toBe(0);
    const resumed = await program(['tiny.json', '--resume', '--learners', '2'], cwd);
    expect(resumed.code, resumed.stderr).toBe(0);
    expect(resumed.stdout).toMatch(/step-00000005 was made by one process\. Carried over to 2 learners: /);
    expect(resumed.stdout).toMatch(/11 steps \(16 in all\)/);
  });

  test('has a model that is a function, with all that it refers to', async () => {
    const cwd = folder();
    writeTinyRun(cwd, larger);
    const tiny = JSON.parse(readFileSync(join(cwd, 'tiny.json'), 'utf8')) as object;
    writeFileSync(
      join(cwd, 'own.ts'),
      `import { textCnn } from 'tributary';
const size: number = [4, 4].reduce((a, b) => a + b);
export default {
  ...${JSON.stringify({ ...tiny, on: { learners: 2 }, model: undefined })},
  model: (facts: object) => textCnn({ ...facts, size, widths: [2, 3], filters: 8 } as never),
};
`,
    );
    const { code, stderr, stdout } = await program(['own.ts', '--output', 'own', '--json'], cwd);
    expect(code, stderr).toBe(0);
    expect(events(stdout).at(-1)).toMatchObject({ type: 'finished', learners: 2, accuracy: 1 });
  });

  test('is measured by a trial that leaves nothing behind', () => {
    const cwd = folder();
    const config = writeTinyRun(cwd, larger);
    const trial = fileURLToPath(new URL('./learner-trial-program.ts', import.meta.url));
    const { stdout, stderr, pid } = spawnSync(process.execPath, [...programOf(trial), config], {
      ...{ encoding: 'utf8', timeout: 100_000 },
    });
    expect(stderr).toBe('');
    const { speeds, isStopped } = JSON.parse(stdout) as { speeds: number[]; isStopped: boolean };
    expect(speeds).toHaveLength(3);
    for (const speed of speeds) expect(speed).toBeGreaterThan(0);
    expect(isStopped).toBe(true);
    expect(readdirSync(cwd).sort()).toEqual(['test.csv', 'tiny.json', 'train.csv']);
    expect(segmentFiles().filter((name) => name.includes(`learners-${pid}-`))).toEqual([]);
  }, 110_000);
});
