/**
 * Learners, servers and the watchdog itself are killed at random moments: every run finishes, with the accuracy of an undisturbed
 * one within a point, every sample of every epoch counted once, and nothing left behind. TRIBUTARY_KILLS says how many
 * runs, each with one to three kills; TRIBUTARY_SEED repeats one as far as the machine's timing lets it.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { UPDATE_MODES } from '../../src/learners/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { chooseSeed } from '../support/rank-processes.ts';
import type { DigitsData } from './digits-task.ts';
import { killProcess, WatchdogProcess } from './watchdog-process.ts';
import { type TaskOptions } from './train-task.ts';

const RUNS = Number(process.env['TRIBUTARY_KILLS'] ?? 2);
const EPOCHS = 3;
// Whole batches: steps and samples say the same.
const TASK: DigitsData = { samples: 4800, testSamples: 4000, batchSize: 16, epochs: EPOCHS };
const STEPS = (EPOCHS * TASK.samples) / TASK.batchSize;
const MOST_KILLS = 3;
/** Within a few steps. */
const MOST_UNTIL_KILL_MS = 20;
const RUN_MS = 180_000;

const options: TaskOptions = {
  source: { module: new URL('./digits-task.ts', import.meta.url).href, data: TASK },
  ...{ learners: 2, epochs: EPOCHS, checkpointEverySteps: 90, maxRestarts: MOST_KILLS },
};

let folder: string;
const watchdogs: WatchdogProcess[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-kills-'));
});
afterEach(async () => {
  for (const watchdog of watchdogs.splice(0)) await watchdog.close();
  rmSync(folder, { recursive: true, force: true });
});

function start(more: Partial<TaskOptions> = {}): WatchdogProcess {
  const watchdog = new WatchdogProcess({ ...options, ...more });
  watchdogs.push(watchdog);
  return watchdog;
}

describe.skipIf(!hasSharedMemory())('learners that are killed at random', () => {
  let undisturbed: number;
  beforeAll(async () => {
    const watchdog = new WatchdogProcess({ ...options, checkpointEverySteps: undefined });
    await watchdog.ended();
    undisturbed = watchdog.result!.evaluation!.accuracy!;
    console.log(`undisturbed: accuracy ${undisturbed}`);
  }, RUN_MS);

  it.each(
    Array.from({ length: RUNS }, (_, run) => ({ run, mode: UPDATE_MODES[run % UPDATE_MODES.length]! })),
  )(
    'end as if nothing had been: run $run, $mode',
    async ({ mode }) => {
      const seed = chooseSeed();
      const random = new Random(seed);
      // With replacements those that are left go on; without, all begin again from the last checkpoint.
      const maxReplacements = random.below(2) === 0 ? 8 : 0;
      const journal = [`seed ${seed}, ${mode}, ${maxReplacements} replacements`];
      const kills = Array.from({ length: 1 + random.below(MOST_KILLS) }, () => random.below(STEPS));
      const settings = { mode, maxReplacements, checkpointDirectory: folder };
      let watchdog = start(settings);
      try {
        for (const at of kills.sort((a, b) => a - b)) {
          await watchdog.until(`step ${at}`, () => watchdog.step >= at || !watchdog.isAlive);
          if (!watchdog.isAlive && !watchdog.result) throw new Error('the watchdog ended by itself');
          await pause(random.uniform() * MOST_UNTIL_KILL_MS);
          const victims = [...watchdog.children, ['watchdog', watchdog.pid] as const];
          const [who, pid] = victims[random.below(victims.length)]!;
          journal.push(`${who} at step ${watchdog.step}`);
          if (who !== 'watchdog') {
            killProcess(pid);
            continue;
          }
          await watchdog.kill();
          await watchdog.until('its processes have ended', () => watchdog.alive().length === 0);
          watchdog = start({ ...settings, resume: true });
        }
        await watchdog.ended();
      } finally {
        const lost = watchdogs.flatMap((one) => one.said('learner-lost'));
        const torn = lost.flatMap((event) => event.torn).length;
        const restarts = watchdogs.flatMap((one) => one.said('restarted')).length;
        const accuracy = watchdog.result?.evaluation?.accuracy;
        console.log(`${journal.join('; ')}: ${torn} torn, ${restarts} restarts, accuracy ${accuracy}`);
      }
      const { result } = watchdog;
      expect(result).toMatchObject({ finished: true, steps: STEPS });
      const [started] = watchdog.said('started');
      expect(result!.samples).toBe((STEPS - started!.step) * TASK.batchSize);
      expect(Math.abs(result!.evaluation!.accuracy! - undisturbed)).toBeLessThanOrEqual(0.01);
      for (const one of watchdogs) {
        expect(one.alive()).toEqual([]);
        expect(one.segments()).toEqual([]);
      }
    },
    RUN_MS,
  );
});
