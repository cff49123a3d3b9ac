/** `tributary train` by learner processes: what it writes, stops and resumes is as with one, and each takes over from the other. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { buildModel } from '../../src/cli/build-model.ts';
import { loadConfigFile } from '../../src/cli/config-file.ts';
import { taskSource } from '../../src/cli/learner-run.ts';
import { buildTask } from '../../src/cli/learner-task.ts';
import { measureLearners } from '../../src/cli/learner-trial.ts';
import { runCommand } from '../../src/cli/run-command.ts';
import { loadTask } from '../../src/cli/task.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { fakeIo, run } from './fake-io.ts';
import { parse, type ProgramEvent } from './program.ts';
import { rows, writeTinyRun } from './tiny-run.ts';
import { segmentFiles } from '../support/segment-files.ts';

const folder = temporaryFolders();
const BATCHES = 75;
const larger = { train: rows(8 * BATCHES, 1) };

afterEach(() => {
  const left = segmentFiles().filter((name) => name.includes(`learners-${process.pid}-`));
  expect(left).toEqual([]);
});

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
    const train = (...args: string[]) =>
      run(['train', 'tiny.json', '--output', 'out', '--json', ...args], { cwd });

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
    expect(metricsIn(cwd, 'out').epochs.map(({ epoch }) => epoch)).toEqual([1, 2, 3, 4, 5]);
    expect(metricsIn(cwd, 'out').final).toMatchObject({ learners: 2, mode: 'server locked' });
    const stored = JSON.parse(readFileSync(join(cwd, 'out', 'config.json'), 'utf8')) as unknown;
    expect(stored).toMatchObject({ on: { learners: 2, update: 'locked', appliedBy: 'server' } });

    const otherSeed = await train('--resume', '--learners', '2', '--seed', '9');
    expect(otherSeed.code).toBe(1);
    expect(otherSeed.stdout).toContain('CHECKPOINT_MISMATCH');
  });

  test('stopped in the middle of an epoch keeps a checkpoint; one learner finishes the batches that are left', async () => {
    const cwd = folder();
    const batches = 1000;
    const model = { name: 'text-cnn', size: 32, widths: [2, 3, 4], filters: 64 };
    writeTinyRun(cwd, {
      train: rows(8 * batches, 1),
      config: { epochs: 1, model, checkpointEverySteps: 50 },
    });
    const controller = new AbortController();
    const io = fakeIo({ cwd, isTerminal: true, signal: controller.signal });
    const ended = runCommand(['train', 'tiny.json', '--output', 'cut', '--learners', '2'], io);
    await vi.waitFor(() => expect(io.written.terminal).toMatch(/ [1-9]\d?% /), {
      ...{ timeout: 20_000, interval: 10 },
    });
    controller.abort('SIGINT');
    expect(await ended, io.written.stderr).toBe(130);
    const [, stopped] = /^Stopped at step (\d+); the checkpoint is cut/m.exec(io.written.stdout)!;
    expect(Number(stopped)).toBeGreaterThan(0);
    expect(Number(stopped)).toBeLessThan(batches);
    expect(existsSync(join(cwd, 'cut', 'model.onnx'))).toBe(false);

    const counted = await run(['train', 'cut', '--resume', '--max-steps', '5'], { cwd });
    expect(counted.stderr).toContain('Leave out --max-steps');
    const otherBatch = await run(['train', 'cut', '--resume', '--batch-size', '4'], { cwd });
    expect(otherBatch.stderr).toContain('error [CHECKPOINT_MISMATCH]');
    expect(otherBatch.stderr).toContain('batches of 8, this run has 4');

    const resumed = await run(['train', 'cut', '--resume', '--learners', '1', '--json'], { cwd });
    expect(resumed.code, resumed.stderr).toBe(0);
    const told = events(resumed.stdout);
    expect(told.find(({ type }) => type === 'resumed')?.['step']).toBe(Number(stopped));
    expect(told.at(-1)).toMatchObject({ type: 'finished', steps: batches, accuracy: 1 });
    const kept = told.filter(({ type }) => type === 'checkpoint').map(({ step }) => Number(step));
    expect(kept.length).toBeGreaterThan(1);
    expect(kept.at(-1)).toBe(batches);
    const between = kept.slice(0, -1).map((step, i) => step - (kept[i - 1] ?? Number(stopped)));
    // The batch that is being applied when a checkpoint is due is not in it.
    expect(Math.min(...between)).toBeGreaterThanOrEqual(50 - 1);
  });

  test('is measured by a trial that leaves nothing behind', async () => {
    const cwd = folder();
    const config = await loadConfigFile(writeTinyRun(cwd, larger), cwd);
    const task = loadTask(config.data, config.seed);
    const built = buildModel(config, task);
    const { signal } = new AbortController();
    const options = { task: { config }, built, train: task.train, signal, startMs: 60_000 };
    for (const team of [
      { learners: 1 },
      { learners: 2 },
      { learners: 2, mode: 'server lock-free' },
    ] as const) {
      const measured = await measureLearners(team, options);
      expect(measured?.samplesPerSec).toBeGreaterThan(0);
    }
    expect(readdirSync(cwd).sort()).toEqual(['test.csv', 'tiny.json', 'train.csv']);
    expect(
      await measureLearners({ learners: 1 }, { ...options, signal: AbortSignal.abort() }),
    ).toBeUndefined();
  });

  test('uses what its process has loaded; other processes are told the configuration only', async () => {
    const cwd = folder();
    const config = await loadConfigFile(writeTinyRun(cwd), cwd);
    const first = buildTask({ config });
    const data = { config, loaded: () => first };
    const [again, trial] = [buildTask(data), buildTask({ ...data, isTrial: true })];
    expect(again).toEqual(first);
    for (const { model, train } of [again, trial]) {
      expect([model === first.model, train === first.train]).toEqual([true, true]);
    }
    expect(trial.test).toBeUndefined();
    const sent = JSON.parse(JSON.stringify(taskSource(data))) as unknown;
    expect(sent).toEqual(JSON.parse(JSON.stringify(taskSource({ config }))));
  });

  test('does not go on from the middle of an epoch of one learner, and says what does', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    const stopped = await run(['train', 'tiny.json', '--max-steps', '5', '--learners', '2'], { cwd });
    expect(stopped.code).toBe(0);
    expect(stopped.stdout).toMatch(/^1 learner: a run that stops after so many steps/m);
    const refused = await run(['train', 'tiny.json', '--resume', '--learners', '2'], { cwd });
    expect(refused.code).toBe(1);
    expect(refused.stderr).toContain('error [CHECKPOINT_MISMATCH]');
    expect(refused.stderr).toContain('in the middle of epoch 1');
    expect(refused.stderr).toContain('--learners 1');
    const auto = await run(['train', 'tiny.json', '--resume', '--learners', 'auto'], { cwd });
    expect(auto.code).toBe(0);
    expect(auto.stdout).toContain('Done: accuracy');
  });
});
