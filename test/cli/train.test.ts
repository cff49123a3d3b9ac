import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { OnnxRuntime, PROVIDERS } from '../../src/compute/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { parse, start } from './program.ts';
import { rows, writeTinyRun } from './tiny-run.ts';

const folder = temporaryFolders();

interface ErrorLine {
  readonly error: {
    readonly code: string;
    readonly message: string;
    readonly facts: Record<string, unknown>;
  };
}

function lastObject<T>(stdout: string): T {
  return JSON.parse(stdout.trimEnd().split('\n').at(-1)!) as T;
}

describe('tributary train', () => {
  test('trains as a process of its own; its run folder serves evaluate, predict and export', async () => {
    const cwd = folder();
    writeTinyRun(cwd, { config: { epochs: 12 } });
    const { code, lines, stderr } = await start(['train', 'tiny.json', '--epochs', '20', '--json'], cwd)
      .ended;
    expect(stderr).toBe('');
    expect(code).toBe(0);
    const events = lines.map(parse);
    const types = events.map(({ type }) => type);
    expect(types[0]).toBe('run');
    expect(types[1]).toBe('started');
    expect(types.filter((type) => type === 'epoch')).toHaveLength(20);
    const finished = events.at(-1)!;
    expect(finished).toMatchObject({
      type: 'finished',
      steps: 160,
      accuracy: 1,
      output: join(cwd, 'runs', 'tiny'),
    });

    const output = join(cwd, 'runs', 'tiny');
    expect(readdirSync(output).sort()).toEqual([
      'checkpoints',
      'config.json',
      'labels.json',
      'metrics.json',
      'model.onnx',
      'vocabulary.json',
    ]);
    const config = JSON.parse(readFileSync(join(output, 'config.json'), 'utf8')) as Record<string, unknown>;
    expect(config).toMatchObject({
      name: 'tiny',
      epochs: 20,
      batchSize: 8,
      data: { train: join(cwd, 'train.csv'), length: 5 },
    });
    const metrics = JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8')) as {
      epochs: unknown[];
      final: unknown;
    };
    expect(metrics.epochs).toHaveLength(20);
    expect(metrics.final).toMatchObject({ steps: 160, accuracy: 1 });

    const evaluated = await run(['evaluate', 'runs/tiny', '--json'], { cwd });
    expect(evaluated.code).toBe(0);
    expect(JSON.parse(evaluated.stdout)).toMatchObject({
      accuracy: 1,
      samples: 15,
      step: 160,
      labels: [
        { label: 'bird', precision: 1, recall: 1, samples: 5 },
        { label: 'fruit' },
        { label: 'metal' },
      ],
      confused: [],
    });
    expect((JSON.parse(evaluated.stdout) as { loss: number }).loss).toBeCloseTo(
      finished['loss'] as number,
      5,
    );
    writeFileSync(join(cwd, 'other.csv'), 'iron copper zinc,fruit\nowl,bird\n');
    const other = await run(['evaluate', 'runs/tiny', '--data', 'other.csv'], { cwd });
    expect(other.stdout).toContain('fruit taken for metal');
    expect(other.stdout).toContain('accuracy 50.00 %');

    const predicted = await run(['predict', 'runs/tiny', 'an owl and a wren', 'tin or zinc', '--json'], {
      cwd,
    });
    expect(
      predicted.stdout
        .trimEnd()
        .split('\n')
        .map((line) => parse(line)['label']),
    ).toEqual(['bird', 'metal']);
    const input = 'apple plum\n\ncrow robin\n';
    const piped = await run(['predict', 'runs/tiny', '-', '--top', '1'], { cwd, input });
    expect(piped.stdout).toMatch(/^apple plum\n {2}fruit \d+\.\d\d %\ncrow robin\n {2}bird \d+\.\d\d %\n$/);
    writeFileSync(join(cwd, 'texts.txt'), input);
    for (const word of ['nosuchfile.txt', 'data/owl', 'owl.CSV']) {
      const missing = await run(['predict', 'runs/tiny', word], { cwd });
      expect([missing.code, missing.stdout]).toEqual([2, '']);
      expect(missing.stderr).toContain(
        `error [FILE_NOT_FOUND]: There is no file ${join(cwd, word)}. Check the path; if it is a text, give it by standard input: tributary predict runs/tiny -`,
      );
    }
    for (const text of ['an owl and/or a wren', 'owl.', 'see owl.txt'])
      expect((await run(['predict', 'runs/tiny', text], { cwd })).code).toBe(0);
    expect((await run(['predict', 'runs/tiny', 'texts.txt', '--top', '1'], { cwd })).stdout).toBe(
      piped.stdout,
    );

    const exported = await run(['export', 'runs/tiny', '--output', 'out/m.onnx', '--json'], { cwd });
    expect(exported.code).toBe(0);
    expect(JSON.parse(exported.stdout)).toMatchObject({
      file: join(cwd, 'out', 'm.onnx'),
      inputs: [{ name: 'tokens', dtype: 'int32', shape: '[N, 5]' }],
      outputs: [{ name: 'logits', dtype: 'float32', shape: '[N, 3]' }],
    });
    expect(readFileSync(join(cwd, 'out', 'm.onnx')).equals(readFileSync(join(output, 'model.onnx')))).toBe(
      true,
    );
  });

  test('in words says what it did, where the model is and what to try next', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    const { code, stdout } = await run(['train', 'tiny.json'], { cwd });
    expect(code).toBe(0);
    expect(stdout).toMatch(/^tiny: 60 training samples, 15 test samples, output in runs\/tiny$/m);
    expect(stdout).toMatch(/^epoch 2\/2 {2}loss \S+ {2}test loss \S+ {2}accuracy \S+ % {2}\S+ s$/m);
    expect(stdout).toMatch(
      /^Done: accuracy \S+ %, test loss \S+, 16 steps in \S+ s, [\d,]+ samples\/s while training$/m,
    );
    expect(stdout).not.toContain('no checkpoint');
    expect(stdout).toContain(
      'The model is in runs/tiny/model.onnx. Try it: npx tributary predict runs/tiny "your text"',
    );
  });

  test.each([
    [
      { model: 'text-cnn', data: { kind: 'text', train: 'train.csv' } },
      "model 'text-cnn' needs texts with labels, and data.kind 'text' gives texts without labels: use kind 'text-csv', or a language model (lstm-lm, sampled-lm, gpt).",
    ],
    [
      { model: { name: 'mlp', inputShape: [5], classes: 3 } },
      "model 'mlp' needs images, and data.kind 'text-csv' gives texts with labels: use kind 'mnist' or 'idx', or a text classifier (text-cnn, transformer).",
    ],
    [
      { model: 'gpt' },
      "model 'gpt' needs texts without labels, and data.kind 'text-csv' gives texts with labels: use kind 'text', or a text classifier (text-cnn, transformer).",
    ],
  ])('refuses a model of other data in one sentence: %j', async (config, message) => {
    const cwd = folder();
    writeTinyRun(cwd, { config });
    const { code, stderr } = await run(['train', 'tiny.json'], { cwd });
    expect([code, stderr]).toEqual([2, expect.stringContaining(`error [INVALID_CONFIG]: ${message}`)]);
    expect(existsSync(join(cwd, 'runs'))).toBe(false);
  });

  test('names the file and the field where there is too little to hold some out for testing', async () => {
    const cwd = folder();
    const data = { kind: 'text-csv', train: 'train.csv', testFraction: 0.1 };
    writeTinyRun(cwd, { train: 'the iron lead,metal\n', config: { data } });
    const { code, stderr } = await run(['train', 'tiny.json'], { cwd });
    expect(code).toBe(2);
    expect(stderr).toContain(
      `error [INVALID_CONFIG]: ${join(cwd, 'train.csv')} has 1 sample; data.testFraction 0.1 needs at least 2. Add rows, or leave data.testFraction out.`,
    );
  });

  test('takes --resume or --overwrite, not both, before it looks at anything', async () => {
    const cwd = folder();
    const refused = await run(['train', 'none.json', '--overwrite', '--resume'], { cwd });
    expect(refused.code).toBe(2);
    expect(refused.stderr).toContain(
      'error [INVALID_COMMAND]: tributary train takes --resume or --overwrite, not both: one goes on with the run, the other replaces it.',
    );
    expect(readdirSync(cwd)).toEqual([]);
  });

  test('refuses a folder with something in it, and deletes nothing', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    mkdirSync(join(cwd, 'mine'));
    writeFileSync(join(cwd, 'mine', 'notes.txt'), 'keep');
    const refused = await run(['train', 'tiny.json', '--output', 'mine'], { cwd });
    expect(refused.code).toBe(2);
    expect(refused.stderr).toContain('error [OUTPUT_EXISTS]');
    for (const way of ['--resume', '--output', '--overwrite']) expect(refused.stderr).toContain(way);
    expect(readdirSync(join(cwd, 'mine'))).toEqual(['notes.txt']);

    expect((await run(['train', 'tiny.json', '--output', 'mine', '--overwrite'], { cwd })).code).toBe(0);
    expect(readFileSync(join(cwd, 'mine', 'notes.txt'), 'utf8')).toBe('keep');
    expect(
      (await run(['train', 'tiny.json', '--output', 'mine', '--overwrite', '--epochs', '1'], { cwd })).code,
    ).toBe(0);
    expect(readdirSync(join(cwd, 'mine', 'checkpoints'))).toEqual(['step-00000008']);
  });

  test('cut short by --max-steps and resumed ends as if it had not been, bit for bit', async () => {
    const cwd = folder();
    writeTinyRun(cwd, {
      config: { movingAverage: 0.9, clipGlobalNorm: 0.5, weightDecay: 0.001, checkpointEverySteps: 3 },
    });
    expect((await run(['train', 'tiny.json', '--output', 'whole'], { cwd })).code).toBe(0);
    expect((await run(['train', 'tiny.json', '--output', 'parts', '--max-steps', '5'], { cwd })).code).toBe(
      0,
    );
    const resumed = await run(['train', 'tiny.json', '--output', 'parts', '--resume'], { cwd });
    expect(resumed.code).toBe(0);
    expect(resumed.stdout).toMatch(/Resumed from .*step-00000005 at step 5\./);
    expect(resumed.stdout).toContain(', 11 steps (16 in all) in ');
    for (const file of [
      'checkpoints/step-00000016/model.safetensors',
      'checkpoints/step-00000016/optimizer.safetensors',
      'model.onnx',
    ]) {
      expect(
        readFileSync(join(cwd, 'parts', file)).equals(readFileSync(join(cwd, 'whole', file))),
        file,
      ).toBe(true);
    }
  });

  test('is limited by --max-steps for that call only, by its configuration for all', async () => {
    const cwd = folder();
    writeTinyRun(cwd, { config: { maxSteps: 7 } });
    const stored = () =>
      JSON.parse(readFileSync(join(cwd, 'runs', 'tiny', 'config.json'), 'utf8')) as { maxSteps?: number };
    await run(['train', 'tiny.json', '--max-steps', '5'], { cwd });
    expect(stored().maxSteps).toBe(7);
    const limited = await run(['train', 'runs/tiny', '--resume', '--json'], { cwd });
    expect(lastObject(limited.stdout)).toMatchObject({ steps: 7 });
    writeTinyRun(cwd);
    await run(['train', 'tiny.json', '--overwrite', '--max-steps', '5'], { cwd });
    expect(stored().maxSteps).toBeUndefined();
    const resumed = await run(['train', 'runs/tiny', '--resume', '--epochs', '3', '--json'], { cwd });
    expect(lastObject(resumed.stdout)).toMatchObject({ steps: 24 });
  });

  test('resumed without a checkpoint says that it starts from the beginning', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    const { code, stdout } = await run(['train', 'tiny.json', '--resume'], { cwd });
    expect(code).toBe(0);
    expect(stdout).toMatch(
      /^There is no checkpoint to go on from in runs\/tiny\/checkpoints: training starts from the beginning\.$/m,
    );
    expect((await run(['train', 'tiny.json', '--resume'], { cwd })).stdout).not.toContain('no checkpoint');
  });

  test('goes on where its folder is, though it was moved', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    await run(['train', 'tiny.json', '--epochs', '1'], { cwd });
    renameSync(join(cwd, 'runs', 'tiny'), join(cwd, 'elsewhere'));
    const { code, stdout } = await run(['train', 'elsewhere', '--resume', '--epochs', '2'], { cwd });
    expect(code).toBe(0);
    expect(stdout).toMatch(/Resumed from .*elsewhere/);
    expect(existsSync(join(cwd, 'runs', 'tiny'))).toBe(false);
  });

  test('resumed when there is nothing left to do says the same result again', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    const first = await run(['train', 'tiny.json', '--json'], { cwd });
    const again = await run(['train', 'runs/tiny', '--resume', '--json'], { cwd });
    expect(again.code).toBe(0);
    const [a, b] = [first, again].map(({ stdout }) => lastObject<Record<string, unknown>>(stdout));
    expect([b!['accuracy'], b!['loss'], b!['steps']]).toEqual([a!['accuracy'], a!['loss'], a!['steps']]);
    const shorter = await run(['train', 'runs/tiny', '--resume', '--max-steps', '1'], { cwd });
    expect(shorter.stdout).toMatch(/has \d+ steps, more than the 1 asked for: nothing is trained/);
    expect(shorter.stdout).toMatch(/parameters, no step left$/m);
    expect(shorter.stdout).not.toMatch(/-\d+ steps/);
  });
});

test('columns of CSV files are taken by their names, in every file', async () => {
  const cwd = folder();
  const named = (count: number, seed: number) =>
    `kind,id,words\n${rows(count, seed)}`.replaceAll(/^(the .*),(.*)$/gm, '$2,7,$1');
  writeTinyRun(cwd, {
    ...{ train: named(60, 1), test: named(15, 2) },
    config: {
      data: {
        ...{ kind: 'text-csv', train: 'train.csv', test: 'test.csv' },
        ...{ textColumn: 'words', labelColumn: 'kind' },
      },
    },
  });
  expect(await run(['train', 'tiny.json', '--epochs', '1'], { cwd })).toMatchObject({ code: 0 });
  writeFileSync(join(cwd, 'other.csv'), 'words,kind\niron zinc,metal\n');
  const evaluated = await run(['evaluate', 'runs/tiny', '--data', 'other.csv', '--json'], { cwd });
  expect(JSON.parse(evaluated.stdout)).toMatchObject({ samples: 1, labels: { length: 3 } });
});

describe('what cannot be trained', () => {
  test.each([
    ['a ragged row', { train: 'a b,x\nc d\n' }, 'INVALID_DATA', 'train.csv, line 2', 'the first one has 2'],
    [
      'a row of names as a sample',
      { train: `text,label\n${rows(9, 1)}` },
      'INVALID_ARGUMENT',
      'train.csv, line 1',
      'header: true',
    ],
    [
      'a row of names as a sample of the test data',
      { test: `text,label\n${rows(9, 1)}` },
      'UNKNOWN_LABEL',
      'test.csv, line 1',
      'header: true',
    ],
    ['an empty file', { train: '' }, 'INVALID_DATA', 'train.csv', 'empty'],
    [
      'a label that training never saw',
      { test: 'the apple,vegetable\n' },
      'UNKNOWN_LABEL',
      'test.csv, line 1',
      '"vegetable"',
    ],
    [
      'a missing file',
      { config: { data: { kind: 'text-csv', train: 'none.csv' } } },
      'FILE_NOT_FOUND',
      'none.csv',
      'Check the path',
    ],
    ['bytes that are no text', { train: '\ud800,x\n\u0000' }, 'INVALID_DATA', 'train.csv', ''],
    [
      'a model of the wrong kind',
      { config: { model: 'lenet' } },
      'INVALID_CONFIG',
      "model 'lenet'",
      'needs images',
    ],
    [
      'a model option that the data decides',
      { config: { model: { name: 'text-cnn', classes: 7 } } },
      'INVALID_CONFIG',
      'model.classes is 7',
      'the data has 3',
    ],
    [
      'a missing model file',
      { config: { model: { onnx: 'none.onnx' } } },
      'FILE_NOT_FOUND',
      'none.onnx',
      'Check the path',
    ],
    [
      'a broken model file',
      { config: { model: { onnx: 'train.csv' } } },
      'INVALID_MODEL_FILE',
      'train.csv',
      '',
    ],
  ])('%s: code, message and exit code, and no folder is made', async (_what, tiny, code, part, hint) => {
    const cwd = folder();
    writeTinyRun(cwd, tiny);
    const result = await run(['train', 'tiny.json', '--json'], { cwd });
    const { error } = lastObject<ErrorLine>(result.stdout);
    expect(error.code).toBe(code);
    expect(error.message).toContain(part);
    expect(error.message).toContain(hint);
    expect(result.code).toBe(['INVALID_ARGUMENT', 'INVALID_CONFIG', 'FILE_NOT_FOUND'].includes(code) ? 2 : 1);
    expect(existsSync(join(cwd, 'runs'))).toBe(false);
  });

  test('a loss that is no number: the last good checkpoint stays and is named', async () => {
    const cwd = folder();
    writeTinyRun(cwd, { config: { schedule: undefined, epochs: 3 } });
    expect((await run(['train', 'tiny.json', '--epochs', '1'], { cwd })).code).toBe(0);
    const before = readFileSync(
      join(cwd, 'runs', 'tiny', 'checkpoints', 'step-00000008', 'model.safetensors'),
    );
    const failed = await run(['train', 'tiny.json', '--output', 'runs/nan', '--lr', '1e30', '--json'], {
      cwd,
    });
    expect(failed.code).toBe(1);
    const { error } = lastObject<ErrorLine>(failed.stdout);
    expect(error.code).toBe('NOT_A_NUMBER');
    expect(error.message).toContain('Lower the learning rate');
    expect(existsSync(join(cwd, 'runs', 'nan', 'model.onnx'))).toBe(false);
    expect(
      readFileSync(join(cwd, 'runs', 'tiny', 'checkpoints', 'step-00000008', 'model.safetensors')).equals(
        before,
      ),
    ).toBe(true);
  });

  test('a start that fails before its first checkpoint leaves nothing, so that the next one is not blocked', async () => {
    const cwd = folder();
    writeTinyRun(cwd, { config: { schedule: undefined } });
    const failed = await run(['train', 'tiny.json', '--lr', '1e30'], { cwd });
    expect(failed.stderr).toContain('error [NOT_A_NUMBER]');
    expect(existsSync(join(cwd, 'runs'))).toBe(false);

    // What was there before stays: a folder, and the files of somebody else.
    mkdirSync(join(cwd, 'mine'));
    expect((await run(['train', 'tiny.json', '--lr', '1e30', '--output', 'mine'], { cwd })).code).toBe(1);
    expect(readdirSync(join(cwd, 'mine'))).toEqual([]);
    writeFileSync(join(cwd, 'mine', 'notes.txt'), 'keep');
    const replacing = ['train', 'tiny.json', '--lr', '1e30', '--output', 'mine', '--overwrite'];
    expect((await run(replacing, { cwd })).code).toBe(1);
    expect(readdirSync(join(cwd, 'mine'))).toContain('notes.txt');
    expect((await run(['train', 'tiny.json'], { cwd })).code).toBe(0);
  });

  test('a provider that cannot be used is refused before there is a folder, or before a run is replaced', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    const runtime = OnnxRuntime.load();
    const unusable = PROVIDERS.filter((name) => {
      try {
        runtime.tryProvider(name);
        return false;
      } catch {
        return true;
      }
    });
    runtime.close();
    for (const provider of unusable) {
      const failed = await run(['train', 'tiny.json', '--provider', provider], { cwd });
      expect(failed.code).toBe(1);
      expect(failed.stderr).toContain(`The provider "${provider}" is not available`);
      expect(failed.stderr).not.toContain('install-cuda');
      expect(existsSync(join(cwd, 'runs'))).toBe(false);
    }
    expect((await run(['train', 'tiny.json', '--epochs', '1'], { cwd })).code).toBe(0);
    const [provider = 'cpu'] = unusable;
    await run(['train', 'tiny.json', '--provider', provider, '--overwrite'], { cwd });
    expect((await run(['predict', 'runs/tiny', 'owl'], { cwd })).code).toBe(0);
  });

  test('a run folder with nothing in it is no run', async () => {
    const cwd = folder();
    for (const command of ['evaluate', 'predict', 'export']) {
      const { code, stderr } = await run([command, '.', ...(command === 'predict' ? ['text'] : [])], { cwd });
      expect(code).toBe(2);
      expect(stderr).toContain('error [FILE_NOT_FOUND]');
      expect(stderr).toContain('no config.json');
    }
  });

  test('a resume with another seed or optimizer is CHECKPOINT_MISMATCH and leaves the run as it was', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    await run(['train', 'tiny.json'], { cwd });
    const model = readFileSync(join(cwd, 'runs', 'tiny', 'model.onnx'));
    for (const change of [
      ['--seed', '9'],
      ['--lr', '0.5'],
    ]) {
      const { code, stderr } = await run(['train', 'tiny.json', '--resume', '--epochs', '3', ...change], {
        cwd,
      });
      expect(code).toBe(1);
      expect(stderr).toContain('error [CHECKPOINT_MISMATCH]');
    }
    expect(readFileSync(join(cwd, 'runs', 'tiny', 'model.onnx')).equals(model)).toBe(true);
    expect((await run(['train', 'runs/tiny', '--resume'], { cwd })).code).toBe(0);
  });

  test('a damaged vocabulary is named', async () => {
    const cwd = folder();
    writeTinyRun(cwd);
    await run(['train', 'tiny.json'], { cwd });
    const file = join(cwd, 'runs', 'tiny', 'vocabulary.json');
    writeFileSync(file, readFileSync(file, 'utf8').slice(0, 30));
    const { code, stderr } = await run(['predict', 'runs/tiny', 'owl'], { cwd });
    expect(code).toBe(1);
    expect(stderr).toContain('error [INVALID_DATA]');
    expect(stderr).toContain(file);
  });
});

test('rows of the tiny set depend on the seed alone', () => {
  expect(rows(5, 1)).toBe(rows(5, 1));
  expect(rows(5, 1)).not.toBe(rows(5, 2));
});
