/** One run folder is trained by one process at a time, and nothing that is left of a dead one is in the way. */
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { start } from './program.ts';
import { rows, writeTinyRun } from './tiny-run.ts';

const LOCK_FILE = 'training.lock';
const folder = temporaryFolders();
const slow = { train: rows(600, 1), config: { epochs: 40, checkpointEverySteps: 50 } };

// Elsewhere files cannot be locked.
describe.skipIf(process.platform !== 'linux')('the lock of a run folder', () => {
  test('keeps a second training out, which changes nothing, and goes with an owner that is killed', async () => {
    const cwd = folder();
    writeTinyRun(cwd, slow);
    const owner = start(['train', 'tiny.json', '--json'], cwd);
    await owner.waitFor('checkpoint');
    const config = readFileSync(join(cwd, 'runs', 'tiny', 'config.json'), 'utf8');
    for (const how of [[], ['--resume'], ['--overwrite']]) {
      const { code, stderr } = await run(['train', 'tiny.json', '--epochs', '1', ...how], { cwd });
      expect(stderr).toBe(
        `error [OUTPUT_EXISTS]: ${join(cwd, 'runs', 'tiny')} is being trained by process ${owner.child.pid}; give another --output, or wait.\n`,
      );
      expect(code).toBe(2);
    }
    expect(readFileSync(join(cwd, 'runs', 'tiny', 'config.json'), 'utf8')).toBe(config);
    owner.child.kill('SIGKILL');
    expect((await owner.ended).signal).toBe('SIGKILL');
    expect(existsSync(join(cwd, 'runs', 'tiny', LOCK_FILE))).toBe(true);
    const next = await run(['train', 'runs/tiny', '--resume', '--max-steps', '1'], { cwd });
    expect(next.code, next.stderr).toBe(0);
    expect(existsSync(join(cwd, 'runs', 'tiny', LOCK_FILE))).toBe(false);
  });

  test('ends with a run that fails, is refused or is stopped', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    const controller = new AbortController();
    controller.abort('SIGINT');
    const stopped = await run(['train', 'tiny.json'], { cwd, signal: controller.signal });
    const refused = await run(['train', 'tiny.json'], { cwd });
    const failed = await run(['train', 'tiny.json', '--overwrite', '--lr', '1e30'], { cwd });
    expect([stopped.code, refused.code, failed.code]).toEqual([130, 2, 1]);
    expect(refused.stderr).toContain('is not empty');
    expect(readdirSync(join(cwd, 'runs', 'tiny'))).not.toContain(LOCK_FILE);
  });
});

test('files of a run are never written through a symbolic link of a folder that somebody else made', async () => {
  const cwd = folder();
  writeTinyRun(cwd, { config: { epochs: 1 } });
  const victim = join(cwd, 'victim');
  writeFileSync(victim, 'keep');
  const output = join(cwd, 'run');
  mkdirSync(output);
  for (const name of ['config.json.writing', 'metrics.json.writing', 'model.onnx.writing', 'metrics.json'])
    symlinkSync(victim, join(output, name));
  const { code, stderr } = await run(['train', 'tiny.json', '--output', 'run', '--overwrite'], { cwd });
  expect(code, stderr).toBe(0);
  expect(readFileSync(victim, 'utf8')).toBe('keep');
  expect(readdirSync(output).filter((name) => name.endsWith('.writing'))).toEqual([]);
});

test('a training whose output nobody reads any more goes on to its end', async () => {
  const cwd = folder();
  writeTinyRun(cwd, { ...slow, config: { epochs: 10 } });
  const program = start(['train', 'tiny.json', '--json'], cwd);
  await program.waitFor('run');
  const { child } = program;
  child.stdout!.destroy();
  child.stderr!.destroy();
  expect(await once(child, 'exit')).toEqual([0, null]);
  expect(existsSync(join(cwd, 'runs', 'tiny', 'model.onnx'))).toBe(true);
});
