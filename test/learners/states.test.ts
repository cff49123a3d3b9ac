/**
 * What is not a trained parameter, in every mode: running statistics and other states, frozen parameters, moving averages. One
 * learner gives what a replica in this process gives; several come close; checkpoints and resumed runs have all of it.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import { SampleOrder } from '../../src/data/index.ts';
import { UPDATE_MODES } from '../../src/learners/index.ts';
import type { TrainEvent, TrainResult } from '../../src/learners/index.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { evaluate } from '../../src/runtime/index.ts';
import { CheckpointStore, Replica } from '../../src/runtime/index.ts';
import type { Snapshot } from '../../src/runtime/index.ts';
import { moduleOf } from '../support/test-program.ts';
import { buildTask, INPUT_MEAN } from './states-task.ts';
import type { StatesData } from './states-task.ts';
import { killProcess } from './watchdog-process.ts';
import { trainTask, type TaskOptions } from './train-task.ts';

const TASK: StatesData = { samples: 806, batchSize: 8, seed: 5 };
const BATCHES = Math.ceil(TASK.samples / TASK.batchSize);
const EPOCHS = 2;
const source = (data: Partial<StatesData> = {}) => ({
  module: moduleOf(new URL('./states-task.ts', import.meta.url).href),
  data: { ...TASK, ...data },
});

let folder: string;
const results: TrainResult[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-states-'));
});
afterEach(() => {
  for (const result of results.splice(0)) result.close();
  rmSync(folder, { recursive: true, force: true });
});

async function train(options: Partial<TaskOptions>): Promise<TrainResult> {
  const result = await trainTask({ source: source(), learners: 1, epochs: EPOCHS, ...options });
  results.push(result);
  return result;
}

type Values = Record<string, number[]>;

function valuesOf({ tensors }: Snapshot, wanted: (name: string) => boolean = () => true): Values {
  return Object.fromEntries(
    Object.entries(tensors)
      .filter(([name]) => wanted(name))
      .map(([name, { data }]) => [name, [...(data as Float32Array)]]),
  );
}

/** Those that depend on the samples alone, whoever applies gradients when. */
const byBatchesAlone = (name: string) => name.startsWith('inputs.running_') || name === 'batches';

/** The same batches one after the other, in this process. */
function trainAlone(epochs: number): { values: Values; accuracy: number; averageAccuracy: number } {
  const { model, train: samples, test, optimizer, batchSize = 32, seed = 0 } = buildTask(TASK);
  const compute = new OnnxCompute();
  const replica = new Replica(model, {
    ...{ compute, space: SharedSpace.create(), optimizer, maxBatch: batchSize, seed },
  });
  const order = new SampleOrder(samples.length, { seed });
  for (let batch = 0; batch < epochs * BATCHES; batch++) {
    const drawn = order.seek(Math.floor(batch / BATCHES), (batch % BATCHES) * batchSize).draw(batchSize);
    for (const [name, target] of Object.entries(replica.inputs)) samples.read(drawn.samples, name, target);
    replica.computeGradients(drawn.samples);
    replica.update();
  }
  const result = {
    values: valuesOf(replica.snapshot()),
    accuracy: evaluate(replica, test!).accuracy!,
    averageAccuracy: evaluate(replica, test!, { average: 'average' }).accuracy!,
  };
  replica.close();
  compute.close();
  return result;
}

function expectTrained(result: TrainResult): void {
  const { test } = buildTask(TASK);
  expect(result.evaluation!.accuracy).toBeGreaterThan(0.97);
  expect(evaluate(result.replica, test!, { average: 'average' }).accuracy).toBeGreaterThan(0.97);
  const values = valuesOf(result.replica.snapshot());
  for (const mean of values['inputs.running_mean']!) expect(Math.abs(mean - INPUT_MEAN)).toBeLessThan(0.3);
  for (const variance of values['inputs.running_var']!) {
    expect(variance).toBeGreaterThan(0.1);
    expect(variance).toBeLessThan(0.4);
  }
}

describe.skipIf(!hasSharedMemory()).each(UPDATE_MODES)('learners by %s', (mode) => {
  it('alone have the states, frozen parameters and averages of a run in one process', async () => {
    const alone = trainAlone(EPOCHS);
    expect(alone.accuracy).toBeGreaterThan(0.97);
    expect(alone.averageAccuracy).toBeGreaterThan(0.97);
    const result = await train({ mode, checkpointDirectory: folder });
    expectTrained(result);
    const values = valuesOf(result.replica.snapshot());
    // A server applies a gradient while the next one is computed, so what follows from parameters may differ.
    const isExact = mode.startsWith('direct');
    const compared = Object.keys(alone.values).filter(
      (name) => isExact || byBatchesAlone(name) || name === 'frozen.w',
    );
    for (const name of compared) expect([name, values[name]]).toEqual([name, alone.values[name]]);
    expect(values['batches']).toEqual([EPOCHS * BATCHES]);
    const { checkpoint } = new CheckpointStore(folder).latest();
    expect(valuesOf(checkpoint!)).toEqual(values);
  });

  it('of which one is killed evaluate, keep and resume with all of it', async () => {
    const events: TrainEvent[] = [];
    let pid: number | undefined;
    const epochs = 6;
    const first = await train({
      ...{ mode, learners: 2, epochs, checkpointDirectory: folder },
      onEvent: (event) => {
        events.push(event);
        if (event.type === 'started') pid = event.learners[0];
        // However fast they are, no learner passes the end of an epoch before this returns.
        if (event.type !== 'progress' && event.type !== 'epoch') return;
        if (event.step < BATCHES / 2 || pid === undefined) return;
        killProcess(pid);
        pid = undefined;
      },
    });
    expectTrained(first);
    const lost = events.filter(({ type }) => type === 'learner-lost');
    expect(lost).toHaveLength(1);
    const kept = valuesOf(first.replica.snapshot());
    expect(valuesOf(new CheckpointStore(folder).latest().checkpoint!)).toEqual(kept);
    const frozen = kept['frozen.w'];
    expect(frozen).toEqual(trainAlone(0).values['frozen.w']);

    // Nothing is left to train: what is evaluated is what was kept.
    const again = await train({ mode, learners: 2, epochs, checkpointDirectory: folder, resume: true });
    expect(valuesOf(again.replica.snapshot())).toEqual(kept);
    expect(again.evaluation).toEqual(first.evaluation);
    const longer = await train({ mode, epochs: epochs + 1, checkpointDirectory: folder, resume: true });
    expectTrained(longer);
    const values = valuesOf(longer.replica.snapshot());
    expect(values['frozen.w']).toEqual(frozen);
    // One learner counts every batch.
    expect(values['batches']).toEqual([kept['batches']![0]! + BATCHES]);
  });
});
