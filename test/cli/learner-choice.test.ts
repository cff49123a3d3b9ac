/** When learners are tried out, what is chosen, and what is said: with measurements of the test's own. */
import { describe, expect, test } from 'vitest';
import { checkConfig } from '../../src/cli/config-check.ts';
import type { ResolvedConfig } from '../../src/cli/config.ts';
import { chooseLearners, type ChoiceFacts } from '../../src/cli/learner-choice.ts';
import { translator } from '../../src/cli/learner-run.ts';
import { StepMeter } from '../../src/cli/learner-trial.ts';
import type { ResumePoint } from '../../src/cli/resume-point.ts';

const config = (changes: object = {}): ResolvedConfig =>
  checkConfig(
    { model: 'mlp', data: { kind: 'mnist' }, batchSize: 10, epochs: 4, ...changes },
    { source: '/project/tributary.config.ts', defaultName: 'tributary' },
  );
const point = (changes: Partial<ResumePoint>): ResumePoint => ({
  ...{ path: 'c', step: 0, epoch: 0, midEpoch: undefined, seed: 0, optimizer: {}, skipped: [] },
  ...changes,
});

/** Chooses with these speeds by number of learners; also gives which numbers were tried. */
async function choose(speeds: Record<number, number | Error>, facts: Partial<ChoiceFacts> = {}) {
  const tried: number[] = [];
  const whole = { config: config(), samples: 10_000, cores: 2, isShared: true, ...facts };
  const choice = await chooseLearners(whole, (learners) => {
    tried.push(learners);
    const speed = speeds[learners];
    if (speed instanceof Error) return Promise.reject(speed);
    return Promise.resolve(
      speed === undefined ? undefined : { samplesPerSec: speed, meanStaleness: learners - 1 },
    );
  });
  return { ...choice, tried };
}

describe('the number of learners', () => {
  test('is the fastest of a trial, which is told in one line', async () => {
    expect(await choose({ 1: 960, 2: 1857 })).toEqual({
      ...{ learners: 2, singleSamplesPerSec: 960, trialSpeedup: 1857 / 960, tried: [1, 2] },
      note: '2 learners, 1.9x one (1,857 against 960 samples/s), mean staleness 1.0',
    });
    expect(await choose({ 1: 100, 4: 350, 8: 300 }, { cores: 64 })).toMatchObject({
      ...{ learners: 4, tried: [1, 4, 8] },
    });
  });

  test.each([
    ['slower', 90],
    ['not clearly faster', 104],
  ])('is one where more are %s', async (_what, speed) => {
    const choice = await choose({ 1: 100, 2: speed });
    expect(choice.learners).toBe(1);
    expect(choice.note).toBe(
      `1 learner: 2 are ${(speed / 100).toFixed(2)}x as fast (${speed} against 100 samples/s).`,
    );
  });

  test.each([
    ['there is one core', { cores: 1 }, []],
    ['memory cannot be shared', { isShared: false }, []],
    ['operations run elsewhere', { config: config({ provider: 'cuda' }) }, []],
    ['operations share threads', { config: config({ threads: 2 }) }, []],
    ['the steps are counted', { config: config({ maxSteps: 1000 }) }, []],
    ['one was asked for', { config: config({ learners: 1 }) }, []],
    ['fit was in the middle of an epoch', { from: point({ midEpoch: 'fit', step: 5 }) }, []],
    ['almost all is done', { from: point({ step: 3990 }) }, []],
    ['there are few steps', { samples: 100 }, []],
    ['an epoch is a moment', { samples: 150, config: config({ epochs: 40 }) }, [1]],
    ['the run is a moment', { samples: 250, config: config({ epochs: 1, batchSize: 1 }) }, [1]],
  ] as const)('is one, without a word and a trial, where %s', async (_why, facts, tried) => {
    expect(await choose({ 1: 200, 2: 400 }, facts)).toMatchObject({ learners: 1, tried });
    expect((await choose({ 1: 200, 2: 400 }, facts)).note).toBeUndefined();
  });

  test('is what was asked for, unless that cannot be; then it says why', async () => {
    const asked = await choose({}, { config: config({ learners: 7 }), cores: 1 });
    expect(asked).toEqual({ learners: 7, tried: [] });
    const counted = await choose({}, { config: config({ learners: 7, maxSteps: 3 }) });
    expect(counted).toMatchObject({ learners: 1, tried: [] });
    expect(counted.note).toContain('stops after so many steps');
    for (const learners of ['auto', 2]) {
      const built = await choose({}, { config: config({ learners, model: () => undefined }) });
      expect(built).toMatchObject({ learners: 1, tried: [] });
      expect(built.note).toContain('the model is a function');
    }
  });

  test('is one where the trial fails', async () => {
    expect(await choose({ 1: new Error('no') })).toEqual({ learners: 1, tried: [1] });
    const failed = await choose({ 1: 100, 2: new Error('the file system is full') });
    expect(failed).toMatchObject({ learners: 1, tried: [1, 2] });
    expect(failed.note).toBe('1 learner: more could not be tried, the file system is full');
    expect((await choose({ 1: 100 })).note).toContain('did not start in time');
  });
});

describe('a trial', () => {
  test('counts the best stretch, after a slow beginning', () => {
    const meter = new StepMeter();
    expect(meter.stepsPerSec()).toBeUndefined();
    for (let ms = 0; ms <= 500; ms += 100) meter.add(0, ms);
    for (let ms = 0; ms < 300; ms += 100) meter.add(1 + ms / 100, 600 + ms);
    expect(meter.hasEnough()).toBe(false);
    for (let ms = 0; ms <= 500; ms += 100) meter.add(10 + ms / 10, 900 + ms);
    expect(meter.hasEnough()).toBe(true);
    expect(meter.stepsPerSec()).toBeCloseTo(100);
  });

  test('of slow steps ends in time, with what there is', () => {
    const meter = new StepMeter();
    for (let ms = 0; ms < 2000; ms += 100) {
      meter.add(1 + Math.floor(ms / 500), ms);
      expect(meter.hasEnough()).toBe(false);
    }
    meter.add(5, 2000);
    expect(meter.hasEnough()).toBe(true);
    expect(meter.stepsPerSec()).toBeCloseTo(2);
  });
});

test('events of learners become those of a run by one, with the time that is left', () => {
  let now = 0;
  const task = { config: config() };
  const from = point({ step: 100, epoch: 1 });
  const translate = translator({ task, batches: 100, parameters: 5, from }, () => now);
  const begin = { ...{ learners: [1, 2], server: undefined, batches: 100, epoch: 1 } };
  expect(translate({ type: 'started', ...begin })).toEqual({
    ...{ type: 'started', step: 100, totalSteps: 400, parameters: 5 },
  });
  const progress = (step: number) =>
    translate({ type: 'progress', step, epoch: 1, loss: 1, samplesPerSec: 10, meanStaleness: 1 });
  expect(progress(100)).toMatchObject({ totalSteps: 400, remainingMs: NaN });
  now = 1000;
  expect(progress(110)).toMatchObject({ remainingMs: NaN });
  now = 2000;
  expect(progress(120)).toMatchObject({ step: 120, remainingMs: 28_000 });
  expect(translate({ type: 'epoch', epoch: 1, step: 200, loss: 1, evaluation: undefined })).toEqual({
    ...{ type: 'epoch', epoch: 1, step: 200, loss: 1 },
  });
});
