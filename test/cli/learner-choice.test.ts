/** When learners are tried out, what is chosen, and what is said: with measurements of the test's own. */
import { describe, expect, test } from 'vitest';
import { checkConfig } from '../../src/cli/config-check.ts';
import type { ResolvedConfig } from '../../src/cli/config.ts';
import { chooseLearners, type ChoiceFacts } from '../../src/cli/learner-choice.ts';
import { StepMeter } from '../../src/cli/learner-trial.ts';
import type { ResumePoint } from '../../src/cli/resume-point.ts';
import { SpeedGuard } from '../../src/cli/speed-guard.ts';
import { whoTrains } from '../../src/cli/who-trains.ts';
import type { OnLearners } from '../../src/runner/index.ts';

const config = (changes: object = {}): ResolvedConfig =>
  checkConfig(
    { model: 'mlp', data: { kind: 'mnist' }, batchSize: 10, epochs: 4, ...changes },
    { source: '/project/tributary.config.ts', defaultName: 'tributary' },
  );
const point = (changes: Partial<ResumePoint>): ResumePoint => ({
  ...{ path: 'c', step: 0 },
  ...changes,
});

/** Chooses with these speeds by team: '2' is direct lock-free, '2 server lock-free' is that. A list is one each time. Also gives who was tried. */
async function choose(speeds: Record<string, number | number[] | Error>, facts: Partial<ChoiceFacts> = {}) {
  const tried: string[] = [];
  const given = { config: config(), samples: 10_000, cores: 2, isShared: true, ...facts };
  const whole = { ...given, on: whoTrains(given.config) as OnLearners };
  const choice = await chooseLearners(whole, ({ learners, mode = 'direct lock-free' }) => {
    const team = mode === 'direct lock-free' ? String(learners) : `${learners} ${mode}`;
    tried.push(team);
    const known = speeds[team];
    const speed = Array.isArray(known) ? known.shift() : known;
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
      ...{ learners: 2, mode: 'direct lock-free', tried: ['1', '2', '1'] },
      ...{ singleSamplesPerSec: 960, trialSpeedup: 1857 / 960 },
      note:
        '2 learners (processes that train together) are 1.9x as fast as one: 1,857 samples/s against 960. ' +
        'Mode direct lock-free, mean staleness 1.0.',
    });
    expect(await choose({ 1: 100, 4: 350, 8: 300 }, { cores: 64 })).toMatchObject({
      ...{ learners: 4, mode: 'direct lock-free', tried: ['1', '4', '8', '1', '4 server lock-free'] },
    });
  });

  test.each([
    ['slower', 90],
    ['not clearly faster', 104],
  ])('is one where more are %s, and the line says why', async (_what, speed) => {
    const choice = await choose({ 1: 100, 2: speed, '2 server lock-free': 80 });
    expect(choice).toMatchObject({ learners: 1, tried: ['1', '2', '1', '2 server lock-free'] });
    expect(choice.mode).toBeUndefined();
    expect(choice.note).toBe(
      `1 learner: 2 are ${(speed / 100).toFixed(2)}x as fast, ${speed} samples/s against 100 ` +
        '(server lock-free with 2: 80); more than one is used from 1.05x on.',
    );
  });

  test('is one where one was only slow at its first try, cold as it was', async () => {
    expect(await choose({ 1: [100, 150], 2: 140, '2 server lock-free': 80 })).toMatchObject({
      ...{ learners: 1, singleSamplesPerSec: 150 },
      note: expect.stringMatching(/^1 learner: 2 are 0.93x as fast, 140 samples\/s against 150 /) as unknown,
    });
    const fewer = await choose({ 1: [100, 150], 2: 250 });
    expect(fewer).toMatchObject({ learners: 2, singleSamplesPerSec: 150, trialSpeedup: 250 / 150 });
    expect(await choose({ 1: [150, 100], 2: 250 })).toMatchObject({ singleSamplesPerSec: 150 });
  });

  test.each([
    ['there is one core', { cores: 1 }, []],
    ['memory cannot be shared', { isShared: false }, []],
    ['operations run elsewhere', { config: config({ provider: 'cuda' }) }, []],
    ['operations share threads', { config: config({ threads: 2 }) }, []],
    ['few steps are counted', { config: config({ maxSteps: 60 }) }, []],
    ['almost all is done', { from: point({ step: 3990 }) }, []],
    ['there are few steps', { samples: 100 }, []],
    ['an epoch is a moment', { samples: 150, config: config({ epochs: 40 }) }, ['1']],
    ['the run is a moment', { samples: 250, config: config({ epochs: 1, batchSize: 1 }) }, ['1']],
  ] as const)('is one, without a word and a trial, where %s', async (_why, facts, tried) => {
    expect(await choose({ 1: 200, 2: 400 }, facts)).toMatchObject({ learners: 1, tried });
    expect((await choose({ 1: 200, 2: 400 }, facts)).note).toBeUndefined();
  });

  test('is what was asked for', async () => {
    const changes = { learners: 7, maxSteps: 3, model: () => undefined };
    const asked = await choose({}, { config: config(changes), cores: 1 });
    expect(asked).toEqual({ learners: 7, mode: 'direct lock-free', tried: [] });
  });

  test('is tried out for models that are functions, too', async () => {
    const built = await choose({ 1: 100, 2: 190 }, { config: config({ model: () => undefined }) });
    expect(built).toMatchObject({ learners: 2, tried: ['1', '2', '1'] });
  });

  test('is one where the trial fails', async () => {
    expect(await choose({ 1: new Error('no') })).toEqual({ learners: 1, tried: ['1'] });
    const failed = await choose({ 1: 100, 2: new Error('the file system is full') });
    expect(failed).toMatchObject({ learners: 1, tried: ['1', '2'] });
    expect(failed.note).toBe('1 learner: more could not be tried, the file system is full');
    expect((await choose({ 1: 100 })).note).toContain('did not start in time');
  });
});

describe('the mode', () => {
  const served = '3 server lock-free';

  test('is that of a server where it is clearly faster, with a processor left for it', async () => {
    const choice = await choose({ 1: 100, 2: 190, 4: 300, [served]: 320 }, { cores: 4 });
    expect(choice).toMatchObject({ learners: 3, mode: 'server lock-free', trialSpeedup: 3.2 });
    expect(choice.note).toContain(
      '3.2x as fast as one: 320 samples/s against 100. Mode server lock-free (direct lock-free with 4: 300), ',
    );
    expect(choice.tried).toEqual(['1', '2', '4', '1', served, '4']);
    const close = await choose({ 1: 100, 2: 190, 4: 300, [served]: 314 }, { cores: 4 });
    expect(close).toMatchObject({ learners: 4, mode: 'direct lock-free', trialSpeedup: 3 });
    expect(close.note).toContain('Mode direct lock-free (server lock-free with 3: 314, not 5 % more), ');
    expect(close.tried).toEqual(['1', '2', '4', '1', served]);
  });

  test('is direct where that is as fast when it is tried again', async () => {
    const lucky = await choose({ 1: 100, 3: [200, 290], '2 server lock-free': 300 }, { cores: 3 });
    expect(lucky).toMatchObject({ learners: 3, mode: 'direct lock-free', trialSpeedup: 2.9 });
    const unlucky = await choose({ 1: 100, 3: [200, 150], '2 server lock-free': 300 }, { cores: 3 });
    expect(unlucky).toMatchObject({ learners: 2, mode: 'server lock-free', trialSpeedup: 3 });
    expect(unlucky.note).toContain('(direct lock-free with 3: 200)');
  });

  test('of a server is tried on two processors only where learners are in each other’s way', async () => {
    expect((await choose({ 1: 100, 2: 161 })).tried).toEqual(['1', '2', '1']);
    const slowed = await choose({ 1: 100, 2: 120, '2 server lock-free': 150 });
    expect(slowed).toMatchObject({ learners: 2, mode: 'server lock-free', trialSpeedup: 1.5 });
    const rescued = await choose({ 1: 100, 2: 90, '2 server lock-free': 110 });
    expect(rescued).toMatchObject({ learners: 2, mode: 'server lock-free' });
  });

  test('is direct where a server cannot be tried', async () => {
    const speeds = { 1: 100, 2: 190, 4: 380 };
    for (const faulty of [speeds, { ...speeds, [served]: new Error('no room') }]) {
      const choice = await choose(faulty, { cores: 4 });
      expect(choice).toMatchObject({
        learners: 4,
        mode: 'direct lock-free',
        tried: ['1', '2', '4', '1', served],
      });
    }
  });

  test('is what was asked for, and then the only one that is tried', async () => {
    const asked = { config: config({ learnerMode: 'server locked' }), cores: 4 };
    expect(await choose({ 1: 100, '3 server locked': 200 }, asked)).toMatchObject({
      ...{ learners: 3, mode: 'server locked', tried: ['1', '3 server locked', '1'] },
    });
    const both = config({ learnerMode: 'direct locked', learners: 5 });
    expect(await choose({}, { config: both })).toEqual({ learners: 5, mode: 'direct locked', tried: [] });
  });

  test('that was asked for in vain is told', async () => {
    const one = await choose({}, { config: config({ learnerMode: 'server locked', learners: 1 }) });
    expect(one).toMatchObject({ learners: 1, tried: [] });
    expect(one.note).toContain('the mode server locked is one of several; ask for more by --learners');
    const small = await choose({}, { config: config({ learnerMode: 'direct locked' }), samples: 100 });
    expect(small.note).toContain('more would not pay here');
  });
});

describe('learners that turn out slower than one', () => {
  /** What is said at each of these moments, in milliseconds, at this speed. */
  const told = (samplesPerSec: number, moments: readonly number[]) => {
    let at = 0;
    const guard = new SpeedGuard({ learners: 2, singleSamplesPerSec: 1000, now: () => at });
    return moments.map((moment) => {
      at = moment;
      return guard.look(samplesPerSec);
    });
  };

  test('are told once, after some seconds, with what to do', () => {
    const [first, early, due, later] = told(890, [7000, 11_900, 12_000, 20_000]);
    expect([first, early, later]).toEqual([undefined, undefined, undefined]);
    expect(due).toMatch(/^slower than one learner: 890 samples\/s by 2, 1,000 by one in the trial\. /);
    expect(due).toContain('--learners 1');
  });

  test('are not told of while they are starting, nor for a small difference', () => {
    expect(told(0, [0, 10_000])).toEqual([undefined, undefined]);
    expect(told(901, [0, 5000, 10_000])).toEqual([undefined, undefined, undefined]);
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
