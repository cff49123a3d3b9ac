/** Real learner processes on real shared memory: they learn as one does, every sample counts once, and deaths change nothing. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { UPDATE_MODES } from '../../src/learners/index.ts';
import type { TrainEvent, TrainResult } from '../../src/learners/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { chooseSeed } from '../support/rank-processes.ts';
import { moduleOf } from '../support/test-program.ts';
import type { TinyData } from './tiny-task.ts';
import { killProcess } from './watchdog-process.ts';
import { segmentFiles } from '../support/segment-files.ts';
import { trainTask, type TaskOptions } from './train-task.ts';

const TASK: TinyData = { samples: 2003, batchSize: 8, seed: 3 };
const EPOCHS = 3;
const source = (data: Partial<TinyData> = {}) => ({
  module: moduleOf(new URL('./tiny-task.ts', import.meta.url).href),
  data: { ...TASK, ...data },
});

let folder: string;
const results: TrainResult[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-learners-'));
});
afterEach(() => {
  for (const result of results.splice(0)) result.close();
  rmSync(folder, { recursive: true, force: true });
  expect(segmentFiles().filter((name) => name.includes(`learners-${process.pid}-`))).toEqual([]);
});

async function train(options: Partial<TaskOptions>): Promise<TrainResult & { events: TrainEvent[] }> {
  const events: TrainEvent[] = [];
  const { onEvent } = options;
  const result = await trainTask({
    ...{ source: source(), learners: 2, epochs: EPOCHS, ...options },
    onEvent: (event) => {
      events.push(event);
      onEvent?.(event);
    },
  });
  results.push(result);
  return { ...result, events };
}

describe.skipIf(!hasSharedMemory())('learners', () => {
  it.each([1, 2, 8])('%i of them learn, and every sample counts once', async (learners) => {
    const result = await train({ learners });
    expect(result.finished).toBe(true);
    expect(result.samples).toBe(EPOCHS * TASK.samples);
    expect(result.steps).toBe(EPOCHS * Math.ceil(TASK.samples / TASK.batchSize));
    expect(result.evaluation!.accuracy).toBeGreaterThan(0.83);
    if (learners === 1) expect(result.meanStaleness).toBe(0);
  });

  it.each(UPDATE_MODES)('learn by %s', async (mode) => {
    const result = await train({ mode });
    expect(result.samples).toBe(EPOCHS * TASK.samples);
    expect(result.steps).toBe(EPOCHS * Math.ceil(TASK.samples / TASK.batchSize));
    expect(result.evaluation!.accuracy).toBeGreaterThan(0.83);
  });

  it.each(['direct lock-free', 'server locked'] as const)(
    'that are killed at random moments are replaced: %s',
    async (mode) => {
      const seed = chooseSeed();
      const random = new Random(seed);
      const steps = EPOCHS * Math.ceil(TASK.samples / TASK.batchSize);
      const pids: number[] = [];
      let step = 0;
      const kills = Array.from({ length: 4 }, () => random.below(steps - 100)).sort((a, b) => a - b);
      const disturbed = await train({
        mode,
        onEvent: (event) => {
          if (event.type === 'started') pids.push(...event.learners, ...(event.server ? [event.server] : []));
          if (event.type === 'progress') step = event.step;
          // The server is the last.
          if (event.type === 'learner-lost') pids[event.learner ?? 2] = event.replacement!;
          while (kills.length > 0 && step >= kills[0]!) {
            kills.shift();
            killProcess(pids[random.below(pids.length)]!);
          }
        },
      });
      const lost = disturbed.events.filter((event) => event.type === 'learner-lost');
      console.log(`seed ${seed}: ${JSON.stringify(lost.map(({ returned, torn }) => ({ returned, torn })))}`);
      expect(disturbed.samples).toBe(EPOCHS * TASK.samples);
      expect(disturbed.steps).toBe(steps);
      expect(disturbed.evaluation!.accuracy).toBeGreaterThan(0.83);
    },
  );

  it('one that is stopped is ended and replaced', async () => {
    const pids: number[] = [];
    let stopped: number | undefined;
    const result = await train({
      stallMs: 1000,
      onEvent: (event) => {
        if (event.type === 'started') pids.push(...event.learners);
        if (event.type !== 'progress' || stopped !== undefined) return;
        stopped = pids[1]!;
        killProcess(stopped, 'SIGSTOP');
      },
      epochs: 25,
    });
    expect(result.samples).toBe(25 * TASK.samples);
    const lost = result.events.filter((event) => event.type === 'learner-lost');
    // If it held no batch when it was stopped nobody missed it, and it was ended with the run.
    if (lost.length > 0) expect(lost[0]).toMatchObject({ pid: stopped, how: 'was ended by SIGKILL' });
    expect(stopped).toBeDefined();
  });

  it('end with an error and a good checkpoint when a loss is not a number', async () => {
    const broken = train({
      source: source({ brokenSample: 700 }),
      checkpointDirectory: folder,
      checkpointEverySteps: 20,
    });
    await expect(broken).rejects.toMatchObject({ code: 'NOT_A_NUMBER' });
    await expect(broken).rejects.toThrow(
      /loss of learner \d is NaN .*(No checkpoint was written yet|The last good checkpoint is .*step-\d+)\.$/,
    );
  });

  it('end with an error when all are gone and none may be started again', async () => {
    const gone = train({
      ...{ maxReplacements: 0, maxRestarts: 0 },
      epochs: 1000,
      onEvent: (event) => {
        if (event.type === 'progress') pids.forEach((pid) => killProcess(pid));
        if (event.type === 'started') pids.push(...event.learners);
      },
    });
    const pids: number[] = [];
    await expect(gone).rejects.toMatchObject({ code: 'PEER_LOST' });
  });

  it('go on from a checkpoint, also within an epoch', async () => {
    const abort = new AbortController();
    const first = await train({
      ...{ checkpointDirectory: folder, epochs: 5, signal: abort.signal },
      onEvent: (event) => {
        if (event.type === 'progress' && event.step > 300) abort.abort();
      },
    });
    expect(first.finished).toBe(false);
    const second = await train({ checkpointDirectory: folder, epochs: 5, resume: true });
    expect(second.finished).toBe(true);
    expect(second.steps).toBe(5 * Math.ceil(TASK.samples / TASK.batchSize));
    expect(second.evaluation!.accuracy).toBeGreaterThan(0.83);
  });
});
