/**
 * Learning-rate schedules: functions of the step number (from 0), as plain data that can be sent and saved.
 * Only the plateau schedule depends on what was measured and so has a state. Invariant: the same
 * specification and step give the same rate on every worker.
 */
import { UsageError } from './errors.ts';

interface Base {
  /** Learning rate that the schedule changes. */
  readonly baseLr: number;
}

export interface ConstantSchedule extends Base {
  readonly name: 'constant';
}

/** baseLr * gamma^floor(t / stepSize) */
export interface StepSchedule extends Base {
  readonly name: 'step';
  /** Steps between two reductions. */
  readonly stepSize: number;
  readonly gamma: number;
}

/** etaMin + (baseLr - etaMin) * (1 + cos(pi t / tMax)) / 2, and etaMin after tMax. */
export interface CosineSchedule extends Base {
  readonly name: 'cosine';
  /** Steps until the lowest rate. */
  readonly tMax: number;
  /** Lowest rate. Default 0. */
  readonly etaMin?: number;
}

/** baseLr * (startFactor + (1 - startFactor) * min(t, warmupSteps) / warmupSteps) */
export interface WarmupLinearSchedule extends Base {
  readonly name: 'warmup_linear';
  readonly warmupSteps: number;
  /** Share of baseLr at step 0. */
  readonly startFactor: number;
}

/** Linear warm-up, then the cosine from its beginning. */
export interface WarmupCosineSchedule extends Base {
  readonly name: 'warmup_cosine';
  readonly warmupSteps: number;
  readonly startFactor: number;
  /** Steps of the cosine, after the warm-up. */
  readonly tMax: number;
  readonly etaMin?: number;
}

/** baseLr times the factors of all milestones that are reached. */
export interface ReduceSchedule extends Base {
  readonly name: 'reduce';
  readonly milestones: readonly number[];
  /** One for each milestone. */
  readonly factors: readonly number[];
}

export type ScheduleSpec =
  | ConstantSchedule
  | StepSchedule
  | CosineSchedule
  | WarmupLinearSchedule
  | WarmupCosineSchedule
  | ReduceSchedule;

/** The learning rate of step t, from 0. */
export function learningRateAt(spec: ScheduleSpec, t: number): number {
  switch (spec.name) {
    case 'constant':
      return spec.baseLr;
    case 'step':
      requirePositive('stepSize', spec.stepSize);
      return spec.baseLr * spec.gamma ** Math.floor(t / spec.stepSize);
    case 'cosine':
      return cosine(spec, t);
    case 'warmup_linear':
      return warmup(spec, t);
    case 'warmup_cosine':
      return t < spec.warmupSteps ? warmup(spec, t) : cosine(spec, t - spec.warmupSteps);
    case 'reduce': {
      const { milestones, factors } = spec;
      if (milestones.length !== factors.length) {
        throw new UsageError(
          'INVALID_ARGUMENT',
          `schedule 'reduce' has ${milestones.length} milestones and ${factors.length} factors; give one factor for each`,
          { milestones, factors },
        );
      }
      return factors.reduce((lr, factor, i) => (milestones[i]! <= t ? lr * factor : lr), spec.baseLr);
    }
    default:
      throw new UsageError(
        'INVALID_ARGUMENT',
        `schedule '${String((spec as { name: unknown }).name)}' is unknown; use constant, step, cosine, warmup_linear, warmup_cosine or reduce`,
        { spec },
      );
  }
}

function cosine(spec: CosineSchedule | WarmupCosineSchedule, t: number): number {
  requirePositive('tMax', spec.tMax);
  const etaMin = spec.etaMin ?? 0;
  return (
    etaMin + ((spec.baseLr - etaMin) * (1 + Math.cos((Math.PI * Math.min(t, spec.tMax)) / spec.tMax))) / 2
  );
}

function warmup(spec: WarmupLinearSchedule | WarmupCosineSchedule, t: number): number {
  const { warmupSteps, startFactor } = spec;
  const done = warmupSteps <= 0 ? 1 : Math.min(t, warmupSteps) / warmupSteps;
  return spec.baseLr * (startFactor + (1 - startFactor) * done);
}

export interface PlateauOptions {
  readonly baseLr: number;
  /** Factor of a reduction. Default 0.1. */
  readonly factor?: number;
  /** Measurements without improvement that are borne. Default 10. */
  readonly patience?: number;
  /** An improvement is below best * (1 - threshold). Default 1e-4. */
  readonly threshold?: number;
  /** Lowest rate. Default 0. */
  readonly minLr?: number;
}

export interface PlateauState {
  readonly lr: number;
  /** Best measurement; null before the first. */
  readonly best: number | null;
  /** Measurements since the best. */
  readonly bad: number;
}

/** Reduces the rate when a measured loss no longer falls. */
export class PlateauSchedule {
  readonly #options: Required<PlateauOptions>;
  #state: PlateauState;

  /** Give a saved state to go on from it. */
  constructor(options: PlateauOptions, state?: PlateauState) {
    this.#options = { factor: 0.1, patience: 10, threshold: 1e-4, minLr: 0, ...options };
    this.#state = state ?? { lr: options.baseLr, best: null, bad: 0 };
  }

  get state(): PlateauState {
    return this.#state;
  }

  get lr(): number {
    return this.#state.lr;
  }

  /** Takes a measurement; returns the rate from now on. */
  update(metric: number): number {
    const { factor, patience, threshold, minLr } = this.#options;
    const { lr, best, bad } = this.#state;
    // A NaN is below nothing, so it counts as no improvement.
    if (metric < (best ?? Infinity) * (1 - threshold)) this.#state = { lr, best: metric, bad: 0 };
    else if (bad + 1 > patience) this.#state = { lr: Math.max(lr * factor, minLr), best, bad: 0 };
    else this.#state = { lr, best, bad: bad + 1 };
    return this.#state.lr;
  }
}

function requirePositive(field: string, value: number): void {
  if (value > 0) return;
  throw new UsageError('INVALID_ARGUMENT', `${field} of the schedule is ${value}; give a positive number`, {
    field,
    value,
  });
}
