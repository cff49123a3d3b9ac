import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { editDistance, nearest } from '../../src/base/nearest.ts';
import { commands, USAGE_CODES } from '../../src/cli/run-command.ts';
import { run } from './fake-io.ts';

describe('help', () => {
  test('lists every command with its summary and ends well', async () => {
    const { code, stdout, stderr } = await run(['--help']);
    expect(code).toBe(0);
    expect(stderr).toBe('');
    for (const { name, summary } of commands) {
      expect(stdout).toContain(name);
      expect(stdout).toContain(summary);
    }
  });

  test.each(commands.map((command) => [command.name, command] as const))(
    '%s --help shows all options and an example',
    async (name, command) => {
      const { code, stdout } = await run([...name.split(' '), '--help']);
      expect(code).toBe(0);
      expect(stdout).toContain(`Usage: tributary ${name}`);
      for (const option of [...Object.keys(command.options), 'json', 'help'])
        expect(stdout).toContain(`--${option}`);
      expect(stdout).toMatch(/Examples?:\n {2}/);
      expect(stdout).toContain(`  tributary ${name}`);
      expect((await run(['help', ...name.split(' ')])).stdout).toBe(stdout);
    },
  );

  test('without a command goes to standard error with the exit code of wrong usage', async () => {
    const { code, stdout, stderr } = await run([]);
    expect(code).toBe(2);
    expect(stdout).toBe('');
    expect(stderr).toContain('Usage: tributary <command>');
  });

  test('--version prints the version', async () => {
    const { code, stdout } = await run(['--version']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
  });
});

describe('a wrong command line', () => {
  test.each([
    [['trian', 'mnist'], 'There is no command "trian"', 'Did you mean "train"?'],
    [['train', 'mnits'], '"mnits" is neither a file nor an example', 'Did you mean "mnist"?'],
    [['train', 'mnist', '--epoch', '3'], 'has no option --epoch', 'Did you mean "--epochs"?'],
    [['train', 'mnist', '-x'], 'has no option -x', 'tributary train --help'],
    [['train', 'mnist', '--epochs', 'three'], 'a whole number of 0 or more for --epochs', '"three"'],
    [['train', 'mnist', '--epochs', '-1'], 'a whole number of 0 or more for --epochs', '"-1"'],
    [['train', 'mnist', '--lr'], 'needs a value after --lr', ''],
    [
      ['train', 'mnist', '--trace', '--output', 'x'],
      'needs a value after --trace: FILE.json',
      '--output follows',
    ],
    [['plan', 'mnist', '--steps', '0'], 'a whole number above 0 for --steps', 'got 0'],
    [['train', 'mnist', '--lr', 'NaN'], 'a number for --lr', '"NaN"'],
    [['train', 'mnist', '--resume=yes'], 'takes no value for --resume', '"yes"'],
    [['train', 'mnist', '--provider', 'gpu'], 'cpu, webgpu, cuda for --provider', '"gpu"'],
    [['train', 'mnist', '--learners', '0'], 'auto or a whole number from 1 to 254 for --learners', '"0"'],
    [
      ['train', 'mnist', '--mode', 'server lockfree'],
      'server lock-free, server locked for --mode',
      'Did you mean "server lock-free"?',
    ],
    [['train', 'mnist', '--learners', 'two'], 'auto or a whole number from 1 to 254', '"two"'],
    [['train'], 'needs <config.ts | config.json | run folder | example>', 'tributary train --help'],
    [['train', 'a', 'b'], 'at most 1 operand, got 2', ''],
    [['info', 'extra'], 'takes no operands', ''],
    [['bench', 'computer'], 'no benchmark "computer"', 'Did you mean "compute"?'],
    [['train', 'trec6'], 'needs data: a folder with trec6-train.csv', '--data'],
  ])('%j is refused with what to do', async (argv, fault, hint) => {
    const { code, stdout, stderr } = await run(argv);
    expect(code).toBe(2);
    expect(stdout).toBe('');
    expect(stderr).toMatch(/^error \[INVALID_COMMAND\]: /);
    expect(stderr).toContain(fault);
    expect(stderr).toContain(hint);
    expect(stderr).not.toMatch(/\n\s+at /);
  });

  test('gives an object with --json and the stack with --verbose', async () => {
    const { code, stdout, stderr } = await run(['train', 'mnits', '--json', '--verbose']);
    expect(code).toBe(2);
    const { error } = JSON.parse(stdout) as { error: { code: string; message: string; facts: object } };
    expect(error.code).toBe('INVALID_COMMAND');
    expect(error.message).toContain('mnits');
    expect(error.facts).toEqual({ target: 'mnits' });
    expect(stderr).toMatch(/^\s+at /m);
  });
});

test('docs/errors.md names the codes that end a command with 2', () => {
  const page = readFileSync(new URL('../../docs/errors.md', import.meta.url), 'utf8');
  const [, named] =
    /ends\s+with\s+2\s+for\s+a\s+wrong\s+command\s+line\s+or\s+configuration\s*\(([^)]*)\)/.exec(page)!;
  expect(named!.match(/[A-Z_]+/g)).toEqual([...USAGE_CODES]);
});

test('a configuration that is not there ends with 2', async () => {
  const { code, stderr } = await run(['train', 'nowhere/at-all.json']);
  expect(stderr).toContain('error [FILE_NOT_FOUND]');
  expect(code).toBe(2);
});

describe('suggestions', () => {
  const word = fc.string({ maxLength: 12 });

  test('the distance is a metric up to swaps: 0 for the same word only, symmetric, at most the longer length', () => {
    fc.assert(
      fc.property(word, word, (a, b) => {
        const distance = editDistance(a, b);
        expect(distance === 0).toBe(a === b);
        expect(editDistance(b, a)).toBe(distance);
        expect(distance).toBeLessThanOrEqual(Math.max(a.length, b.length));
      }),
    );
  });

  test('one slip is always found', () => {
    const known = ['train', 'evaluate', 'predict', 'export'];
    fc.assert(
      fc.property(fc.constantFrom(...known), fc.nat(), (name, at) => {
        const i = at % name.length;
        expect(nearest(name.slice(0, i) + name.slice(i + 1), known)).toBe(name);
      }),
    );
  });

  test('a word that is like none gets none', () => {
    expect(nearest('xyzzy', ['train', 'info'])).toBeUndefined();
    expect(nearest('t', ['info'])).toBeUndefined();
    expect(nearest('train'.repeat(100), ['train'])).toBeUndefined();
  });
});
