/**
 * The whole plan of an exchange: the route of each parameter, the groups in which gradients leave during the backward pass,
 * what lies on which server, and what every other strategy would have taken. Made of measured figures by pure functions;
 * it starts and sends nothing. Terms: a group is what one segment of the backward pass computes, whatever the routes; its
 * messages follow each other, one for each dense route and one for each table. Invariants: frozen plain data, the same
 * for the same figures; the hybrid strategy is never predicted to be slower than a pure one by more than `leastGain`.
 */
import { refuse } from './argument-checks.ts';
import { algorithmOne, allInOne, fixedBuckets, layerByLayer } from './merge-baselines.ts';
import { iterationMs, messagesOf, timeline } from './merge-schedule.ts';
import type { Grouping, Interval, MergeProblem } from './merge-schedule.ts';
import { optimalGroups } from './optimal-groups.ts';
import { mergeProblemOf, messagesIn, type PlannedLayer, type RoutedMessage } from './routed-groups.ts';
import {
  chooseRoutes,
  type ClusterShape,
  type ExchangeCosts,
  type RouteChoice,
  type Strategy,
} from './routes.ts';
import { serverShares } from './server-shares.ts';

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
  /** Which routes may be taken. Default 'hybrid', the cheapest. */
  readonly strategy?: Strategy;
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
  /** Which group it leaves with, from 0. */
  readonly group: number;
  /** Bytes of it on each server; empty if it is on none. */
  readonly bytesByServer: readonly number[];
}

export interface GroupPlan {
  readonly layers: readonly string[];
  readonly messages: readonly RoutedMessage[];
  /** When its gradients are there, and when their exchange starts and ends; from the start of the forward pass. */
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

/** Frozen throughout, and plain data: it can be printed, sent and compared. */
export interface ExchangePlan {
  readonly strategy: Strategy;
  readonly merging: Merging;
  readonly parameters: readonly ParameterPlan[];
  readonly groups: readonly GroupPlan[];
  /** Bytes of parameters on each server. */
  readonly bytesByServer: readonly number[];
  /** Milliseconds of compute, borders included, and of all messages; what they overlap counts in both. */
  readonly computeMs: number;
  readonly exchangeMs: number;
  readonly iterationMs: number;
  /** Of every strategy that the cluster and the costs allow, with every merging. */
  readonly predictions: readonly Prediction[];
  readonly timeline: readonly Interval[];
  /** One sentence for people. */
  readonly reason: string;
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
  const { strategy = 'hybrid', merging = 'optimal', cluster, costs, layers } = input;
  if (!Object.hasOwn(mergings, merging))
    refuse('merging', merging, `one of ${Object.keys(mergings).join(', ')}`);
  const unmixed = strategiesOf(cluster, costs).map((one) => candidateOf(one, input));
  const candidates = unmixed.map((one) => withoutSlowerMix(one, unmixed, input));
  const chosen = candidates.find((one) => one.strategy === strategy) ?? candidateOf(strategy, input);
  const { problem, choices } = chosen;

  const grouping = groupingOf(merging, problem, input);
  const shares = sharesOf(input, choices);
  const groups = messagesOf(problem, grouping).map(({ first, end, readyMs, startMs, endMs }): GroupPlan => {
    const messages = messagesIn(input, choices, first, end);
    return { layers: layers.slice(first, end).map(({ name }) => name), messages, readyMs, startMs, endMs };
  });
  const groupOf = new Map(
    groups.flatMap(({ messages }, group) =>
      messages.flatMap((m) => m.parameters.map((name) => [name, group])),
    ),
  );
  const parameters = layers
    .flatMap((layer) => layer.parameters)
    .map(({ name, kind, elements, sparsity }): ParameterPlan => ({
      ...choices.get(name)!,
      kind,
      elements,
      ...(sparsity === undefined ? {} : { sparsity }),
      group: groupOf.get(name)!,
      bytesByServer: shares.get(name) ?? [],
    }));
  const totals = Array.from({ length: cluster.servers }, (_, server) =>
    parameters.reduce((sum, { bytesByServer }) => sum + (bytesByServer[server] ?? 0), 0),
  );
  const plannedMs = iterationMs(problem, grouping);
  const predictions = candidates.flatMap((one) => one.predictions);
  return freeze({
    strategy,
    merging,
    parameters,
    groups,
    bytesByServer: totals,
    computeMs: groups.at(-1)?.readyMs ?? input.forwardMs,
    exchangeMs: groups.reduce((sum, { startMs, endMs }) => sum + endMs - startMs, 0),
    iterationMs: plannedMs,
    predictions,
    timeline: timeline(problem, grouping),
    reason: `${chosen.reason}${smallGain(input, predictions, plannedMs)}`,
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

function groupingOf(merging: Merging, problem: MergeProblem, input: ExchangeInput): Grouping {
  const { bucketBytes, leastGain = 0 } = input;
  const grouping = mergings[merging](problem, bucketBytes);
  if (merging !== 'optimal' || leastGain === 0) return grouping;
  const single = allInOne(problem);
  const isWorthIt = iterationMs(problem, grouping) < (1 - leastGain) * iterationMs(problem, single);
  return isWorthIt ? grouping : single;
}

interface Candidate {
  readonly strategy: Strategy;
  readonly choices: ReadonlyMap<string, RouteChoice>;
  readonly problem: MergeProblem;
  readonly predictions: readonly Prediction[];
  readonly optimumMs: number;
  readonly reason: string;
}

function candidateOf(strategy: Strategy, input: ExchangeInput): Candidate {
  const { layers, cluster, costs, localAggregation = true } = input;
  const parameters = layers.flatMap((layer) => layer.parameters);
  const chosen = chooseRoutes(parameters, cluster, costs, { strategy, localAggregation });
  const choices = new Map(chosen.map((choice) => [choice.name, choice]));
  const problem = mergeProblemOf(input, choices);
  const predictions = (Object.keys(mergings) as Merging[]).map((merging): Prediction => {
    const grouping = groupingOf(merging, problem, input);
    return { strategy, merging, groups: grouping.length, iterationMs: iterationMs(problem, grouping) };
  });
  const optimumMs = predictions[0]!.iterationMs;
  const routes = [...new Set(chosen.map(({ route }) => route))].join(', ');
  const reason = `${strategy}: ${optimumMs.toPrecision(3)} ms an iteration by ${routes || 'no exchange'}`;
  return { strategy, choices, problem, predictions, optimumMs, reason };
}

/** Of ways that are about as quick, those with fewer kinds of messages in them: they have fewer surprises. */
const simplestFirst: readonly Strategy[] = ['collectives', 'servers', 'parallax', 'hybrid'];

/**
 * Routes are chosen by what each parameter costs alone, so that a mix may pay more starts than it saves; then what is quickest, or
 * simpler and hardly slower, is what hybrid means.
 */
function withoutSlowerMix(
  chosen: Candidate,
  candidates: readonly Candidate[],
  { leastGain = 0 }: ExchangeInput,
): Candidate {
  if (chosen.strategy !== 'hybrid') return chosen;
  const quickestMs = Math.min(...candidates.map(({ optimumMs }) => optimumMs));
  const taken = simplestFirst
    .flatMap((strategy) => candidates.filter((one) => one.strategy === strategy))
    .find(({ optimumMs }) => (1 - leastGain) * optimumMs <= quickestMs)!;
  if (taken.optimumMs === chosen.optimumMs) return chosen;
  const comparison =
    taken.optimumMs < chosen.optimumMs
      ? `quicker than the ${chosen.optimumMs.toPrecision(3)} ms of mixed routes`
      : `as mixed routes would take ${chosen.optimumMs.toPrecision(3)} ms, hardly less`;
  return {
    ...taken,
    strategy: 'hybrid',
    predictions: taken.predictions.map((prediction) => ({ ...prediction, strategy: 'hybrid' })),
    reason: `${taken.reason}, ${comparison}`,
  };
}

function strategiesOf({ servers }: ClusterShape, { serverDense, serverRows }: ExchangeCosts): Strategy[] {
  const hasServers = servers > 0 && serverDense !== undefined && serverRows !== undefined;
  return hasServers ? ['hybrid', 'collectives', 'servers', 'parallax'] : ['hybrid', 'collectives'];
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
