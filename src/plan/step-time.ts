/**
 * The time of a whole step for given routes and groups. Terms: a step has three lanes.
 *
 *   compute      forward pass, then backward pass in segments, one for each group
 *   collective   messages of the communication thread, beside compute: behind each group its dense gradients, one message for
 *                each run of neighbours that no parameter on servers interrupts, then its whole tables; behind all groups
 *                the rows of tables
 *   servers      needs the thread that computes, so that all of it is behind the backward pass: one push of dense gradients
 *                and one for each table, all at once; when everything is combined, update and pull, before the next step
 *
 * With T the end of compute, C that of collectives (T at least, rows of tables included), s the longest start of an exchange with servers, w what all
 * their bytes take, and p the share of such an exchange that is the push:
 *
 *   step = max( T + p (s + w), C + p w ) + (1 - p) (s + w)
 *
 * So a push starts while collectives are still under way, but its bytes wait for theirs, as both use the same links and
 * processors. T and C come from `merge-schedule.ts`; this only adds to them. Nothing here chooses: that is done in
 * `route-search.ts`. Invariant: `iterationMs` of the problem, `predictStep` and the plan are one model.
 */
import { UsageError } from '../base/index.ts';
import { iterationMs, messagesOf, timeline } from './merge-schedule.ts';
import type { Grouping, Interval, MergeProblem, Message } from './merge-schedule.ts';
import { bytesByRoute, routeCosts } from './routes.ts';
import type { ClusterShape, ExchangeCosts, PlannedParameter, Route, RouteCost } from './routes.ts';
import { requireShare } from './transfer-amounts.ts';

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
  /** Milliseconds of it alone. */
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

/** By the name of each parameter. */
export type Routes = ReadonlyMap<string, Route>;

/** What goes to servers in a step, as one. */
interface ServerLane {
  readonly startMs: number;
  readonly bytesMs: number;
  readonly pushShare: number;
}

/** What leaves with groups: whole tables, and dense gradients that are not on servers. */
interface GroupedMessages {
  readonly layers: MergeProblem['layers'];
  readonly exchangeMs: (bytes: number, first: number, end: number) => number;
  readonly messagesIn: (first: number, end: number) => RoutedMessage[];
  readonly elsewhere: readonly PlannedParameter[];
}

export interface StepProblem extends MergeProblem {
  /** Milliseconds of rows by collectives, behind all groups. */
  readonly rowsMs: number;
  readonly servers: ServerLane;
  /** Of the group with the layers from `first` to `end`; what leaves behind the backward pass is in the last one. */
  readonly messagesIn: (first: number, end: number) => RoutedMessage[];
  /** The same object for all problems of a model that differ in `endMs` only. */
  readonly grouped: object;
}

export interface PredictedStep {
  /** By group, in the collective lane. */
  readonly messages: readonly Message[];
  readonly computedMs: number;
  /** In which at least one message was under way before all gradients were combined. */
  readonly exchangeMs: number;
  readonly iterationMs: number;
  readonly timeline: readonly Interval[];
}

/** Push and pull have about the same bytes. */
const DEFAULT_PUSH_SHARE = 0.5;

export function predictStep(problem: StepProblem, grouping: Grouping): PredictedStep {
  const messages = messagesOf(problem, grouping);
  const { forwardMs, servers, rowsMs } = problem;
  const { readyMs: computedMs, endMs: sentMs } = messages.at(-1) ?? { readyMs: forwardMs, endMs: forwardMs };
  const combinedMs = allCombinedMs(problem, computedMs, sentMs);
  const endMs = iterationMs(problem, grouping);
  const bar = (lane: Interval['lane'], name: string, from: number, to: number): Interval[] =>
    to > from ? [Object.freeze({ lane, name, startMs: from, endMs: to })] : [];
  const groupedMs = messages.reduce((sum, message) => sum + message.endMs - message.startMs, 0);
  return {
    ...{ messages, computedMs, iterationMs: endMs, exchangeMs: groupedMs + combinedMs - sentMs },
    timeline: [
      ...timeline(problem, grouping),
      ...bar('communication', 'rows', sentMs, sentMs + rowsMs),
      ...(totalMs(servers) > 0 ? bar('servers', 'push', computedMs, combinedMs) : []),
      ...bar('servers', 'update and pull', combinedMs, endMs),
    ],
  };
}

function allCombinedMs(
  { servers, rowsMs }: Pick<StepProblem, 'servers' | 'rowsMs'>,
  computedMs: number,
  sentMs: number,
): number {
  const { pushShare, bytesMs } = servers;
  return Math.max(computedMs + pushShare * totalMs(servers), sentMs + rowsMs + pushShare * bytesMs);
}

function totalMs({ startMs, bytesMs }: ServerLane): number {
  return startMs + bytesMs;
}

/** What does not depend on routes is worked out once, so that many of them can be compared. */
export function stepProblems(input: RoutedInput): (routes: Routes) => StepProblem {
  const { forwardMs, layers, segmentMs = 0, busyShare = 0, costs } = input;
  const { serverPushShare: pushShare = DEFAULT_PUSH_SHARE } = costs;
  checkNames(layers);
  requireShare('serverPushShare', pushShare);
  const options = { localAggregation: input.localAggregation ?? true };
  const denseCosts = routeCosts(input.cluster, costs, options);
  const tables = layers
    .flatMap(({ parameters }) => parameters)
    .filter(({ kind }) => kind === 'sparse')
    .map((parameter) => ({ parameter, costs: routeCosts(input.cluster, costs, options, parameter) }));
  const known = new Map<string, GroupedMessages>();
  const groupedBy = (routes: Routes): GroupedMessages => {
    const key = layers
      .flatMap(({ parameters }) => parameters.map(({ name }) => (routes.get(name) === 'collective' ? 1 : 0)))
      .join('');
    const grouped = known.get(key) ?? groupedMessages(layers, routes, denseCosts.get('collective')!, whole);
    known.set(key, grouped);
    return grouped;
  };
  const whole = (parameter: PlannedParameter): RoutedMessage =>
    routedTable(
      tables.find((one) => one.parameter === parameter)!,
      'collective',
    ).message;
  return (routes) => {
    const routed = tables.map((table) => routedTable(table, routes.get(table.parameter.name)!));
    const gathered = routed.filter(({ message }) => message.route === 'collective rows');
    const grouped = groupedBy(routes);
    const onServers = [
      ...pushed(grouped.elsewhere, denseCosts.get('server dense')),
      ...routed.filter(({ message }) => message.route === 'server rows'),
    ];
    const behind = {
      rowsMs: gathered.reduce((sum, { message }) => sum + message.predictedMs, 0),
      servers: laneOf(onServers, pushShare),
    };
    const pullMs = (1 - pushShare) * totalMs(behind.servers);
    return {
      ...{ forwardMs, segmentMs, busyShare, ...behind, grouped },
      ...{ layers: grouped.layers, exchangeMs: grouped.exchangeMs },
      endMs: (computedMs, sentMs) => allCombinedMs(behind, computedMs, sentMs) + pullMs,
      messagesIn: (first, end) => [
        ...grouped.messagesIn(first, end),
        ...(end === layers.length ? [...gathered, ...onServers].map(({ message }) => message) : []),
      ],
    };
  };
}

function routedTable(
  { parameter, costs }: { parameter: PlannedParameter; costs: ReadonlyMap<Route, RouteCost> },
  route: Route,
): TimedMessage {
  const [bytes, cost] = [bytesByRoute(parameter, route), costs.get(route)!];
  const message = { route, parameters: [parameter.name], bytes, predictedMs: cost(bytes) };
  return { message, startMs: cost(0) };
}

function groupedMessages(
  layers: readonly PlannedLayer[],
  routes: Routes,
  cost: RouteCost,
  wholeTable: (parameter: PlannedParameter) => RoutedMessage,
): GroupedMessages {
  const runs = new DenseRuns(layers, routes, cost);
  const whole = layers.map(({ parameters }) =>
    parameters
      .filter(({ name, kind }) => kind === 'sparse' && routes.get(name) === 'collective')
      .map(wholeTable),
  );
  const wholeMs = runningSum(
    whole.map((messages) => messages.reduce((sum, { predictedMs }) => sum + predictedMs, 0)),
  );
  return {
    elsewhere: runs.elsewhere,
    layers: layers.map(({ name, backwardMs }, i) => ({ name, backwardMs, bytes: runs.bytes(i, i + 1) })),
    exchangeMs: (_bytes, first, end) =>
      runs.costMs(first, end) + Math.max(0, wholeMs[end]! - wholeMs[first]!),
    messagesIn: (first, end) => [...runs.messages(first, end), ...whole.slice(first, end).flat()],
  };
}

interface TimedMessage {
  readonly message: RoutedMessage;
  readonly startMs: number;
}

/** Dense gradients of all groups, which are answered together. */
function pushed(parameters: readonly PlannedParameter[], cost: RouteCost | undefined): TimedMessage[] {
  if (parameters.length === 0) return [];
  const bytes = parameters.reduce((sum, one) => sum + bytesByRoute(one, 'server dense'), 0);
  const names = parameters.map(({ name }) => name);
  const message: RoutedMessage = {
    ...{ route: 'server dense', parameters: names, bytes, predictedMs: cost!(bytes) },
  };
  return [{ message, startMs: cost!(0) }];
}

function laneOf(messages: readonly TimedMessage[], pushShare: number): ServerLane {
  const startMs = Math.max(0, ...messages.map((one) => one.startMs));
  const bytesMs = messages.reduce((sum, one) => sum + one.message.predictedMs - one.startMs, 0);
  return { startMs, bytesMs, pushShare };
}

/**
 * Dense gradients by collectives, which lie in memory in the order of the backward pass: neighbours are one message, and a
 * parameter on servers between them makes two of it. Sums over all before each, so that any group takes O(1).
 */
class DenseRuns {
  readonly elsewhere: readonly PlannedParameter[];
  readonly #own: readonly PlannedParameter[];
  readonly #cost: RouteCost;
  /** Of each layer, how many of `#own` come before it. */
  readonly #before: readonly number[];
  /** Bytes before each of `#own`. */
  readonly #bytes: readonly number[];
  /** Of each of `#own` the run that it is in; of each run where it starts; and what all before a run take as wholes. */
  readonly #runOf: readonly number[];
  readonly #starts: readonly number[];
  readonly #wholeMs: readonly number[];

  constructor(layers: readonly PlannedLayer[], routes: Routes, cost: RouteCost) {
    const [own, elsewhere]: [PlannedParameter[], PlannedParameter[]] = [[], []];
    const [before, runOf, starts]: [number[], number[], number[]] = [[0], [], []];
    let isCut = true;
    for (const { parameters } of layers) {
      for (const parameter of parameters) {
        if (parameter.kind === 'sparse') continue;
        if (routes.get(parameter.name) === 'server dense') {
          elsewhere.push(parameter);
          isCut = true;
          continue;
        }
        if (isCut) starts.push(own.length);
        isCut = false;
        runOf.push(starts.length - 1);
        own.push(parameter);
      }
      before.push(own.length);
    }
    this.elsewhere = elsewhere;
    this.#own = own;
    this.#cost = cost;
    this.#before = before;
    this.#bytes = runningSum(own.map((one) => bytesByRoute(one, 'collective')));
    this.#runOf = runOf;
    this.#starts = [...starts, own.length];
    this.#wholeMs = runningSum(starts.map((from, run) => this.#pieceMs(from, this.#starts[run + 1]!)));
  }

  bytes(first: number, end: number): number {
    return this.#bytes[this.#before[end]!]! - this.#bytes[this.#before[first]!]!;
  }

  costMs(first: number, end: number): number {
    const [from, to] = [this.#before[first]!, this.#before[end]!];
    if (from === to) return 0;
    const [firstRun, lastRun] = [this.#runOf[from]!, this.#runOf[to - 1]!];
    if (firstRun === lastRun) return this.#pieceMs(from, to);
    const betweenMs = this.#wholeMs[lastRun]! - this.#wholeMs[firstRun + 1]!;
    const [nextStart, lastStart] = [this.#starts[firstRun + 1]!, this.#starts[lastRun]!];
    return this.#pieceMs(from, nextStart) + Math.max(0, betweenMs) + this.#pieceMs(lastStart, to);
  }

  messages(first: number, end: number): RoutedMessage[] {
    const [from, to] = [this.#before[first]!, this.#before[end]!];
    if (from === to) return [];
    const cuts = this.#starts.filter((start) => start > from && start < to);
    return [from, ...cuts].map((start, i) => {
      const stop = cuts[i] ?? to;
      const parameters = this.#own.slice(start, stop).map(({ name }) => name);
      const bytes = this.#bytes[stop]! - this.#bytes[start]!;
      return { route: 'collective', parameters, bytes, predictedMs: this.#cost(bytes) };
    });
  }

  #pieceMs(from: number, to: number): number {
    return this.#cost(this.#bytes[to]! - this.#bytes[from]!);
  }
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
