/** Processes whose tasks differ end the run before they train, and the checkpoints of learners hold only what is finite. */
import { appendFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { gradients } from '../../src/graph/index.ts';
import type { TrainEvent } from '../../src/learners/index.ts';
import { LearnerCheckpoints } from '../../src/learners/learner-checkpoints.ts';
import { identityOf } from '../../src/learners/task-check.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { Replica } from '../../src/runtime/index.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';
import { moduleOf } from '../support/test-program.ts';
import { buildTask } from './differing-task.ts';
import type { DifferingData } from './differing-task.ts';
import { trainTask, type TaskOptions } from './train-task.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-task-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

async function train(
  differs: DifferingData['differs'],
  options: Partial<TaskOptions> = {},
): Promise<TrainEvent[]> {
  const events: TrainEvent[] = [];
  const result = await trainTask({
    source: {
      module: moduleOf(new URL('./differing-task.ts', import.meta.url).href),
      data: { watchdogPid: process.pid, differs } satisfies DifferingData,
    },
    learners: 1,
    onEvent: (event) => events.push(event),
    ...options,
  });
  result.close();
  return events;
}

describe.skipIf(!hasSharedMemory())('a task that a learner builds otherwise', () => {
  it.each([
    [
      'model',
      /learner 0 came to the call with something else than the process that started the run: model\. Build/,
    ],
    ['samples', /training data \(31 samples of x\[2\], labels\[\] instead of 32 samples/],
    ['batch size', /batch size \(4 instead of 8\)/],
  ] as const)('ends the run by naming the %s', async (differs, message) => {
    const failing = train(differs);
    await expect(failing).rejects.toMatchObject({ code: 'INVALID_GRAPH' });
    await expect(failing).rejects.toThrow(message);
  });

  it('is the same one also when its model has been given gradients', () => {
    const data = { watchdogPid: process.pid, differs: 'nothing' } as const;
    const [fresh, used] = [buildTask(data), buildTask(data)];
    gradients(used.model.loss);
    expect(identityOf(used)).toEqual(identityOf(fresh));
  });
});

describe.skipIf(!hasSharedMemory())('a script', () => {
  it.each([
    [
      'fails',
      `console.error('no such file'); process.exit(3)`,
      /ended with code 3 .*; it last wrote: no such file\./,
    ],
    ['ends', '', /ended with code 0 before it came to the call that trains\. Let every process come/],
  ])('that %s before it comes to the call ends the run by what it said', async (_what, program, words) => {
    const events: TrainEvent[] = [];
    const failing = train('nothing', {
      command: [process.execPath, '-e', program],
      onEvent: (event) => events.push(event),
    });
    await expect(failing).rejects.toMatchObject({ code: 'PEER_EXITED' });
    await expect(failing).rejects.toThrow(words);
    // Another would end alike.
    expect(events.filter(({ type }) => type !== 'progress').map(({ type }) => type)).toEqual(['started']);
  });
});

describe.skipIf(!hasSharedMemory())('a damaged checkpoint', () => {
  it('that learners do not go on from is told', async () => {
    const first = await train('nothing', { epochs: 2, checkpointDirectory: folder });
    const paths = first.flatMap((event) => (event.type === 'checkpoint' ? [event.path] : []));
    expect(paths).toHaveLength(2);
    appendFileSync(join(paths[1]!, 'model.safetensors'), 'x');
    const events = await train('nothing', { epochs: 2, checkpointDirectory: folder, resume: true });
    expect(events.find(({ type }) => type === 'checkpoint-skipped')).toMatchObject({ path: paths[1] });
    expect(events.find(({ type }) => type === 'started')).toMatchObject({ epoch: 1 });
  });
});

describe.skipIf(!hasSharedMemory())('an old checkpoint', () => {
  it('that cannot be removed is told, and training goes on', async () => {
    const files = new FaultyFiles();
    files.fault = (call, path) => (call === 'remove' && path.startsWith(folder) ? 'EIO' : undefined);
    const goBack = files.standIn();
    const events = await train('nothing', { epochs: 3, checkpointDirectory: folder }).finally(goBack);
    const paths = events.flatMap((event) => (event.type === 'checkpoint' ? [event.path] : []));
    expect(paths).toHaveLength(3);
    expect(events.find(({ type }) => type === 'checkpoint-not-removed')).toMatchObject({ path: paths[0] });
  });
});

describe('a checkpoint', () => {
  it('during which the weights stop being finite is not kept', () => {
    const finite = [true, true, true, false];
    const replica = {
      isFinite: () => finite.shift()!,
      snapshot: () => ({ tensors: {}, optimizer: {} }),
      optimizer: { spec: { name: 'sgd', lr: 1 } },
    } as unknown as Replica;
    const checkpoints = new LearnerCheckpoints(folder, replica, {
      ...{ seed: 0, samples: 1, batchSize: 1, trainedBy: '1 learner' },
    });
    const good = checkpoints.save({ step: 1, epoch: 0, done: [] })!;
    const bad = () => checkpoints.save({ step: 2, epoch: 0, done: [] });
    expect(bad).toThrow(`not finite at step 2; the last good checkpoint is ${good}`);
    expect(readdirSync(folder).map((name) => join(folder, name))).toEqual([good]);
    expect(checkpoints.path).toBe(good);
  });
});
