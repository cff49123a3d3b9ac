import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { FitEvent } from '../../src/runner/index.ts';
import { clock, duration, lossText, table, thousands } from '../../src/cli/format.ts';
import { bar, renderFrame } from '../../src/cli/progress-bar.ts';
import { createReporter } from '../../src/cli/reporter.ts';
import { fakeIo } from './fake-io.ts';

const state = {
  step: 50,
  totalSteps: 200,
  epoch: 2,
  epochs: 3,
  loss: 0.12345,
  samplesPerSec: 12345.6,
  remainingMs: 83_000,
};

const [HIDE, SHOW, CLEAR] = ['\x1b[?25l', '\x1b[?25h', '\r\x1b[2K'];
const count = (text: string, part: string) => text.split(part).length - 1;

describe('the line of progress', () => {
  test('shows percentage, epoch, loss, samples per second and time left', () => {
    expect(renderFrame(state, 100)).toBe(
      '███████▌░░░░░░░░░░░░░░░░░░░░░░  25%  epoch 2/3  loss 0.1235  12,346 samples/s  1:23 left',
    );
  });

  test('leaves out the least needed where the terminal is narrow', () => {
    expect(renderFrame(state, 60)).toMatch(/ 25% {2}epoch 2\/3 {2}loss 0\.1235 {2}1:23 left$/);
    expect(renderFrame(state, 45)).toMatch(/ 25% {2}loss 0\.1235 {2}1:23 left$/);
    expect(renderFrame(state, 12)).toMatch(/^\S+ {2}25%$/);
    expect(renderFrame(state, 4)).toBe('25%');
  });

  test('is never wider than the terminal less one column', () => {
    const numbers = fc.double({ min: 0, max: 1e9, noNaN: true });
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 200 }),
        fc.nat(1e6),
        numbers,
        numbers,
        numbers,
        (columns, step, a, b, c) => {
          const frame = renderFrame(
            { ...state, step, totalSteps: 1e6, loss: a, samplesPerSec: b, remainingMs: c },
            columns,
          );
          expect([...frame].length).toBeLessThanOrEqual(Math.max(1, columns - 1));
        },
      ),
    );
  });

  test('a bar has its width at every share', () => {
    fc.assert(
      fc.property(
        fc.double({ min: -1, max: 2, noNaN: true }),
        fc.integer({ min: 1, max: 40 }),
        (share, width) => {
          expect(bar(share, width)).toHaveLength(width);
        },
      ),
    );
    expect(bar(1, 4)).toBe('████');
    expect(bar(0, 4)).toBe('░░░░');
  });
});

const progress = (step: number, remainingMs = 1000): FitEvent => ({
  type: 'progress',
  step,
  totalSteps: 1000,
  epoch: 0,
  loss: 1,
  samplesPerSec: 10,
  remainingMs,
});
const epoch: FitEvent = {
  type: 'epoch',
  epoch: 0,
  step: 10,
  loss: 0.5,
  evaluation: { loss: 0.4, accuracy: 0.875 },
};

describe('a reporter', () => {
  test('on a terminal draws at most 10 times a second and gives the cursor back', () => {
    const io = fakeIo({ isTerminal: true });
    let now = 0;
    const reporter = createReporter(io, { json: false, epochs: 3, now: () => now });
    for (; now < 2000; now += 10) reporter.event(progress(now));
    expect(io.written.terminal.split('\r').length - 1).toBe(20);
    expect(count(io.written.terminal, HIDE)).toBe(1);
    expect(count(io.written.terminal, SHOW)).toBe(0);
    reporter.close();
    expect(io.written.terminal.endsWith(CLEAR + SHOW)).toBe(true);
    reporter.close();
    expect(count(io.written.terminal, SHOW)).toBe(1);
  });

  test('on a terminal clears the line before it says something', () => {
    const io = fakeIo({ isTerminal: true });
    let now = 0;
    const reporter = createReporter(io, { json: false, epochs: 3, now: () => now });
    reporter.event(progress(1));
    now = 2500;
    reporter.event(epoch);
    expect(io.written.terminal.endsWith(CLEAR + SHOW)).toBe(true);
    expect(io.written.stdout).toBe('epoch 1/3  loss 0.5000  test loss 0.4000  accuracy 87.50 %  2.5 s\n');
  });

  test('follows the width of the terminal', () => {
    const io = fakeIo({ isTerminal: true, columns: 100 });
    let now = 0;
    const reporter = createReporter(io, { json: false, epochs: 3, now: () => now });
    reporter.event(progress(1));
    io.columns = 20;
    now = 1000;
    reporter.event(progress(2));
    const [, wide, narrow] = io.written.terminal.split('\x1b[2K');
    expect(wide!.length).toBeGreaterThan(40);
    expect(narrow!.length).toBeLessThan(20);
  });

  test('in a pipe writes a plain line about every 10 seconds and for each epoch', () => {
    const io = fakeIo();
    let now = 0;
    const reporter = createReporter(io, { json: false, epochs: 3, now: () => now });
    for (; now <= 30_000; now += 100) reporter.event(progress(now));
    now = 50_000;
    reporter.event(progress(now, NaN));
    reporter.event(epoch);
    const lines = io.written.stdout.trimEnd().split('\n');
    expect(lines).toHaveLength(4);
    expect(lines[0]).toContain('epoch 1/3  step 10000  loss 1.000  10 samples/s  1.0 s left');
    expect(io.written.stdout).not.toContain('\x1b');
  });

  test('with --json writes one object a line, epochs from 1', () => {
    const io = fakeIo({ isTerminal: true });
    const reporter = createReporter(io, { json: true, epochs: 3, now: () => 0 });
    reporter.event(progress(1));
    reporter.event(progress(2));
    reporter.say('for people');
    reporter.event(epoch);
    reporter.record({ type: 'finished' });
    const objects = io.written.stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as { type: string; epoch?: number });
    expect(objects.map(({ type }) => type)).toEqual(['progress', 'epoch', 'finished']);
    expect(objects[1]!.epoch).toBe(1);
    expect(io.written.terminal).toBe('');
  });

  test('says which checkpoint was skipped or could not be removed, and why', () => {
    const io = fakeIo();
    const reporter = createReporter(io, { json: false, epochs: 1 });
    reporter.event({ type: 'checkpoint-skipped', path: 'c/step-2', reason: 'it is too short' });
    reporter.event({ type: 'resumed', path: 'c/step-1', step: 1 });
    reporter.event({ type: 'checkpoint-not-removed', path: 'c/step-0', reason: 'EIO' });
    expect(io.written.stdout).toBe(
      'Skipped the checkpoint c/step-2: it is too short\nResumed from c/step-1 at step 1.\n' +
        'c/step-0 is not needed any more and could not be removed: EIO\n',
    );
  });
});

test('a reporter says which process was lost and who takes its place', () => {
  const io = fakeIo();
  const reporter = createReporter(io, { json: false, epochs: 1 });
  const lost = {
    type: 'learner-lost',
    pid: 7,
    how: 'was ended by SIGKILL',
    returned: [3],
    torn: [],
  } as const;
  reporter.event({ ...lost, learner: 1, replacement: 9 });
  reporter.event({ ...lost, learner: 0, replacement: undefined });
  expect(io.written.stdout).toBe(
    'Learner 1 (process 7) was ended by SIGKILL; process 9 takes its place.\n' +
      'Learner 0 (process 7) was ended by SIGKILL; the others go on without it.\n',
  );
});

test('numbers read as people write them', () => {
  expect(thousands(1234567.4)).toBe('1,234,567');
  expect([0, 7_400, 754_000, 3_723_000, Infinity].map(clock)).toEqual([
    '0:00',
    '0:07',
    '12:34',
    '1:02:03',
    '-:--',
  ]);
  expect([2_400, 59_940, 192_000, 3_720_000].map(duration)).toEqual([
    '2.4 s',
    '59.9 s',
    '3 min 12 s',
    '1 h 2 min',
  ]);
  expect([0.12345, 123.456, 1e-9, NaN].map(lossText)).toEqual(['0.1235', '123.5', '1.00e-9', 'NaN']);
  expect(
    table([
      ['a', '1'],
      ['long', '20'],
    ]),
  ).toBe('a      1\nlong  20');
});
