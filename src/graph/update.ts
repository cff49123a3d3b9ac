/**
 * What happens between the aggregation of gradients and the update of parameters: clipping, weight decay, whatever
 * the user writes, and moving averages after the update. It is data of the graph, because a planner decides
 * where each operation runs: `elementwise` ones follow their gradient, `global` ones read all gradients.
 */
import { UsageError } from '../base/index.ts';
import type { Graph, Parameter, Tensor } from './graph.ts';

export type UpdateOperation =
  | {
      readonly kind: 'clip_global_norm';
      readonly scope: 'global';
      readonly maxNorm: number;
      /** 1 or more; Infinity: the largest magnitude. */
      readonly order: number;
    }
  | { readonly kind: 'clip_value'; readonly scope: 'elementwise'; readonly limit: number }
  | {
      readonly kind: 'weight_decay';
      readonly scope: 'elementwise';
      readonly rate: number;
      readonly applies: ParameterFilter;
    }
  | {
      readonly kind: 'custom';
      readonly scope: 'elementwise';
      readonly name: string;
      readonly build: GradientBuilder;
    };

export type ParameterFilter = (parameter: Parameter) => boolean;

/**
 * Writes a new gradient out of the aggregated one and the parameter, in a graph of its own. For a sparse gradient
 * both are the touched rows.
 */
export type GradientBuilder = (gradient: Tensor, parameter: Tensor) => Tensor;

export interface MovingAverage {
  readonly name: string;
  /** average = decay * average + (1 - decay) * parameter, after every update. */
  readonly decay: number;
  readonly applies: ParameterFilter;
}

const all: ParameterFilter = () => true;

function positive(value: number, what: string): number {
  if (!(value > 0)) throw new UsageError('INVALID_ARGUMENT', `${what} must be positive, got ${value}.`);
  return value;
}

export interface ClipByGlobalNormOptions {
  /**
   * p of the norm `(sum of |g|^p)^(1/p)`: any number of 1 or more, or Infinity for the largest magnitude. Parameter
   * servers only know sums of squares, so that with any order but 2 all parameters stay with the workers. Default 2.
   */
  readonly order?: number | undefined;
}

/** Scales all gradients by `min(1, maxNorm / (norm + 1e-6))`, norm over all of them together. */
export function clipByGlobalNorm(graph: Graph, maxNorm: number, options: ClipByGlobalNormOptions = {}): void {
  const { order = 2 } = options;
  if (!(order >= 1)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `clipByGlobalNorm: the order is ${order}; give 1 or more, or Infinity.`,
      { order },
    );
  }
  graph.updateOperations.push({
    kind: 'clip_global_norm',
    scope: 'global',
    maxNorm: positive(maxNorm, 'maxNorm'),
    order,
  });
}

/** Limits every element to [-limit, limit]. */
export function clipByValue(graph: Graph, limit: number): void {
  graph.updateOperations.push({ kind: 'clip_value', scope: 'elementwise', limit: positive(limit, 'limit') });
}

/** Adds `rate * parameter` to gradients; of a sparse gradient only to the touched rows. */
export function weightDecay(graph: Graph, rate: number, applies: ParameterFilter = all): void {
  graph.updateOperations.push({
    kind: 'weight_decay',
    scope: 'elementwise',
    rate: positive(rate, 'rate'),
    applies,
  });
}

/** Anything else: a new gradient as an expression of the aggregated one and the parameter. */
export function transformGradients(graph: Graph, name: string, build: GradientBuilder): void {
  graph.updateOperations.push({ kind: 'custom', scope: 'elementwise', name, build });
}

/** Keeps an exponential moving average of parameters, as state `<name>/<parameter>`. */
export function movingAverage(
  graph: Graph,
  decay: number,
  options: { name?: string; applies?: ParameterFilter } = {},
): void {
  const { name = 'average', applies = all } = options;
  if (!(decay >= 0 && decay < 1)) {
    throw new UsageError('INVALID_ARGUMENT', `movingAverage: the decay is in [0, 1), got ${decay}.`);
  }
  if (graph.movingAverages.some((average) => average.name === name)) {
    throw new UsageError('INVALID_GRAPH', `movingAverage: ${name} exists already; give another name.`);
  }
  graph.movingAverages.push({ name, decay, applies });
}
