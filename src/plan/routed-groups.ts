/**
 * Layers whose parameters take different routes as one merge problem. A border of the backward pass hands over all
 * gradients before it, so that one grouping serves all routes: a group sends one message for each dense route in it and
 * one for each table, one after the other, and its cost is their sum. What the routes are is chosen in `routes.ts`.
 * Invariants: a group with nothing to send costs nothing; its cost is the sum of what `messagesIn` lists.
 */
import { UsageError } from '../base/index.ts';
import type { MergeProblem } from './merge-schedule.ts';
import { routeCosts } from './routes.ts';
import type { ClusterShape, ExchangeCosts, PlannedParameter, Route, RouteChoice } from './routes.ts';

export interface PlannedLayer {
  readonly name: string;
  /** Milliseconds of its part of the backward pass. */
  readonly backwardMs: number;
  /** Those whose gradients it computes; none if it is only compute. */
  readonly parameters: readonly PlannedParameter[];
}

export interface RoutedMessage {
  readonly route: Route;
  readonly parameters: readonly string[];
  /** Bytes that one worker hands over. */
  readonly bytes: number;
  readonly predictedMs: number;
}

export interface RoutedInput {
  readonly forwardMs: number;
  readonly layers: readonly PlannedLayer[];
  readonly segmentMs?: number;
  readonly busyShare?: number;
  readonly cluster: ClusterShape;
  readonly costs: ExchangeCosts;
  readonly localAggregation?: boolean;
}

type Choices = ReadonlyMap<string, RouteChoice>;

const denseRoutes = ['collective', 'server dense'] as const;

/** Sums over the layers before each, so that the cost of any group is a difference. */
interface Sums {
  readonly parameters: number[];
  readonly bytes: number[];
}

export function mergeProblemOf(input: RoutedInput, choices: Choices): MergeProblem {
  const { forwardMs, layers, segmentMs = 0, busyShare = 0 } = input;
  checkNames(layers);
  const costs = routeCosts(input.cluster, input.costs, optionsOf(input));
  const chosen = layers.map(({ parameters }) => parameters.map(({ name }) => choices.get(name)!));
  const byRoute = denseRoutes.map((route): [Route, Sums] => {
    const own = chosen.map((layer) => layer.filter((choice) => choice.route === route));
    return [
      route,
      { parameters: runningSum(own.map(({ length }) => length)), bytes: runningSum(own.map(bytesOf)) },
    ];
  });
  const tablesMs = runningSum(
    chosen.map((layer) =>
      layer.reduce((sum, choice) => sum + (isDense(choice.route) ? 0 : choice.predictedMs), 0),
    ),
  );
  return {
    forwardMs,
    segmentMs,
    busyShare,
    layers: layers.map(({ name, backwardMs }, i) => ({ name, backwardMs, bytes: bytesOf(chosen[i]!) })),
    exchangeMs: (_bytes, first, end) =>
      byRoute.reduce(
        (ms, [route, { parameters, bytes }]) =>
          parameters[end] === parameters[first] ? ms : ms + costs.get(route)!(bytes[end]! - bytes[first]!),
        Math.max(0, tablesMs[end]! - tablesMs[first]!),
      ),
  };
}

/** The messages of a group: dense ones first, then tables in the order of the backward pass. */
export function messagesIn(
  input: RoutedInput,
  choices: Choices,
  first: number,
  end: number,
): RoutedMessage[] {
  const members = input.layers
    .slice(first, end)
    .flatMap(({ parameters }) => parameters.map(({ name }) => choices.get(name)!));
  const costs = routeCosts(input.cluster, input.costs, optionsOf(input));
  const dense = denseRoutes.flatMap((route) => {
    const own = members.filter((choice) => choice.route === route);
    if (own.length === 0) return [];
    const bytes = bytesOf(own);
    return [{ route, parameters: own.map(({ name }) => name), bytes, predictedMs: costs.get(route)!(bytes) }];
  });
  const tables = members
    .filter(({ route }) => !isDense(route))
    .map(({ name, route, bytes, predictedMs }) => ({ route, parameters: [name], bytes, predictedMs }));
  return [...dense, ...tables];
}

function optionsOf({ localAggregation = true }: RoutedInput) {
  return { localAggregation };
}

function isDense(route: Route): boolean {
  return route === 'collective' || route === 'server dense';
}

function bytesOf(choices: readonly RouteChoice[]): number {
  return choices.reduce((sum, { bytes }) => sum + bytes, 0);
}

/** From 0: one more than there are values. */
function runningSum(values: readonly number[]): number[] {
  const sums = [0];
  for (const value of values) sums.push(sums.at(-1)! + value);
  return sums;
}

function checkNames(layers: readonly PlannedLayer[]): void {
  const seen = new Set<string>();
  for (const { name } of layers.flatMap(({ parameters }) => parameters)) {
    if (seen.has(name))
      throw new UsageError(
        'INVALID_ARGUMENT',
        `Parameter ${name} is listed twice; list it with the layer that completes its gradient.`,
        { parameter: name },
      );
    seen.add(name);
  }
}
