/** What the watchdog does when nobody is left or nothing moves, when memory is short, and what becomes of learners without it. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { LearnerMemory } from '../../src/learners/learner-memory.ts';
import type { TrainEvent, TrainResult } from '../../src/learners/index.ts';
import { gradients } from '../../src/graph/index.ts';
import { createOptimizer, Kernels } from '../../src/kernels/index.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { weightBytes } from '../../src/runtime/index.ts';
import { moduleOf } from '../support/test-program.ts';
import { buildTask } from './tiny-task.ts';
import type { TinyData } from './tiny-task.ts';
import { killProcess, WatchdogProcess } from './watchdog-process.ts';
import { segmentFiles } from '../support/segment-files.ts';
import { trainTask, type TaskOptions } from './train-task.ts';

const TASK: TinyData = { samples: 2003, batchSize: 8, seed: 3 };
const BATCHES = Math.ceil(TASK.samples / TASK.batchSize);
const EPOCHS = 4;
const source = (data: Partial<TinyData> = {}) => ({
  module: moduleOf(new URL('./tiny-task.ts', import.meta.url).href),
  data: { ...TASK, ...data },
});

let folder: string;
const results: TrainResult[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-recovery-'));
});
afterEach(() => {
  for (const result of results.splice(0)) result.close();
  rmSync(folder, { recursive: true, force: true });
  expect(segmentFiles().filter((name) => name.includes(`learners-${process.pid}-`))).toEqual([]);
});

interface Disturbance {
  /** Since the last start. */
  readonly afterSteps: number;
  /** In how many starts. */
  readonly times: number;
  readonly act: (pids: readonly number[]) => void;
}

async function train(
  options: Partial<TaskOptions>,
  disturb?: Disturbance,
): Promise<TrainResult & { events: TrainEvent[] }> {
  const events: TrainEvent[] = [];
  let pids: number[] = [];
  let [from, times] = [0, 0];
  const result = await trainTask({
    ...{ source: source(), learners: 2, epochs: EPOCHS, ...options },
    onEvent: (event) => {
      events.push(event);
      if (event.type === 'started' || event.type === 'restarted') {
        pids = [...event.learners, ...(event.server === undefined ? [] : [event.server])];
        from = event.step;
      }
      options.onEvent?.(event);
      // However fast they are, no learner passes the end of an epoch before this returns.
      if (!disturb || (event.type !== 'progress' && event.type !== 'epoch') || pids.length === 0) return;
      if (times === disturb.times || event.step - from < disturb.afterSteps) return;
      times++;
      disturb.act(pids);
      pids = [];
    },
  });
  results.push(result);
  return { ...result, events };
}

const killAll = (pids: readonly number[]) => pids.forEach((pid) => killProcess(pid));
const restarts = (events: readonly TrainEvent[]) => events.filter((event) => event.type === 'restarted');

describe.skipIf(!hasSharedMemory())('learners that cannot finish', () => {
  const none = { maxReplacements: 0 } as const;

  it('start again from the last checkpoint', async () => {
    const { events, ...result } = await train(
      { ...none, checkpointDirectory: folder, checkpointEverySteps: 50 },
      { afterSteps: 300, times: 1, act: killAll },
    );
    const [restarted] = restarts(events);
    expect(restarted).toMatchObject({ restart: 1, checkpoint: expect.stringContaining(folder) as string });
    expect(restarted!.why).toMatch(/all learners have died, after 0 replacement/);
    expect(restarted!.step).toBeGreaterThan(0);
    expect(result).toMatchObject({ restarts: 1, finished: true, steps: EPOCHS * BATCHES });
    expect(result.samples).toBe(EPOCHS * TASK.samples);
    expect(result.evaluation!.accuracy).toBeGreaterThan(0.83);
  });

  it('start again from the first weights if nothing was kept, as often as they may, and then end', async () => {
    const failing = train(
      { ...none, mode: 'server locked', maxRestarts: 1, epochs: 1000 },
      {
        ...{ afterSteps: 30, times: 2 },
        // The server alone is enough.
        act: (pids) => killProcess(pids.at(-1)!),
      },
    );
    await expect(failing).rejects.toMatchObject({ code: 'PEER_LOST', facts: { restarts: 1 } });
    await expect(failing).rejects.toThrow(/the server has died.*1 restart\(s\); no checkpoint was written/);
  });

  it('start again when nothing moves', async () => {
    const { events, ...result } = await train(
      { ...none, learners: 1, stallMs: 1000, maxRestarts: 3 },
      { afterSteps: 100, times: 1, act: (pids) => pids.forEach((pid) => killProcess(pid, 'SIGSTOP')) },
    );
    const [restarted] = restarts(events);
    expect(restarted).toMatchObject({ restart: 1, checkpoint: undefined, step: 0 });
    expect(result).toMatchObject({ finished: true, steps: EPOCHS * BATCHES });
    expect(result.samples).toBe(EPOCHS * TASK.samples);
  });
});

describe.skipIf(!hasSharedMemory())('learners that the system does not start', () => {
  const { execPath } = process;
  afterEach(() => {
    process.execPath = execPath;
  });

  it('are told of with the reason and the next step, again where the run ends', async () => {
    process.execPath = join(folder, 'nothing-here');
    const events: TrainEvent[] = [];
    const failing = train({
      ...{ maxReplacements: 1, maxRestarts: 0 },
      onEvent: (event) => void events.push(event),
    });
    const why = /could not be started \(spawn .*nothing-here ENOENT\); raise .*ulimit -u/;
    await expect(failing).rejects.toMatchObject({ code: 'PEER_LOST', cause: { code: 'ENOENT' } });
    await expect(failing).rejects.toThrow(why);
    const lost = events.filter((event) => event.type === 'learner-lost');
    expect(lost).toHaveLength(3);
    for (const event of lost)
      expect(event).toMatchObject({ pid: undefined, how: expect.stringMatching(why) as string });
  });
});

describe.skipIf(!hasSharedMemory())('checkpoints', () => {
  it('are made every so many steps; those of another task are refused, and the difference named', async () => {
    // So long that it is stopped within the first epoch.
    const data = { samples: 200_003 };
    const abort = new AbortController();
    const [kept, ready] = [new Set<number>(), new Set<number>()];
    const first = await train({
      ...{ source: source(data), checkpointDirectory: folder, checkpointEverySteps: 500 },
      ...{ epochs: 1000, signal: abort.signal },
      onEvent: (event) => {
        if (event.type === 'checkpoint') kept.add(event.step);
        if (event.type === 'progress') ready.add(event.ready);
        if (kept.size > 0 && ready.has(2)) abort.abort();
      },
    });
    expect(first).toMatchObject({ finished: false, steps: Math.max(...kept) });
    expect(Math.min(...kept)).toBeLessThan(data.samples / TASK.batchSize);

    const resume = (changed: Partial<TinyData>) =>
      train({ checkpointDirectory: folder, resume: true, source: source({ ...data, ...changed }) });
    await expect(resume({ seed: 4 })).rejects.toMatchObject({ code: 'CHECKPOINT_MISMATCH' });
    await expect(resume({ seed: 4 })).rejects.toThrow(/made with seed 3; this run has seed 4/);
    await expect(resume({ samples: 2000 })).rejects.toThrow(/samples 200003; this run has samples 2000/);
    await expect(resume({ batchSize: 16 })).rejects.toThrow(/batchSize 8; this run has batchSize 16/);
  });
});

describe.skipIf(!hasSharedMemory())('shared memory', () => {
  it('that is too small is an error that says how much is needed, and leaves nothing (needs root to mount a tmpfs)', async (context) => {
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m,mode=0700', 'tmpfs', folder], { stdio: 'ignore' });
    } catch {
      return context.skip('root, to mount a tmpfs');
    }
    try {
      const here = { segmentDirectory: folder, mode: 'server lock-free' } as const;
      // A few of the many slots fit.
      const failing = train({ ...here, learners: 64 });
      await expect(failing).rejects.toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
      await expect(failing).rejects.toThrow(
        /64 learner\(s\) need \d{6,} bytes of shared memory, \d+ of them for/,
      );
      expect(readdirSync(folder)).toEqual([]);
      const result = await train({ ...here, learners: 1, epochs: 1 });
      expect(result.samples).toBe(TASK.samples);
      result.close();
      expect(readdirSync(folder)).toEqual([]);
    } finally {
      execFileSync('umount', [folder]);
    }
  });

  it('is cleared by a learner that waits for a lock of one that was killed together with the watchdog', async () => {
    // Between epochs nobody needs a lock, so there is one long epoch.
    const data = { ...TASK, samples: 400_003 };
    const watchdog = new WatchdogProcess({
      ...{ source: source(data), learners: 2, mode: 'direct locked', epochs: 1000 },
      // Where no other run of this user sweeps.
      segmentDirectory: folder,
    });
    const segments = () => readdirSync(folder).filter((name) => name.includes(`learners-${watchdog.pid}-`));
    try {
      await watchdog.until('both train', () => watchdog.said('progress').some(({ ready }) => ready === 2));
      const [segment] = segments();
      const { model, optimizer } = buildTask(TASK);
      const space = SharedSpace.create();
      const layout = {
        board: { batches: Math.ceil(data.samples / TASK.batchSize), learners: 2, slots: 0 },
        parameters: gradients(model.loss).length,
        weightBytes: weightBytes(model, createOptimizer(Kernels.create(space), optimizer).slots),
      };
      const name = segment!.slice('tributary-'.length);
      const memory = LearnerMemory.attach(space, name, layout, { directory: folder });
      const holder = watchdog.children.get('learner 0')!;
      let isCleared = false;
      // In the name of the learner, as nobody can tell at which instruction it is killed.
      memory.whileLocked({ number: 0, generation: 0 }, 0, () => {
        for (const pid of [watchdog.pid, holder]) killProcess(pid);
        const deadlineMs = performance.now() + 30_000;
        const never = new Int32Array(new SharedArrayBuffer(4));
        // Holding a lock is synchronous.
        while (!isCleared && performance.now() < deadlineMs) {
          Atomics.wait(never, 0, 0, 5);
          isCleared = segments().length === 0;
        }
      });
      memory.close();
      expect(isCleared).toBe(true);
      await watchdog.until('its processes have ended', () => watchdog.alive().length === 0);
    } finally {
      await watchdog.close();
    }
  });

  it('is cleared by learners whose watchdog was killed; they end by themselves, and a new one goes on', async () => {
    const common = { source: source({ samples: 50_003 }), learners: 2, mode: 'server locked' } as const;
    const options = { ...common, checkpointDirectory: folder, checkpointEverySteps: 200, epochs: 2 };
    const watchdog = new WatchdogProcess({ ...options, epochs: 1000 });
    try {
      await watchdog.until('a checkpoint', () => watchdog.said('checkpoint').length > 0);
      expect(watchdog.segments()).toHaveLength(5);
      await watchdog.kill();
      await watchdog.until('its processes have ended', () => watchdog.alive().length === 0);
      expect(watchdog.segments()).toEqual([]);
    } finally {
      await watchdog.close();
    }
    const result = await train({ ...options, resume: true });
    const [resumed, started] = result.events;
    expect([resumed, started]).toMatchObject([{ type: 'resumed' }, { type: 'started' }]);
    expect((started as { step: number }).step).toBeGreaterThan(0);
    expect(result.steps).toBe(2 * Math.ceil(50_003 / TASK.batchSize));
  });
});
