import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { learningRateAt, TributaryError } from '../../src/base/index.ts';
import { buildModel } from '../../src/cli/build-model.ts';
import { checkConfig } from '../../src/cli/config-check.ts';
import { loadConfigFile } from '../../src/cli/config-file.ts';
import type { ResolvedConfig } from '../../src/cli/config.ts';
import { resolveSchedule } from '../../src/cli/schedule.ts';
import { defineConfig } from '../../src/index.ts';
import { expectError } from '../data/expect-error.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';

const folder = temporaryFolders();
const check = (given: unknown) =>
  checkConfig(given, { source: '/project/tributary.config.ts', defaultName: 'tributary' });
const good = { model: 'mlp', data: { kind: 'mnist' } };

describe('a configuration', () => {
  test('has its defaults filled in and its short forms written out', () => {
    const config = check({ ...good, schedule: 'cosine' });
    expect(config).toMatchObject({
      name: 'tributary',
      batchSize: 32,
      epochs: 10,
      seed: 0,
      on: 'auto',
      optimizer: { name: 'adam', lr: 0.001 },
      schedule: { name: 'cosine' },
      model: { name: 'mlp', hidden: [1024, 1024] },
    });
  });

  test('has its paths made absolute from the folder of the file', () => {
    const data = { kind: 'text-csv', train: 'data/train.csv', test: '/elsewhere/test.csv' };
    const config = check({ model: { onnx: 'm.onnx' }, data, output: 'out' });
    expect(config.data).toMatchObject({ train: '/project/data/train.csv', test: '/elsewhere/test.csv' });
    expect(config.model).toEqual({ onnx: '/project/m.onnx' });
    expect(config.output).toBe('/project/out');
  });

  test('resolves to itself: what is stored is read back as the same', () => {
    const config = check({
      ...good,
      schedule: 'warmup_cosine',
      clipGlobalNorm: 1,
      optimizer: { name: 'sgd', lr: 0.1 },
    });
    expect(check(JSON.parse(JSON.stringify(config)))).toEqual(config);
  });

  test.each([
    [{ ...good, optimiser: 'adam' }, 'the field optimiser is unknown', 'Did you mean "optimizer"?'],
    [{ ...good, zebra: 1 }, 'the field zebra is unknown', 'Known here: name, model, data'],
    [{ ...good, epochs: '3' }, 'the field epochs is "3"', 'expected a number'],
    [{ ...good, epochs: 0 }, 'the field epochs is 0', 'expected above 0'],
    [{ ...good, epochs: 1.5 }, 'the field epochs is 1.5', 'a whole number'],
    [{ ...good, movingAverage: 1 }, 'the field movingAverage is 1', 'below 1'],
    [{ ...good, learners: 0 }, 'the field learners is 0', 'expected "auto" or a whole number from 1 to 254'],
    [{ ...good, learners: 'all' }, 'the field learners is "all"', 'expected "auto"'],
    [
      { ...good, learnerMode: 'direct lock' },
      'the field learnerMode is "direct lock"',
      'Did you mean "direct locked"?',
    ],
    [
      { ...good, learnerMode: 'none' },
      'expected "auto", "direct lock-free", "direct locked"',
      '"server locked"',
    ],
    [{ ...good, seed: NaN }, 'the field seed is NaN', 'expected'],
    [{ data: good.data }, 'the field model is missing', 'expected an object'],
    [{ model: 'mlp' }, 'the field data is missing', 'expected an object'],
    [{ ...good, model: 'mpl' }, 'the field model.name is "mpl"', 'Did you mean "mlp"?'],
    [
      { ...good, model: { name: 'mlp', hiden: [3] } },
      'the field model.hiden is unknown',
      'Did you mean "model.hidden"?',
    ],
    [{ ...good, model: { name: 'mlp', hidden: 3 } }, 'the field model.hidden is 3', 'expected an array'],
    [
      { ...good, model: { onnx: 'm.onnx', outputs: 'y' } },
      'the field model.outputs is unknown',
      'Did you mean "model.output"?',
    ],
    [{ ...good, data: { kind: 'mnst' } }, 'the field data.kind is "mnst"', 'Did you mean "mnist"?'],
    [{ ...good, data: { kind: 'text-csv' } }, 'the field data.train is missing', 'expected a string'],
    [
      { ...good, data: { kind: 'text-csv', train: 'a', textColumn: -1 } },
      'the field data.textColumn is -1',
      'expected the name of a column or its number, counted from 0',
    ],
    [
      { ...good, data: { kind: 'text-csv', train: 'a', tset: 'b' } },
      'the field data.tset is unknown',
      'Did you mean "data.test"?',
    ],
    [{ ...good, optimizer: 'adm' }, 'the field optimizer.name is "adm"', 'Did you mean "adam"?'],
    [{ ...good, optimizer: { name: 'sgd' } }, 'the field optimizer.lr is missing', 'expected a number'],
    [
      { ...good, optimizer: { name: 'adam', momentum: 0.9 } },
      'the field optimizer.momentum is unknown',
      'Known here: ',
    ],
    [{ ...good, schedule: { name: 'step' } }, 'the field schedule.stepSize is missing', ''],
    ['text', 'expected an object with model and data', 'defineConfig'],
    [null, 'expected an object with model and data', ''],
  ])('%j is refused: the file, the field, expected and actual', (given, fault, hint) => {
    const error = expectError(
      () => check(given),
      'INVALID_CONFIG',
      '/project/tributary.config.ts',
      fault,
      hint,
    );
    expect(error.facts['faults']).toBeInstanceOf(Array);
  });

  test('several faults are sentences, and a question ends in its own mark', () => {
    expectError(
      () => check({ ...good, optimizer: 'adm', epoch: 3 }),
      'INVALID_CONFIG',
      'Did you mean "adam"? ',
      'The field epoch is unknown. Did you mean "epochs"? Correct the fields named.',
    );
  });

  test('all faults are named at once', () => {
    expectError(
      () => check({ ...good, epochs: 0, batchsize: 3 }),
      'INVALID_CONFIG',
      'epochs is 0',
      '"batchSize"',
    );
  });

  test('any value gives a configuration or INVALID_CONFIG', () => {
    const fields = fc.record(
      {
        model: fc.anything(),
        data: fc.anything(),
        optimizer: fc.anything(),
        schedule: fc.anything(),
        epochs: fc.anything(),
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(fc.oneof(fields, fc.anything()), (value) => {
        try {
          check(value);
        } catch (error) {
          expect(error).toBeInstanceOf(TributaryError);
          expect((error as TributaryError).code).toBe('INVALID_CONFIG');
        }
      }),
    );
  });
});

describe('a configuration file', () => {
  const write = (name: string, content: string) => {
    const path = join(folder(), name);
    writeFileSync(path, content);
    return path;
  };
  const loading = async (path: string) =>
    loadConfigFile(path, '/', { trust: true }).catch((error: unknown) => error as TributaryError);

  test('in TypeScript imports this package and may hold a model function', async () => {
    const path = write(
      'mine.config.ts',
      `import { defineConfig, Graph, N, type DataFacts } from 'tributary';
       const width: number = 3;
       export default defineConfig({
         model: (facts: DataFacts) => { const graph = new Graph(); graph.input('x', [N, width, facts.classes ?? 0]); return { graph } as never; },
         data: { kind: 'mnist' },
       });`,
    );
    const config = (await loading(path)) as ResolvedConfig;
    expect(config.name).toBe('mine');
    const { build, config: file } = config.model as {
      build: (facts: object) => { graph: { inputs: Map<string, unknown> } };
      config: string;
    };
    expect(file).toBe(path);
    expect(build({ classes: 4 }).graph.inputs.has('x')).toBe(true);
  });

  test('that a run stored finds its model function again', async () => {
    const path = write('own.ts', `export default { model: () => 1, data: { kind: 'mnist' } };`);
    const stored = write('config.json', JSON.stringify({ model: { config: path }, data: { kind: 'mnist' } }));
    expect(((await loading(stored)) as ResolvedConfig).model).toMatchObject({ config: path });
    const lost = write(
      'config.json',
      JSON.stringify({ model: { config: `${path}.gone.ts` }, data: { kind: 'mnist' } }),
    );
    expect(await loading(lost)).toMatchObject({ code: 'FILE_NOT_FOUND' });
  });

  test.each([
    ['a.json', '{ "model": ', 'INVALID_CONFIG', 'not readable JSON'],
    ['a.ts', 'export default {{', 'INVALID_CONFIG', 'cannot be loaded'],
    ['a.ts', 'throw new Error("boom")', 'INVALID_CONFIG', 'boom'],
    ['a.ts', 'export const config = 1', 'INVALID_CONFIG', 'no default export'],
    ['a.toml', 'x', 'INVALID_CONFIG', 'expected a file ending in .ts'],
  ])('%s with %j is %s', async (name, content, code, part) => {
    const path = write(name, content);
    const error = (await loading(path)) as TributaryError;
    expect(error.code).toBe(code);
    expect(error.message).toContain(path);
    expect(error.message).toContain(part);
  });

  test('that is missing, or a folder without one, is FILE_NOT_FOUND', async () => {
    expect(await loading('/nowhere/x.ts')).toMatchObject({ code: 'FILE_NOT_FOUND' });
    const empty = join(folder(), 'empty');
    mkdirSync(empty);
    expect(await loading(empty)).toMatchObject({ code: 'FILE_NOT_FOUND' });
  });

  test('of the examples loads and builds its model', async () => {
    const path = fileURLToPath(new URL('../../examples/tributary.config.ts', import.meta.url));
    const config = (await loading(path)) as ResolvedConfig;
    expect(config).toMatchObject({ name: 'digits', data: { kind: 'mnist' }, schedule: { name: 'cosine' } });
    const { model } = buildModel(config, { kind: 'images', facts: { inputShape: [1, 28, 28], classes: 10 } });
    expect([...model.graph.inputs.keys()]).toEqual(['x', 'labels']);
    expect(model.graph.updateOperations).toMatchObject([{ kind: 'clip_global_norm', maxNorm: 1 }]);
  });

  test('gets its types checked by defineConfig', () => {
    expect(defineConfig({ model: 'lenet', data: { kind: 'mnist' }, optimizer: 'adam' })).toEqual({
      model: 'lenet',
      data: { kind: 'mnist' },
      optimizer: 'adam',
    });
    // @ts-expect-error: sgd has no default rate.
    defineConfig({ model: 'lenet', data: { kind: 'mnist' }, optimizer: 'sgd' });
    // @ts-expect-error: the field is called batchSize.
    defineConfig({ model: 'lenet', data: { kind: 'mnist' }, batchsize: 3 });
  });
});

describe('a schedule', () => {
  test('takes its rate from the optimizer and its length from the run', () => {
    const config = check({
      ...good,
      schedule: 'cosine',
      optimizer: { name: 'sgd', lr: 0.5 },
      batchSize: 10,
      epochs: 4,
    });
    const schedule = resolveSchedule(config, 95)!;
    expect(schedule).toEqual({ name: 'cosine', baseLr: 0.5, tMax: 40, etaMin: 0 });
    expect(learningRateAt(schedule, 40)).toBeCloseTo(0);
  });

  test('does not depend on maxSteps, so that a run cut short goes on as if it had not been', () => {
    fc.assert(
      fc.property(
        fc.constantFrom('cosine', 'warmup_cosine', 'warmup_linear', 'constant'),
        fc.integer({ min: 1, max: 99 }),
        (name, maxSteps) => {
          const config = check({ ...good, schedule: name });
          expect(resolveSchedule({ ...config, maxSteps }, 1000)).toEqual(resolveSchedule(config, 1000));
        },
      ),
    );
  });

  test('warms up for a twentieth of the run and ends at its lowest rate', () => {
    const config = check({ ...good, schedule: 'warmup_cosine', batchSize: 1, epochs: 1 });
    expect(resolveSchedule(config, 100)).toMatchObject({
      warmupSteps: 5,
      startFactor: 0,
      tMax: 95,
      baseLr: 0.001,
    });
  });
});
