/**
 * A run folder is data: what its configuration names is not run unless the user says so. Each test has a file or a command in the
 * folder that leaves a mark where it runs.
 */
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { resolveResources } from '../../src/runner/resources.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { writeTinyRun } from './tiny-run.ts';

const folder = temporaryFolders();

/** A model that leaves a mark when its file is run. */
function modelFile(mark: string): string {
  return `import { writeFileSync } from 'node:fs';
    import { textCnn } from 'tributary';
    writeFileSync(${JSON.stringify(mark)}, '');
    export default {
      model: (facts) => textCnn({ ...facts, size: 8, widths: [2], filters: 4 }),
      data: { kind: 'text-csv', train: 'train.csv', test: 'test.csv' },
      batchSize: 8, epochs: 1, learners: 1,
    };`;
}

/** A run in runs/mine of a model that is a function in mine.config.ts; the mark of its training is removed. */
async function runWithFunction() {
  const cwd = folder();
  writeTinyRun(cwd);
  const file = join(cwd, 'mine.config.ts');
  const mark = (name: string) => join(cwd, name);
  writeFileSync(file, modelFile(mark('own')));
  const trained = await run(['train', 'mine.config.ts'], { cwd });
  expect(trained.code, trained.stderr).toBe(0);
  // As if it came from elsewhere: its configuration names another file.
  const elsewhere = join(cwd, 'elsewhere.ts');
  writeFileSync(elsewhere, modelFile(mark('foreign')));
  const stored = join(cwd, 'runs', 'mine', 'config.json');
  const config = JSON.parse(readFileSync(stored, 'utf8')) as { model: { config: string } };
  expect(config.model).toEqual({ config: file });
  writeFileSync(stored, JSON.stringify({ ...config, model: { config: elsewhere } }));
  return { cwd, file, elsewhere, trained, hasRun: (name: string) => existsSync(mark(name)) };
}

describe('a model that is a function in a file which the run folder names', () => {
  test.each([
    ['predict', 'runs/mine', 'owl'],
    ['evaluate', 'runs/mine'],
    ['export', 'runs/mine'],
    ['train', 'runs/mine', '--resume'],
    ['train', 'runs/mine/config.json', '--resume'],
    ['plan', 'runs/mine', '--workers', '1'],
  ])('is not run by %s %s', async (...argv) => {
    const { cwd, elsewhere, hasRun } = await runWithFunction();
    const { code, stderr } = await run(argv, { cwd });
    expect(stderr).toContain('error [CODE_NOT_TRUSTED]');
    expect(stderr).toContain(elsewhere);
    expect(stderr).toContain('--trust');
    expect(code).toBe(2);
    expect(hasRun('foreign')).toBe(false);
  });

  test('is run with --trust', async () => {
    const { cwd, hasRun } = await runWithFunction();
    const { code, stderr } = await run(['predict', 'runs/mine', 'owl', '--trust'], { cwd });
    expect(code, stderr).toBe(0);
    expect(hasRun('foreign')).toBe(true);
    expect((await run(['train', 'runs/mine', '--resume', '--trust'], { cwd })).code).toBe(0);
  });

  test('comes from the file of the user where one is given', async () => {
    const { cwd, hasRun } = await runWithFunction();
    for (const command of [
      ['predict', 'runs/mine', 'owl'],
      ['evaluate', 'runs/mine'],
      ['export', 'runs/mine'],
    ]) {
      const { code, stderr } = await run([...command, '--config', 'mine.config.ts'], { cwd });
      expect(code, stderr).toBe(0);
    }
    expect((await run(['train', 'mine.config.ts', '--resume'], { cwd })).code).toBe(0);
    expect(hasRun('foreign')).toBe(false);
  });

  test('is named in the commands that a run suggests', async () => {
    const { trained } = await runWithFunction();
    expect(trained.stdout).toContain('npx tributary predict runs/mine "your text" --trust');
  });

  test('is needed: --config is refused for a model of the catalogue', async () => {
    const { cwd } = await runWithFunction();
    await run(['train', 'tiny.json'], { cwd });
    const { code, stderr } = await run(['predict', 'runs/tiny', 'owl', '--config', 'mine.config.ts'], {
      cwd,
    });
    expect([code, stderr]).toEqual([2, expect.stringContaining('Leave out --config')]);
  });
});

describe('machines in a configuration that is JSON', () => {
  async function runWithMachines(on: (mark: string) => unknown) {
    const cwd = folder();
    writeTinyRun(cwd, { config: { epochs: 1 } });
    expect((await run(['train', 'tiny.json'], { cwd })).code).toBe(0);
    const stored = join(cwd, 'runs', 'tiny', 'config.json');
    const config = JSON.parse(readFileSync(stored, 'utf8')) as object;
    const mark = join(cwd, 'mark');
    writeFileSync(stored, JSON.stringify({ ...config, on: on(mark) }));
    return { cwd, mark };
  }
  const machines = (mark: string) => ({
    machines: [
      { name: 'a', address: '127.0.0.1' },
      { name: 'b', command: ['/bin/sh', '-c', `touch ${mark}; exit 3`] },
    ],
  });

  test('start no command', async () => {
    const { cwd, mark } = await runWithMachines(machines);
    const { code, stderr } = await run(['train', 'runs/tiny', '--resume', '--epochs', '2'], { cwd });
    expect(stderr).toContain('error [CODE_NOT_TRUSTED]');
    expect(stderr).toContain('machines');
    expect(code).toBe(2);
    expect(existsSync(mark)).toBe(false);
    // Nothing is asked of the machines by these.
    expect((await run(['predict', 'runs/tiny', 'owl'], { cwd })).code).toBe(0);
    const alone = await run(['train', 'runs/tiny', '--resume', '--epochs', '2', '--workers', '1'], { cwd });
    expect(alone.code, alone.stderr).toBe(0);
    expect(existsSync(mark)).toBe(false);
  });

  test('start none either if they are in another file', async () => {
    const { cwd, mark } = await runWithMachines((path) => {
      const file = `${path}.json`;
      writeFileSync(file, JSON.stringify(machines(path)));
      return { machines: file };
    });
    const { stderr } = await run(['train', 'runs/tiny', '--resume', '--epochs', '2'], { cwd });
    expect(stderr).toContain('error [CODE_NOT_TRUSTED]');
    expect(existsSync(mark)).toBe(false);
  });

  test('start none from a folder that is named like a file of code', async () => {
    const { cwd, mark } = await runWithMachines(machines);
    renameSync(join(cwd, 'runs', 'tiny'), join(cwd, 'tiny.ts'));
    const { stderr } = await run(['train', 'tiny.ts', '--resume', '--epochs', '2'], { cwd });
    expect(stderr).toContain('error [CODE_NOT_TRUSTED]');
    expect(existsSync(mark)).toBe(false);
  });

  test('are used with --trust', async () => {
    const { cwd, mark } = await runWithMachines(machines);
    const { stderr } = await run(['train', 'runs/tiny', '--resume', '--epochs', '2', '--trust'], { cwd });
    expect(stderr).not.toContain('CODE_NOT_TRUSTED');
    expect(existsSync(mark)).toBe(true);
  });

  test('have names that ssh cannot take for options', () => {
    const named = (name: string) => () =>
      resolveResources({ machines: [{ name: 'a', address: '127.0.0.1' }, { name }] });
    expect(named('-oProxyCommand=touch mark')).toThrow(/machines\.1\.name.*begin/);
    expect(named('b')).not.toThrow();
  });
});

test('a run cannot be named as the folder above', async () => {
  for (const name of ['.', '..']) {
    const cwd = folder();
    writeTinyRun(cwd, { config: { name } });
    const { code, stderr } = await run(['train', 'tiny.json', '--overwrite'], { cwd });
    expect([code, stderr]).toEqual([2, expect.stringContaining('the field name is')]);
  }
});
