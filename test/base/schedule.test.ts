import { describe, expect, it } from 'vitest';
import { learningRateAt, PlateauSchedule } from '../../src/base/index.ts';
import type { PlateauState, ScheduleSpec } from '../../src/base/index.ts';
import { readVectors } from '../support/shared.ts';

interface ScheduleCase {
  readonly name: string;
  readonly kind: string;
  readonly schedule: string;
  readonly base_lr: number;
  readonly attrs: Readonly<Record<string, unknown>> & { readonly metric?: readonly number[] };
  readonly values: readonly number[];
  readonly tolerance: { readonly rtol: number; readonly atol: number };
}

const cases = readVectors<ScheduleCase>('optimizers.json', ({ kind }) => kind === 'schedule');

function camelCase(attrs: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const renamed = Object.entries(attrs).map(([key, value]) => [
    key.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()),
    value,
  ]);
  return Object.fromEntries(renamed) as Record<string, unknown>;
}

describe('schedules, by the oracle vectors', () => {
  it.each(cases)('$name', (c) => {
    const { metric, ...attrs } = c.attrs;
    const spec = { name: c.schedule, baseLr: c.base_lr, ...camelCase(attrs) };
    const plateau = new PlateauSchedule(spec);
    for (const [t, want] of c.values.entries()) {
      const got = metric === undefined ? learningRateAt(spec as ScheduleSpec, t) : plateau.update(metric[t]!);
      expect(Math.abs(got - want)).toBeLessThanOrEqual(c.tolerance.atol + c.tolerance.rtol * Math.abs(want));
    }
  });
});

describe('a schedule', () => {
  it('keeps its lowest rate after the end of a cosine', () => {
    expect(learningRateAt({ name: 'cosine', baseLr: 1, tMax: 4, etaMin: 0.1 }, 9)).toBeCloseTo(0.1, 12);
  });

  it('by plateau goes on from a state that was written as JSON', () => {
    const options = { baseLr: 1, factor: 0.5, patience: 1 };
    const metrics = [3, 2, NaN, 2, 2, 1, 1, 1, 1];
    const whole = new PlateauSchedule(options);
    const expected = metrics.map((metric) => whole.update(metric));
    let state: PlateauState | undefined;
    const resumed = metrics.map((metric) => {
      const schedule = new PlateauSchedule(options, state);
      schedule.update(metric);
      state = JSON.parse(JSON.stringify(schedule.state)) as PlateauState;
      return schedule.lr;
    });
    expect(resumed).toEqual(expected);
    expect(expected.at(-1)).toBeLessThan(1);
  });

  it('refuses lists of different lengths, empty periods and unknown names', () => {
    const wrong: unknown[] = [
      { name: 'reduce', baseLr: 1, milestones: [1, 2], factors: [0.1] },
      { name: 'step', baseLr: 1, stepSize: 0, gamma: 0.5 },
      { name: 'cosine', baseLr: 1, tMax: 0 },
      { name: 'poly', baseLr: 1 },
    ];
    for (const spec of wrong) {
      expect(() => learningRateAt(spec as ScheduleSpec, 3)).toThrow(
        expect.objectContaining({ code: 'INVALID_ARGUMENT' }),
      );
    }
  });
});
