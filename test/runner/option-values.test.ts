/** Values that no run can have are refused by their option's name, before anything is started: JavaScript has no compiler to do so. */
import { describe, expect, it } from 'vitest';
import { Dataset } from '../../src/data/index.ts';
import { fit, getRunner, oneDevice } from '../../src/runner/index.ts';
import { circles, circlesModel } from './circles.ts';

const train = circles(40, 1);
const optimizer = { name: 'adam', lr: 0.01 } as const;
/** As a caller in JavaScript writes it. */
const fitWith = (more: object) => fit(circlesModel(), { train, optimizer, ...more });

describe('fit refuses', () => {
  it.each([
    [{ optimizer: undefined }, /^optimizer is undefined; give \{ name: 'adam'/],
    [{ train: undefined }, /^train is undefined; give a Dataset/],
    [{ test: [1, 2] }, /^test is \[1,2\]; give a Dataset/],
    [{ schedule: 'cosine' }, /^schedule is "cosine"; give \{ name: 'cosine', .* only a configuration/],
    [{ batchSize: 0 }, /^batchSize is 0; give a whole number of 1 or more/],
    [{ batchSize: '8' }, /^batchSize is "8"; give/],
    [{ epochs: -1 }, /^epochs is -1; give/],
    [{ epochs: 1.5 }, /^epochs is 1.5; give/],
    [{ maxSteps: NaN }, /^maxSteps is NaN; give/],
    [{ resume: true }, /^resume is true, and there is no checkpointDirectory.*leave out resume$/],
    [{ checkpointEverySteps: 5 }, /^checkpointEverySteps is 5, and there is no checkpointDirectory/],
    [{ checkpointEverySteps: 0 }, /^checkpointEverySteps is 0; give a whole number of 1 or more/],
    [{ session: { provider: 'gpu' } }, /^session.provider is "gpu"; give 'cpu', 'webgpu', 'cuda'/],
    [{ on: 'auto' }, /^on is 'auto'.*only tributary train.*on: \{ learners: 2 \}/],
  ])('%j', async (more, message) => {
    await expect(fitWith(more)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringMatching(message) as unknown,
    });
  });

  it.each([
    ['nothing', undefined, /^the model is undefined; give \{ graph, loss, outputs \}/],
    ['a function', circlesModel, /^the model is a function; give/],
    ['an object of another kind', { layers: [] }, /^the model is an object without a graph; give/],
  ])('%s instead of a model', async (_, model, message) => {
    await expect(fit(model as never, { train, optimizer })).rejects.toMatchObject({
      code: 'INVALID_GRAPH',
      message: expect.stringMatching(message) as unknown,
    });
  });
});

it('runners refuse the same, workers before they are started', async () => {
  const lost = { optimizer, resume: true };
  for (const call of [
    () => oneDevice(circlesModel(), lost),
    () => getRunner(circlesModel(), { ...lost, on: { workers: 2 } }),
    () => fit(circlesModel(), { ...lost, train, on: { learners: 2 } }),
  ]) {
    await expect(call()).rejects.toThrow('resume is true, and there is no checkpointDirectory');
  }
});

it('a run of a runner refuses a length that it cannot have', async () => {
  const runner = await oneDevice(circlesModel(), { optimizer });
  try {
    await expect(runner.run(train, { epochs: -2 }).next()).rejects.toThrow('epochs is -2; give');
    await expect(runner.run([] as never).next()).rejects.toThrow('data is []; give a Dataset');
  } finally {
    await runner.close();
  }
});

it.each([
  [[1, 2], 'Array'],
  [new Float64Array(2), 'Float64Array'],
  [undefined, 'undefined'],
])('a column of %j is refused by its type', (data, type) => {
  expect(() => new Dataset([{ name: 'x', data: data as never }])).toThrow(
    `Column "x" has data of type ${type}; give a Float32Array, an Int32Array or a Uint8Array`,
  );
});
