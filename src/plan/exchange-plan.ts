/**
 * The whole plan of an exchange: the route of each parameter, the groups in which gradients leave during the backward pass,
 * what lies on which server, and what every other strategy would have taken. Made of measured figures by pure functions;
 * it starts and sends nothing. Terms: a group is what one segment of the backward pass computes, whatever the routes; which
 * messages that makes, and when they leave, is said in `step-time.ts`. Invariants: frozen plain data, the same for the
 * same figures; the hybrid strategy is never predicted to be slower than another one by more than `leastGain`.
 */
import { refuse } from './argument-checks.ts';
import { algorithmOne, allInOne, fixedBuckets, layerByLayer } from './merge-baselines.ts';
import { iterationMs, type Grouping, type Interval, type MergeProblem } from './merge-schedule.ts';
import { groupings, optimalGroups, quickestOf, type GroupingFront } from './optimal-groups.ts';
import { RouteSteps } from './route-search.ts';
import { choiceOf, chooseRoutes, routeTimes } from './routes.ts';
import type {
  ClusterShape,
  ExchangeCosts,
  PlannedParameter,
  Route,
  RouteChoice,
  RouteTimes,
  Strategy,
} from './routes.ts';
import { serverShares } from './server-shares.ts';
import { predictStep, stepProblems } from './step-time.ts';
import type { PlannedLayer, RoutedMessage, Routes, StepProblem } from './step-time.ts';

/** How neighbouring gradients are merged: the exact optimum, or a baseline to compare with. */
export type Merging = 'optimal' | 'layer by layer' | 'single' | 'buckets' | 'algorithm 1';

export interface ExchangeInput {
  /** Milliseconds of the forward pass. */
  readonly forwardMs: number;
  /** In the order of the backward pass. */
  readonly layers: readonly PlannedLayer[];
  /** Milliseconds that one more segment of the backward pass costs. Default 0. */
  readonly segmentMs?: number;
  /** Share of a message's time that it takes from compute behind it, where both need the same processor. Default 0. */
  readonly busyShare?: number;
  readonly cluster: ClusterShape;
  readonly costs: ExchangeCosts;
  /** Which routes may be taken. Default 'hybrid', those of the quickest step. */
  readonly strategy?: Strategy;
  /**
   * Routes to take, by the name of each parameter, whatever the strategy: what was found out by
   * trying, or what a run has. Default: those of the strategy.
   */
  readonly routes?: Readonly<Record<string, Route>> | undefined;
  /** Default 'optimal'. */
  readonly merging?: Merging;
  /** Size of a bucket for 'buckets'. Default 25 MB. */
  readonly bucketBytes?: number;
  /** Share of an iteration that several messages must gain over one for 'optimal' to take them; less is noise. Default 0. */
  readonly leastGain?: number;
  /** Whether the workers of a machine add up among themselves first. Default true. */
  readonly localAggregation?: boolean;
  /** Size of a chunk of dense parameters on servers. Default 32 KB. */
  readonly chunkBytes?: number;
}

export interface ParameterPlan extends RouteChoice {
  readonly kind: 'dense' | 'sparse';
  readonly elements: number;
  /** Of sparse ones. */
  readonly sparsity?: number;
  /** Which group its gradient is computed with, from 0. */
  readonly group: number;
  /** Bytes of it on each server; empty if it is on none. */
  readonly bytesByServer: readonly number[];
}

export interface GroupPlan {
  readonly layers: readonly string[];
  /**
   * What leaves behind the whole backward pass, rows of tables by collectives, is in the last
   * group.
   */
  readonly messages: readonly RoutedMessage[];
  /**
   * When its gradients are there, and when its messages start and end; from the start of the
   * forward pass.
   */
  readonly readyMs: number;
  readonly startMs: number;
  readonly endMs: number;
}

export interface Prediction {
  readonly strategy: Strategy;
  readonly merging: Merging;
  readonly groups: number;
  readonly iterationMs: number;
}

/** Routes that the plan was chosen from. */
export interface RouteCandidate {
  /** A strategy; 'each alone' takes for every table, and for all dense parameters, the route whose messages alone cost least. */
  readonly name: Strategy | 'each alone';
  /** Merged optimally. */
  readonly iterationMs: number;
}

/** Frozen throughout, and plain data: it can be printed, sent and compared. */
export interface ExchangePlan {
  readonly strategy: Strategy;
  readonly merging: Merging;
  readonly parameters: readonly ParameterPlan[];
  readonly groups: readonly GroupPlan[];
  /** Bytes of parameters on each server. */
  readonly bytesByServer: readonly number[];
  /** Milliseconds of compute, borders included, and of messages until all is combined; what they overlap counts in both. */
  readonly computeMs: number;
  readonly exchangeMs: number;
  readonly iterationMs: number;
  /** Of every strategy that the cluster and the costs allow, with every merging. */
  readonly predictions: readonly Prediction[];
  /** 'hybrid' is the best that was found, starting from the others. */
  readonly candidates: readonly RouteCandidate[];
  /**
   * What took a few real steps before it was decided, as it was predicted to be about as quick: what
   * would have been taken by the prediction first. Default: nothing was tried.
   */
  readonly tried?: readonly TriedRoutes[];
  readonly timeline: readonly Interval[];
  /** One sentence for people. */
  readonly reason: string;
}

/** Routes as they did in real steps that trained nothing. */
export interface TriedRoutes {
  /** As among the candidates. */
  readonly name: RouteCandidate['name'];
  readonly routes: Readonly<Record<string, Route>>;
  readonly predictedMs: number;
  /** Mean of the passes. */
  readonly measuredMs: number;
  /** Medians of the steps of each pass over all candidates, mean over the workers. */
  readonly passesMs: readonly number[];
  readonly steps: number;
}

const mergings: Readonly<Record<Merging, (problem: MergeProblem, bucketBytes?: number) => Grouping>> = {
  optimal: optimalGroups,
  'layer by layer': layerByLayer,
  single: allInOne,
  buckets: fixedBuckets,
  'algorithm 1': algorithmOne,
};

/** Less is rounding, in what is predicted and in what is printed. */
const SHOWN_GAIN = 0.001;

export function planExchange(input: ExchangeInput): ExchangePlan {
  const { merging = 'optimal', cluster, layers, routes } = input;
  const strategy = routes === undefined ? (input.strategy ?? 'hybrid') : 'hybrid';
  if (!Object.hasOwn(mergings, merging))
    refuse('merging', merging, `one of ${Object.keys(mergings).join(', ')}`);
  const comparison = new Comparison(input);
  const chosen = comparison.chosen(strategy);
  const { problem } = chosen;
  const choices = comparison.choices(chosen);

  const step = predictStep(problem, comparison.grouping(merging, problem));
  const shares = sharesOf(input, choices);
  const groups = step.messages.map(({ first, end, readyMs, startMs, endMs }): GroupPlan => ({
    ...{ layers: layers.slice(first, end).map(({ name }) => name), messages: problem.messagesIn(first, end) },
    ...{ readyMs, startMs, endMs },
  }));
  const groupOf = step.messages.flatMap(({ first, end }, group) =>
    new Array<number>(end - first).fill(group),
  );
  const parameters = layers.flatMap((layer, i) =>
    layer.parameters.map(({ name, kind, elements, sparsity }): ParameterPlan => ({
      ...choices.get(name)!,
      ...{ kind, elements, ...(sparsity === undefined ? {} : { sparsity }) },
      ...{ group: groupOf[i]!, bytesByServer: shares.get(name) ?? [] },
    })),
  );
  const totals = Array.from({ length: cluster.servers }, (_, server) =>
    parameters.reduce((sum, { bytesByServer }) => sum + (bytesByServer[server] ?? 0), 0),
  );
  const predictions = comparison.candidates.flatMap((one) => one.predictions);
  return freeze({
    ...{ strategy, merging, parameters, groups, bytesByServer: totals },
    ...{ computeMs: step.computedMs, exchangeMs: step.exchangeMs, iterationMs: step.iterationMs },
    predictions,
    candidates: comparison.listed,
    timeline: step.timeline,
    reason: `${chosen.reason}${smallGain(input, predictions, step.iterationMs)}`,
  });
}

/** Why a row that is predicted to be quicker was not taken; nothing if there is none among those to choose from. */
function smallGain(
  { strategy = 'hybrid', merging = 'optimal', leastGain = 0 }: ExchangeInput,
  predictions: readonly Prediction[],
  plannedMs: number,
): string {
  if (merging !== 'optimal' || leastGain === 0) return '';
  const open = predictions.filter((one) => strategy === 'hybrid' || one.strategy === strategy);
  const [quickest] = [...open].sort((a, b) => a.iterationMs - b.iterationMs);
  const gain = quickest === undefined ? 0 : 1 - quickest.iterationMs / plannedMs;
  if (gain < SHOWN_GAIN) return '';
  const name = `${quickest!.strategy}, ${quickest!.merging}`;
  return `; '${name}' would gain ${percent(gain)}, but more messages and mixed routes must each gain ${percent(leastGain)}`;
}

function percent(share: number): string {
  return `${Number((100 * share).toFixed(1))} %`;
}

/** One message instead of an optimum that gains too little. */
function worthwhile(grouping: Grouping, problem: MergeProblem, { leastGain = 0 }: ExchangeInput): Grouping {
  if (leastGain === 0) return grouping;
  const single = allInOne(problem);
  const isWorthIt = iterationMs(problem, grouping) < (1 - leastGain) * iterationMs(problem, single);
  return isWorthIt ? grouping : single;
}

interface Candidate {
  readonly strategy: Strategy;
  readonly routes: Routes;
  readonly problem: StepProblem;
  readonly predictions: readonly Prediction[];
  readonly optimumMs: number;
  readonly reason: string;
}

/** Of ways that are about as quick, those with fewer kinds of messages in them: they have fewer surprises. */
const simplestFirst: readonly Strategy[] = ['collectives', 'servers', 'parallax', 'hybrid'];

/** All strategies with the same figures. */
class Comparison {
  readonly candidates: readonly Candidate[];
  readonly listed: readonly RouteCandidate[];
  readonly #input: ExchangeInput;
  readonly #problemOf: (routes: Routes) => StepProblem;
  readonly #steps: RouteSteps;
  readonly #fronts = new Map<object, GroupingFront>();

  constructor(input: ExchangeInput) {
    this.#input = input;
    const { layers, cluster, costs } = input;
    const parameters = layers.flatMap((layer) => layer.parameters);
    this.#problemOf = stepProblems(input);
    const times = routeTimes(parameters, cluster, costs, optionsOf(input));
    this.#steps = new RouteSteps({
      ...{ parameters, times },
      stepMs: (routes) => {
        const problem = this.#problemOf(routes);
        return iterationMs(problem, this.grouping('optimal', problem));
      },
      groupsKey: (routes) => this.#problemOf(routes).grouped,
    });
    const pure = strategiesOf(cluster, costs).map((one) => this.#candidate(one, this.#routesBy(one)));
    const eachAlone = this.#routesBy('hybrid');
    const starts = [...pure.map(({ routes }) => routes), eachAlone];
    const hybrid = input.routes
      ? this.#candidate('hybrid', givenRoutes(parameters, times, input.routes))
      : this.#hybrid(this.#candidate('hybrid', this.#steps.quickest(starts)), pure);
    this.candidates = [hybrid, ...pure];
    this.listed = [
      ...this.candidates.map(({ strategy, optimumMs }) => ({ name: strategy, iterationMs: optimumMs })),
      { name: 'each alone', iterationMs: this.#steps.stepMs(eachAlone) },
    ];
  }

  grouping(merging: Merging, problem: StepProblem): Grouping {
    if (merging !== 'optimal') return mergings[merging](problem, this.#input.bucketBytes);
    const front = this.#fronts.get(problem.grouped) ?? groupings(problem);
    this.#fronts.set(problem.grouped, front);
    return worthwhile(quickestOf(problem, front), problem, this.#input);
  }

  chosen(strategy: Strategy): Candidate {
    const known = this.candidates.find((one) => one.strategy === strategy);
    return known ?? this.#candidate(strategy, this.#routesBy(strategy));
  }

  /** By name, with the reason: what was compared for it. */
  choices({ strategy, routes }: Candidate): ReadonlyMap<string, RouteChoice> {
    const { layers, cluster, costs } = this.#input;
    const parameters = layers.flatMap((layer) => layer.parameters);
    if (strategy !== 'hybrid') {
      const chosen = chooseRoutes(parameters, cluster, costs, { ...optionsOf(this.#input), strategy });
      return new Map(chosen.map((choice) => [choice.name, choice]));
    }
    const times = routeTimes(parameters, cluster, costs, optionsOf(this.#input));
    const reasons = this.#steps.reasons(routes);
    return new Map(
      parameters.map((parameter) => {
        const { name } = parameter;
        return [name, choiceOf(parameter, routes.get(name)!, times.get(name)!, reasons.get(name)!)];
      }),
    );
  }

  #routesBy(strategy: Strategy): Routes {
    const { layers, cluster, costs } = this.#input;
    const parameters = layers.flatMap((layer) => layer.parameters);
    const chosen = chooseRoutes(parameters, cluster, costs, { ...optionsOf(this.#input), strategy });
    return new Map(chosen.map(({ name, route }) => [name, route]));
  }

  #candidate(strategy: Strategy, routes: Routes): Candidate {
    const problem = this.#problemOf(routes);
    const predictions = (Object.keys(mergings) as Merging[]).map((merging): Prediction => {
      const grouping = this.grouping(merging, problem);
      return { strategy, merging, groups: grouping.length, iterationMs: iterationMs(problem, grouping) };
    });
    const optimumMs = predictions[0]!.iterationMs;
    const kinds = [...new Set(routes.values())].join(', ');
    const reason = `${strategy}: ${optimumMs.toPrecision(3)} ms an iteration by ${kinds || 'no exchange'}`;
    return { strategy, routes, problem, predictions, optimumMs, reason };
  }

  /** The best routes that were found, or those of a simpler strategy that is hardly slower. */
  #hybrid(found: Candidate, pure: readonly Candidate[]): Candidate {
    const { leastGain = 0 } = this.#input;
    const taken = simplestFirst
      .flatMap((strategy) => [...pure, found].filter((one) => one.strategy === strategy))
      .find(({ optimumMs }) => (1 - leastGain) * optimumMs <= found.optimumMs)!;
    if (taken.optimumMs === found.optimumMs) return found;
    return {
      ...taken,
      strategy: 'hybrid',
      predictions: taken.predictions.map((prediction) => ({ ...prediction, strategy: 'hybrid' })),
      reason: `${taken.reason}, as other routes would take ${found.optimumMs.toPrecision(3)} ms, hardly less`,
    };
  }
}

function optionsOf({ localAggregation = true }: ExchangeInput) {
  return { localAggregation };
}

/** Refuses what some parameter cannot take. */
function givenRoutes(
  parameters: readonly PlannedParameter[],
  times: ReadonlyMap<string, RouteTimes>,
  routes: Readonly<Record<string, Route>>,
): Routes {
  return new Map(
    parameters.map(({ name }) => {
      const [route, open] = [routes[name], [...times.get(name)!.keys()]];
      if (route === undefined || !open.includes(route)) refuse(`route of ${name}`, route, open.join(' or '));
      return [name, route];
    }),
  );
}

/** Those that say which routes to take, whatever the step. */
function strategiesOf({ servers }: ClusterShape, { serverDense, serverRows }: ExchangeCosts): Strategy[] {
  const hasServers = servers > 0 && serverDense !== undefined && serverRows !== undefined;
  return hasServers ? ['collectives', 'servers', 'parallax'] : ['collectives'];
}

function sharesOf(
  { layers, cluster, chunkBytes }: ExchangeInput,
  choices: ReadonlyMap<string, RouteChoice>,
): ReadonlyMap<string, readonly number[]> {
  const onServers = layers
    .flatMap((layer) => layer.parameters)
    .flatMap(({ name, elements, rowLength }) => {
      const { route } = choices.get(name)!;
      if (route === 'server dense') return [{ name, elements }];
      return route === 'server rows' ? [{ name, elements, rowLength: rowLength! }] : [];
    });
  return serverShares(onServers, cluster.servers, chunkBytes);
}

function freeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null) return value;
  Object.values(value).forEach(freeze);
  return Object.freeze(value);
}
