/** The training loop: it learns, resumes bit for bit, stops on signals and on broken numbers, and loses nothing. */
import { mkdtempSync, readdirSync, rmSync, truncateSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import { evaluate } from '../../src/runtime/index.ts';
import { fit, type FitEvent, type FitOptions } from '../../src/runner/index.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-fit-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** Two classes on a circle: not linearly separable. */
function circles(length: number, seed: number): Dataset {
  const random = new Random(seed);
  const x = Float32Array.from({ length: 2 * length }, () => 2 * random.uniform() - 1);
  const labels = Int32Array.from({ length }, (_, i) => (x[2 * i]! ** 2 + x[2 * i + 1]! ** 2 > 0.5 ? 1 : 0));
  return new Dataset([
    { name: 'x', data: x, sampleShape: [2] },
    { name: 'labels', data: labels },
  ]);
}

function model(): g.Model {
  const graph = new g.Graph();
  const x = graph.input('x', [g.N, 2]);
  const h = g.dropout(g.tanh(g.linear(x, 32)), 0.1);
  const logits = g.linear(h, 2);
  return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: { logits } };
}

const train = circles(500, 1);
const base: FitOptions = { train, optimizer: { name: 'adam', lr: 0.02 }, batchSize: 32, epochs: 3, seed: 5 };

async function parametersOf(options: Partial<FitOptions>): Promise<Record<string, number[]>> {
  const result = await fit(model(), { ...base, ...options });
  const parameters = Object.fromEntries(
    [...result.replica.memory.parameters].map(([name, region]) => [name, [...region.view]]),
  );
  await result.close();
  return parameters;
}

describe('fit', () => {
  it('names a sample with a wrong label by its place in the data before they were split', async () => {
    const { columns } = train;
    const labels = Int32Array.from(train.column('labels').data);
    labels[37] = 9;
    const [part] = new Dataset([columns[0]!, { name: 'labels', data: labels }]).split(0.8, 0);
    expect(part.column('labels').data.indexOf(9)).not.toBe(37);
    await expect(fit(model(), { ...base, train: part })).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(
        /^Input labels of sample 37 holds 9, but the model has 2 classes\./,
      ) as string,
      facts: { sample: 37 },
    });
  });

  it('learns, with the last uneven batch of each epoch, and evaluates', async () => {
    const events: FitEvent[] = [];
    const test = circles(301, 2);
    const result = await fit(model(), { ...base, test, epochs: 40, onEvent: (event) => events.push(event) });
    expect(result.steps).toBe(40 * 16);
    expect(result.evaluation!.accuracy).toBeGreaterThan(0.93);
    expect(evaluate(result.replica, test)).toEqual(result.evaluation);
    expect(events.filter((event) => event.type === 'epoch')).toHaveLength(40);
    expect(events[0]).toMatchObject({
      type: 'started',
      step: 0,
      totalSteps: 640,
      parameters: 2 * 32 + 32 + 32 * 2 + 2,
    });
    await result.close();
  });

  it('gives the same bits for the same seed, and others for another', async () => {
    const once = await parametersOf({});
    expect(await parametersOf({})).toEqual(once);
    expect(await parametersOf({ seed: 6 })).not.toEqual(once);
  });

  it('continues from a checkpoint in the middle of an epoch bit for bit', async () => {
    const whole = await parametersOf({});
    await parametersOf({ maxSteps: 21, checkpointDirectory: folder });
    const events: FitEvent[] = [];
    const resumed = await parametersOf({
      checkpointDirectory: folder,
      resume: true,
      onEvent: (event) => events.push(event),
    });
    expect(events.find((event) => event.type === 'resumed')).toMatchObject({ step: 21 });
    expect(resumed).toEqual(whole);
  });

  it('takes the previous checkpoint where the newest is cut short, says so, and ends with the same bits', async () => {
    const whole = await parametersOf({});
    await parametersOf({ maxSteps: 32, checkpointDirectory: folder });
    const newest = readdirSync(folder).sort().at(-1)!;
    truncateSync(join(folder, newest, 'model.safetensors'), 100);
    const events: FitEvent[] = [];
    const resumed = await parametersOf({
      checkpointDirectory: folder,
      resume: true,
      onEvent: (event) => events.push(event),
    });
    expect(events.find((event) => event.type === 'checkpoint-skipped')).toBeDefined();
    expect(events.find((event) => event.type === 'resumed')).toMatchObject({ step: 16 });
    expect(resumed).toEqual(whole);
  });

  it('trains on where an old checkpoint cannot be removed, and says so', async () => {
    const files = new FaultyFiles();
    files.fault = (call, path) => (call === 'remove' && path.endsWith('step-00000016') ? 'EIO' : undefined);
    const events: FitEvent[] = [];
    const goBack = files.standIn();
    try {
      await parametersOf({ checkpointDirectory: folder, onEvent: (event) => events.push(event) });
    } finally {
      goBack();
    }
    expect(readdirSync(folder).sort()).toEqual(['step-00000016', 'step-00000032', 'step-00000048']);
    expect(events.filter(({ type }) => type === 'checkpoint')).toHaveLength(3);
    expect(events.find(({ type }) => type === 'checkpoint-not-removed')).toMatchObject({
      path: join(folder, 'step-00000016'),
      reason: expect.stringContaining('EIO') as string,
    });
  });

  it('refuses a checkpoint of another seed or optimizer', async () => {
    await parametersOf({ maxSteps: 5, checkpointDirectory: folder });
    await expect(parametersOf({ checkpointDirectory: folder, resume: true, seed: 9 })).rejects.toMatchObject({
      code: 'CHECKPOINT_MISMATCH',
    });
  });

  it('stops after the current step when the signal says so, with a checkpoint', async () => {
    const controller = new AbortController();
    const events: FitEvent[] = [];
    const result = await fit(model(), {
      ...base,
      epochs: 100_000,
      checkpointDirectory: folder,
      progressIntervalMs: 0,
      signal: controller.signal,
      onEvent: (event) => {
        events.push(event);
        if (event.type === 'progress' && event.step === 3) controller.abort();
      },
    });
    expect(result.finished).toBe(false);
    expect(result.steps).toBe(3);
    expect(result.checkpointPath).toContain('step-00000003');
    expect(events.at(-1)).toEqual({ type: 'stopped', step: 3 });
    await result.close();
  });

  it('stops at a loss that is no number, says the step, and keeps the last good checkpoint', async () => {
    const broken = circles(500, 1);
    const kept: string[] = [];
    const options: FitOptions = {
      ...base,
      train: broken,
      checkpointDirectory: folder,
      checkpointEverySteps: 4,
      progressIntervalMs: 0,
      onEvent: (event) => {
        if (event.type === 'checkpoint') kept.push(event.path);
        if (event.type === 'progress' && event.step === 6) broken.column('x').data.fill(NaN);
      },
    };
    await expect(fit(model(), options)).rejects.toMatchObject({
      code: 'NOT_A_NUMBER',
      message: expect.stringMatching(/step 6\..*step-00000004/s) as string,
    });
    expect(kept).toHaveLength(1);
    expect(readdirSync(folder)).toEqual(['step-00000004']);
  });

  it('names the column that the data lacks', async () => {
    const columns = new Dataset([{ name: 'x', data: new Float32Array(20), sampleShape: [2] }]);
    await expect(fit(model(), { ...base, train: columns })).rejects.toThrow(/labels/);
  });
});
