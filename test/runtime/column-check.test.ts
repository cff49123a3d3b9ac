/** Data that does not fit the model is refused before the first step, by whichever call gets it, and the error says what to change. */
import { afterEach, describe, expect, it } from 'vitest';
import { Dataset, type ColumnInput } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import { mlp } from '../../src/models/index.ts';
import { evaluate } from '../../src/runtime/index.ts';
import { fit, oneDevice, shard, type Runner } from '../../src/runner/index.ts';

const optimizer = { name: 'sgd', lr: 0.1 } as const;
const model = () => mlp({ inputShape: [4], hidden: [8], classes: 2 });

function data(width: number, samples = 100, ...changes: ColumnInput[]): Dataset {
  const columns: ColumnInput[] = [
    { name: 'x', data: new Float32Array(width * samples), sampleShape: [width] },
    { name: 'labels', data: new Int32Array(samples) },
  ];
  const names = changes.map(({ name }) => name);
  return new Dataset([...columns.filter(({ name }) => !names.includes(name)), ...changes]);
}

let steps = 0;
const run = (train: Dataset, test?: Dataset) =>
  fit(model(), { train, test, optimizer, onEvent: ({ type }) => type === 'progress' && steps++ });

const runners: Runner[] = [];
afterEach(async () => {
  for (const runner of runners.splice(0)) await runner.close();
});
async function runner(): Promise<Runner> {
  const made = await oneDevice(model(), { optimizer });
  runners.push(made);
  return made;
}

const WIDTH_3 =
  /column "x" has samples of shape \[3\], the model's input "x" takes shape \[4\].*Build the model for the shape of the data/;

describe('data of another width than the model', () => {
  it.each([
    ['narrower', 3, 100],
    ['wider', 5, 100],
    ['narrower and less than a batch', 3, 7],
    ['wider and less than a batch', 5, 7],
  ])('is refused by fit: %s', async (_, width, samples) => {
    await expect(run(data(width, samples))).rejects.toMatchObject({
      code: 'SHAPE_MISMATCH',
      message: expect.stringMatching(
        new RegExp(`^The training data does not fit the model: column "x" .*\\[${width}\\].*\\[4\\]`),
      ) as string,
    });
    expect(steps).toBe(0);
  });

  it('is refused by fit as test data before it trains', async () => {
    await expect(run(data(4), data(3))).rejects.toThrow(/^The test data does not fit.*\[3\].*\[4\]/);
    expect(steps).toBe(0);
  });

  it('is refused by a runner, to train and to evaluate, whole or shared out', async () => {
    const one = await runner();
    for (const bad of [data(3), shard(data(3, 7))]) {
      await expect(one.run(bad).next()).rejects.toThrow(WIDTH_3);
      await expect(one.evaluate(bad)).rejects.toThrow(WIDTH_3);
    }
    expect(one.replica.step).toBe(0);
  });

  it('is refused by evaluate', async () => {
    const { replica } = await runner();
    expect(() => evaluate(replica, data(3))).toThrow(WIDTH_3);
    expect(() => evaluate(replica, data(5, 7))).toThrow(/\[5\].*\[4\]/);
  });

  it('is refused by learners before any of them is started', async () => {
    const learn = (train: Dataset, test: Dataset) =>
      fit(model(), { train, test, optimizer, on: { learners: 2 } });
    await expect(learn(data(3), data(4))).rejects.toThrow(/^The training data.*\[3\].*\[4\]/);
    await expect(learn(data(4), data(5))).rejects.toThrow(/^The test data.*\[5\].*\[4\]/);
  });
});

describe('the error', () => {
  it('names the type that a column should have', async () => {
    const labels = { name: 'labels', data: new Float32Array(100) };
    await expect(run(data(4, 100, labels))).rejects.toMatchObject({
      code: 'SHAPE_MISMATCH',
      message: expect.stringMatching(
        /column "labels" gives float32, the model's input "labels" takes int32.*Int32Array/,
      ) as string,
    });
    const x = { name: 'x', data: new Int32Array(400), sampleShape: [4] };
    await expect(run(data(4, 100, x))).rejects.toThrow(/"x" gives int32.*takes float32.*Float32Array/);
  });

  it('says which columns there are where one is missing, and lists all faults at once', async () => {
    const { columns } = data(3);
    const renamed = new Dataset(columns.map((column) => ({ ...column, name: column.name.toUpperCase() })));
    await expect(run(renamed)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(
        /no column "x" for the model's input.*no column "labels".*it has X, LABELS/i,
      ) as string,
    });
    const onlyX = new Dataset(columns.filter(({ name }) => name === 'x'));
    await expect(run(onlyX)).rejects.toThrow(/"x" has samples of shape \[3\].*no column "labels"/);
  });

  it('says how a column of as many numbers in another shape is made to fit', async () => {
    const x = { name: 'x', data: new Float32Array(400), sampleShape: [2, 2] };
    await expect(run(data(4, 100, x))).rejects.toThrow(/\[2, 2\].*\[4\].*give the column sampleShape \[4\]/);
    const labels = { name: 'labels', data: new Int32Array(100), sampleShape: [1] };
    await expect(run(data(4, 100, labels))).rejects.toThrow(/\[1\].*takes one number.*sampleShape \[\]/);
  });

  it('tells an input that has no place for a batch', async () => {
    const graph = new g.Graph();
    const x = graph.input('x', [4]);
    const loss = g.mean(g.mul(x, graph.parameter('w', [4])));
    const fixed = { graph, loss, outputs: {} };
    await expect(fit(fixed, { train: data(4), optimizer })).rejects.toThrow(
      /input "x" is \[4\].*Make the batch N the first dimension/,
    );
  });
});

describe('data that fits', () => {
  it('may be bytes with a scale, have more columns than inputs, and be less than a batch', async () => {
    const x = { name: 'x', data: new Uint8Array(28), sampleShape: [4], scale: { multiply: 0.5, add: 0 } };
    const more = { name: 'weight', data: new Float32Array(7) };
    const result = await run(data(4, 7, x, more), data(4, 3));
    expect(result.steps).toBe(1);
    await result.close();
  });

  it('may fill several rows of a batch with each sample', async () => {
    const graph = new g.Graph();
    const logits = g.linear(graph.input('x', [{ multiple: 2 }, 4]), 2);
    const labels = graph.input('labels', [{ multiple: 2 }], 'int32');
    const rows = { graph, loss: g.crossEntropy(logits, labels), outputs: { logits } };
    const train = new Dataset([
      { name: 'x', data: new Float32Array(80), sampleShape: [2, 4] },
      { name: 'labels', data: new Int32Array(20), sampleShape: [2] },
    ]);
    const result = await fit(rows, { train, test: train, optimizer, batchSize: 5 });
    expect(result.steps).toBe(2);
    await result.close();
  });
});
