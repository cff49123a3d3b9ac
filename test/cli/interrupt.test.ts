import { existsSync, readdirSync, readFileSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { parse, start, type Program } from './program.ts';
import { rows, writeTinyRun } from './tiny-run.ts';

const folder = temporaryFolders();
const STEPS = 1500;
const slow = { train: rows(600, 1), config: { epochs: 20, checkpointEverySteps: 50, movingAverage: 0.99 } };

/** Starts a run and gives it once it has written a checkpoint; by far the larger part is still ahead. */
async function underWay(cwd: string): Promise<Program> {
  const program = start(['train', 'tiny.json', '--output', 'cut', '--json'], cwd);
  await program.waitFor('checkpoint');
  return program;
}

function stepsIn(cwd: string, output: string): number[] {
  return readdirSync(join(cwd, output, 'checkpoints')).map((name) => Number(/^step-(\d+)/.exec(name)?.[1]));
}

function lastCheckpoint(cwd: string, output: string): Buffer[] {
  const path = join(cwd, output, 'checkpoints', `step-${String(STEPS).padStart(8, '0')}`);
  return ['model.safetensors', 'optimizer.safetensors'].map((file) => readFileSync(join(path, file)));
}

/** Resumes and proves that nothing shows the interruption; gives the events of the resumed part. */
async function expectSameAsUninterrupted(cwd: string) {
  const resumed = await start(['train', 'cut', '--resume', '--json'], cwd).ended;
  expect(resumed.code, resumed.stderr).toBe(0);
  expect((await run(['train', 'tiny.json', '--output', 'whole'], { cwd })).code).toBe(0);
  const [mine, whole] = [lastCheckpoint(cwd, 'cut'), lastCheckpoint(cwd, 'whole')];
  mine.forEach((bytes, i) => expect(bytes.equals(whole[i]!)).toBe(true));
  expect(
    readFileSync(join(cwd, 'cut', 'model.onnx')).equals(readFileSync(join(cwd, 'whole', 'model.onnx'))),
  ).toBe(true);
  const epochs = (output: string) =>
    JSON.parse(readFileSync(join(cwd, output, 'metrics.json'), 'utf8')) as { epochs: { step: number }[] };
  expect(epochs('cut').epochs.map(({ step }) => step)).toEqual(
    epochs('whole').epochs.map(({ step }) => step),
  );
  return resumed.lines.map(parse);
}

describe('a run that is cut off', () => {
  test.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)(
    'by %s stops with a checkpoint and exit code %i, and goes on bit for bit',
    async (signal, code) => {
      const cwd = folder();
      writeTinyRun(cwd, slow);
      const program = await underWay(cwd);
      program.child.kill(signal);
      const ended = await program.ended;
      expect(ended.code).toBe(code);
      const interrupted = parse(ended.lines.at(-1)!);
      expect(interrupted.type).toBe('interrupted');
      expect(interrupted['step']).toBeLessThan(STEPS);
      expect(stepsIn(cwd, 'cut')).toContain(interrupted['step']);
      expect(existsSync(join(cwd, 'cut', 'model.onnx'))).toBe(false);
      const events = await expectSameAsUninterrupted(cwd);
      expect(events.find(({ type }) => type === 'resumed')?.['step']).toBe(interrupted['step']);
    },
  );

  test('by kill -9 goes on bit for bit from its last checkpoint', async () => {
    const cwd = folder();
    writeTinyRun(cwd, slow);
    const program = await underWay(cwd);
    program.child.kill('SIGKILL');
    expect((await program.ended).signal).toBe('SIGKILL');
    const newest = Math.max(...stepsIn(cwd, 'cut').filter(Number.isFinite));
    expect(newest).toBeLessThan(STEPS);
    const events = await expectSameAsUninterrupted(cwd);
    expect(events.find(({ type }) => type === 'resumed')?.['step']).toBe(newest);
  });

  test('whose newest checkpoint is truncated goes on from the one before and says so', async () => {
    const cwd = folder();
    writeTinyRun(cwd, { config: { epochs: 4, checkpointEverySteps: 3 } });
    expect((await run(['train', 'tiny.json', '--output', 'cut', '--max-steps', '20'], { cwd })).code).toBe(0);
    expect(stepsIn(cwd, 'cut').sort((a, b) => a - b)).toEqual([18, 20]);
    truncateSync(join(cwd, 'cut', 'checkpoints', 'step-00000020', 'model.safetensors'), 100);
    const evaluated = await run(['evaluate', 'cut', '--json'], { cwd });
    expect(evaluated.stderr).toMatch(/Skipped the checkpoint .*step-00000020: /);
    expect(JSON.parse(evaluated.stdout)).toMatchObject({ step: 18 });
    const resumed = await run(['train', 'tiny.json', '--output', 'cut', '--resume'], { cwd });
    expect(resumed.code).toBe(0);
    expect(resumed.stdout).toMatch(/Skipped the checkpoint .*step-00000020: .*model\.safetensors/);
    expect(resumed.stdout).toMatch(/Resumed from .*step-00000018 at step 18\./);
    expect((await run(['train', 'tiny.json', '--output', 'whole'], { cwd })).code).toBe(0);
    const bytes = (output: string) =>
      readFileSync(join(cwd, output, 'checkpoints', 'step-00000032', 'model.safetensors'));
    expect(bytes('cut').equals(bytes('whole'))).toBe(true);
  });

  test('in words says where the checkpoint is and how to go on', async () => {
    const cwd = folder();
    writeTinyRun(cwd, slow);
    const controller = new AbortController();
    controller.abort('SIGINT');
    const { code, stdout } = await run(['train', 'tiny.json'], { cwd, signal: controller.signal });
    expect(code).toBe(130);
    expect(stdout).toContain('Stopped at step 0; the checkpoint is runs/tiny/checkpoints/step-00000000.');
    expect(stdout).toContain('Go on with: npx tributary train runs/tiny --resume');
  });
});
