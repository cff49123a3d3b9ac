/**
 * What an optimizer is, as plain data that can be sent and saved: its name and hyper-parameters, with
 * PyTorch's names (in camel case), meaning and defaults. Not the update itself. Invariant: a resolved
 * specification has every field, and each is in its range.
 */
import { didYouMean, UsageError } from '../base/index.ts';

interface Decay {
  /** Added to the gradient as weightDecay * parameter. Default 0 (adamw: 0.01, taken off the parameter). */
  readonly weightDecay?: number;
}

export interface SgdSpec extends Decay {
  readonly name: 'sgd';
  /** Learning rate, outside the buffer. */
  readonly lr: number;
  /** Share of the buffer that is kept. Default 0: no buffer. */
  readonly momentum?: number;
  /** Share of the gradient that the buffer does not take. Default 0. */
  readonly dampening?: number;
  /** Look-ahead form; needs momentum and no dampening. Default false. */
  readonly nesterov?: boolean;
}

export interface AdagradSpec extends Decay {
  readonly name: 'adagrad';
  /** Default 0.01. */
  readonly lr?: number;
  /** lr / (1 + (t - 1) * lrDecay). Default 0. */
  readonly lrDecay?: number;
  /** First value of the sum of squares. Default 0. */
  readonly initialAccumulator?: number;
  /** Outside the root. Default 1e-10. */
  readonly eps?: number;
}

export interface RmspropSpec extends Decay {
  readonly name: 'rmsprop';
  /** Default 0.01. */
  readonly lr?: number;
  /** Share of the average of squares that is kept. Default 0.99. */
  readonly alpha?: number;
  /** Outside the root. Default 1e-8. */
  readonly eps?: number;
  /** Share of the buffer that is kept. Default 0: no buffer. */
  readonly momentum?: number;
  /** Divide by the estimated deviation, not by the root mean square. Default false. */
  readonly centered?: boolean;
}

interface AdamFields extends Decay {
  /** Default 0.001. */
  readonly lr?: number;
  /** Shares of the averages of the gradient and of its square that are kept. Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /** Outside the root. Default 1e-8. */
  readonly eps?: number;
  /** Divide by the largest average of squares so far. Default false. */
  readonly amsgrad?: boolean;
}

export interface AdamSpec extends AdamFields {
  readonly name: 'adam';
}

export interface AdamwSpec extends AdamFields {
  readonly name: 'adamw';
}

export interface AdadeltaSpec extends Decay {
  readonly name: 'adadelta';
  /** Default 1. */
  readonly lr?: number;
  /** Share of both averages that is kept. Default 0.9. */
  readonly rho?: number;
  /** Inside the roots. Default 1e-6. */
  readonly eps?: number;
}

export type OptimizerSpec = SgdSpec | AdagradSpec | RmspropSpec | AdamSpec | AdamwSpec | AdadeltaSpec;
export type ResolvedOptimizerSpec =
  | Required<SgdSpec>
  | Required<AdagradSpec>
  | Required<RmspropSpec>
  | Required<AdamSpec>
  | Required<AdamwSpec>
  | Required<AdadeltaSpec>;

/** PyTorch's defaults; a missing rate of sgd has none and fails the check. */
const DEFAULTS = {
  sgd: { lr: NaN, momentum: 0, dampening: 0, weightDecay: 0, nesterov: false },
  adagrad: { lr: 0.01, lrDecay: 0, weightDecay: 0, initialAccumulator: 0, eps: 1e-10 },
  rmsprop: { lr: 0.01, alpha: 0.99, eps: 1e-8, weightDecay: 0, momentum: 0, centered: false },
  adam: { lr: 0.001, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0, amsgrad: false },
  adamw: { lr: 0.001, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01, amsgrad: false },
  adadelta: { lr: 1, rho: 0.9, eps: 1e-6, weightDecay: 0 },
} as const satisfies {
  readonly [N in OptimizerSpec['name']]: Omit<Required<Extract<OptimizerSpec, { name: N }>>, 'name'>;
};

/** Fills in the defaults and checks every field. */
export function resolveOptimizerSpec(spec: OptimizerSpec): ResolvedOptimizerSpec {
  // Whatever a configuration or a worker has sent.
  const said: unknown = spec.name;
  const name = typeof said === 'string' ? said : String(JSON.stringify(said));
  if (!Object.hasOwn(DEFAULTS, name)) {
    const known = Object.keys(DEFAULTS);
    throw new UsageError(
      'INVALID_ARGUMENT',
      `there is no optimizer '${name}'; give one of ${known.join(', ')}.${didYouMean(name, known)}`,
      { optimizer: name, known },
    );
  }
  const defaults = DEFAULTS[spec.name];
  for (const field of Object.keys(spec)) {
    if (field !== 'name' && !Object.hasOwn(defaults, field)) {
      const known = Object.keys(defaults);
      throw new UsageError(
        'INVALID_ARGUMENT',
        `optimizer '${name}' has no ${field}; it has ${known.join(', ')}.${didYouMean(field, known)}`,
        { optimizer: name, field, known },
      );
    }
  }
  // The fields were just checked to be those of the name.
  const full = { ...defaults, ...given(spec) } as ResolvedOptimizerSpec;
  for (const [field, value] of Object.entries(full)) checkField(name, field, value as unknown);
  if (full.name === 'sgd' && full.nesterov && (full.momentum === 0 || full.dampening !== 0)) {
    throw invalid(name, 'nesterov', true, 'false, or a momentum above 0 and no dampening');
  }
  return full;
}

/** A field set to undefined takes its default. */
function given<T extends object>(spec: T): T {
  return Object.fromEntries(Object.entries(spec).filter(([, value]) => value !== undefined)) as T;
}

function checkField(name: string, field: string, value: unknown): void {
  switch (field) {
    case 'name':
      return;
    case 'nesterov':
    case 'centered':
    case 'amsgrad':
      if (typeof value !== 'boolean') throw invalid(name, field, value, 'true or false');
      return;
    case 'betas': {
      const right = Array.isArray(value) && value.length === 2 && value.every(isShare);
      if (!right) throw invalid(name, field, value, 'two numbers from 0 to below 1');
      return;
    }
    case 'alpha':
    case 'rho':
      if (!isShare(value)) throw invalid(name, field, value, 'a number from 0 to below 1');
      return;
    case 'dampening':
      if (typeof value !== 'number' || !Number.isFinite(value)) throw invalid(name, field, value, 'a number');
      return;
    default:
      if (typeof value !== 'number' || !Number.isFinite(value) || value < 0) {
        throw invalid(name, field, value, 'a finite number of 0 or more');
      }
  }
}

function isShare(value: unknown): boolean {
  return typeof value === 'number' && value >= 0 && value < 1;
}

function invalid(name: string, field: string, actual: unknown, expected: string): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `${field} of optimizer '${name}' is ${JSON.stringify(actual)}; give ${expected}`,
    { optimizer: name, field, actual, expected },
  );
}
