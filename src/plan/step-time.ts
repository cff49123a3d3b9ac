/**
 * The time of a whole step for given routes and groups. Terms: a step has two lanes.
 *
 *   compute    forward pass, then backward pass in segments, one for each group
 *   messages   beside compute, by threads of their own: behind each group its dense gradients by collectives, one message for
 *              each run of neighbours that no parameter on servers interrupts, then its whole tables; and its pushes, one of
 *              dense gradients and one for each table, all at once. Behind all groups the rows of tables by collectives
 *
 * When everything is combined, servers update, and workers pull before the next step. With c what the collectives of a group
 * take, s the longest start of an exchange with servers among its parameters, w what their bytes take, and p the share of such
 * an exchange that is the push, the messages of a group take
 *
 *   max( c, p s ) + p w
 *
 * behind those of the group before: pushes start beside collectives, but their bytes wait for each other, as both use the same
 * links and processors. The step ends (1 - p) (s + w) later, with s and w those of all groups. So it is one problem of merging
 * (`merge-schedule.ts`), whose optimum is exact. Nothing here chooses routes: that is done in `route-search.ts`. Invariant:
 * `iterationMs` of the problem, `predictStep` and the plan are one model.
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

/** What goes to servers together. */
interface Exchanged {
  readonly startMs: number;
  readonly bytesMs: number;
}

export interface StepProblem extends MergeProblem {
  /** Of a group: milliseconds of its collectives. */
  readonly collectiveMs: (first: number, end: number) => number;
  /** Milliseconds of rows by collectives, behind all groups. */
  readonly rowsMs: number;
  /** Milliseconds of update and pull, when everything is combined. */
  readonly pullMs: number;
  /**
   * Of the group with the layers from `first` to `end`; rows by collectives are in the last one.
   */
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
  const { forwardMs, rowsMs } = problem;
  const { readyMs: computedMs, endMs: sentMs } = messages.at(-1) ?? { readyMs: forwardMs, endMs: forwardMs };
  const combinedMs = sentMs + rowsMs;
  const endMs = iterationMs(problem, grouping);
  const bar = (lane: Interval['lane'], name: string, from: number, to: number): Interval[] =>
    to > from ? [Object.freeze({ lane, name, startMs: from, endMs: to })] : [];
  const groupedMs = messages.reduce((sum, message) => sum + message.endMs - message.startMs, 0);
  const bars = timeline(problem, grouping);
  const titles = bars.filter(({ lane }) => lane === 'communication').map(({ name }) => name);
  const sent = messages.flatMap(({ first, end, startMs, endMs: lastMs }, group) => {
    const isPushed = problem.messagesIn(first, end).some(({ route }) => route.startsWith('server'));
    return [
      ...bar('communication', titles[group]!, startMs, startMs + problem.collectiveMs(first, end)),
      ...(isPushed ? bar('servers', `push ${titles[group]!}`, startMs, lastMs) : []),
    ];
  });
  return {
    ...{ messages, computedMs, iterationMs: endMs, exchangeMs: groupedMs + rowsMs },
    timeline: [
      ...bars.filter(({ lane }) => lane === 'compute'),
      ...sent,
      ...bar('communication', 'rows', sentMs, combinedMs),
      ...bar('servers', 'update and pull', combinedMs, endMs),
    ],
  };
}

/** What leaves with groups, by routes. */
interface GroupedMessages {
  readonly layers: MergeProblem['layers'];
  readonly exchangeMs: (bytes: number, first: number, end: number) => number;
  readonly collectiveMs: (first: number, end: number) => number;
  readonly messagesIn: (first: number, end: number) => RoutedMessage[];
  /** All that goes to servers in a step. */
  readonly onServers: Exchanged;
}

/** What does not depend on routes is worked out once, so that many of them can be compared. */
export function stepProblems(input: RoutedInput): (routes: Routes) => StepProblem {
  const { forwardMs, layers, segmentMs = 0, busyShare = 0, costs } = input;
  const { serverPushShare: pushShare = DEFAULT_PUSH_SHARE } = costs;
  checkNames(layers);
  requireShare('serverPushShare', pushShare);
  const options = { localAggregation: input.localAggregation ?? true };
  const dense = routeCosts(input.cluster, costs, options);
  const parameters = layers.flatMap((layer) => layer.parameters);
  const ofTables = new Map(
    parameters
      .filter(({ kind }) => kind === 'sparse')
      .map((table) => [table.name, routeCosts(input.cluster, costs, options, table)]),
  );
  const costOf = ({ name }: PlannedParameter, route: Route): RouteCost =>
    (ofTables.get(name) ?? dense).get(route)!;
  const known = new Map<string, GroupedMessages>();
  const groupedBy = (routes: Routes): GroupedMessages => {
    // Rows by collectives leave behind all groups, whatever these are.
    const key = parameters.map(({ name }) => GROUPED_AS[routes.get(name)!]).join('');
    const grouped = known.get(key) ?? groupedMessages(layers, routes, costOf, pushShare);
    known.set(key, grouped);
    return grouped;
  };
  return (routes) => {
    const grouped = groupedBy(routes);
    const gathered = parameters
      .filter(({ name }) => routes.get(name) === 'collective rows')
      .map((table) => messageOf([table], 'collective rows', costOf(table, 'collective rows')));
    const rowsMs = gathered.reduce((sum, { predictedMs }) => sum + predictedMs, 0);
    const { startMs, bytesMs } = grouped.onServers;
    const pullMs = (1 - pushShare) * (startMs + bytesMs);
    return {
      ...{ forwardMs, segmentMs, busyShare, rowsMs, pullMs, grouped },
      ...{ layers: grouped.layers, exchangeMs: grouped.exchangeMs, collectiveMs: grouped.collectiveMs },
      endMs: (_computedMs, sentMs) => sentMs + rowsMs + pullMs,
      messagesIn: (first, end) => [
        ...grouped.messagesIn(first, end),
        ...(end === layers.length ? gathered : []),
      ],
    };
  };
}

const GROUPED_AS: Readonly<Record<Route, string>> = {
  ...{ collective: 'c', 'server dense': 's', 'server rows': 's', 'collective rows': '-' },
};

type CostOf = (parameter: PlannedParameter, route: Route) => RouteCost;

function messageOf(members: readonly PlannedParameter[], route: Route, cost: RouteCost): RoutedMessage {
  const bytes = members.reduce((sum, one) => sum + bytesByRoute(one, route), 0);
  return { route, parameters: members.map(({ name }) => name), bytes, predictedMs: cost(bytes) };
}

function groupedMessages(
  layers: readonly PlannedLayer[],
  routes: Routes,
  costOf: CostOf,
  pushShare: number,
): GroupedMessages {
  const runs = new DenseRuns(layers, routes, costOf);
  const pushes = new Pushes(layers, routes, costOf);
  const whole = layers.map(({ parameters }) =>
    parameters
      .filter(({ name, kind }) => kind === 'sparse' && routes.get(name) === 'collective')
      .map((table) => messageOf([table], 'collective', costOf(table, 'collective'))),
  );
  const wholeMs = runningSum(
    whole.map((messages) => messages.reduce((sum, { predictedMs }) => sum + predictedMs, 0)),
  );
  const collectiveMs = (first: number, end: number): number =>
    runs.costMs(first, end) + Math.max(0, wholeMs[end]! - wholeMs[first]!);
  return {
    layers: layers.map(({ name, backwardMs }, i) => ({
      ...{ name, backwardMs },
      bytes: runs.bytes(i, i + 1) + pushes.denseBytes(i, i + 1),
    })),
    collectiveMs,
    exchangeMs: (_bytes, first, end) => {
      const { startMs, bytesMs } = pushes.in(first, end);
      return Math.max(collectiveMs(first, end), pushShare * startMs) + pushShare * bytesMs;
    },
    messagesIn: (first, end) => [
      ...runs.messages(first, end),
      ...whole.slice(first, end).flat(),
      ...pushes.messages(first, end),
    ],
    onServers: pushes.in(0, layers.length),
  };
}

/**
 * What goes to servers: the dense gradients of a group as one push, its tables each on their own.
 */
class Pushes {
  readonly #dense: readonly (readonly PlannedParameter[])[];
  readonly #tables: readonly (readonly TimedTable[])[];
  readonly #denseCost: RouteCost;
  /**
   * Before each layer: bytes of dense gradients, how many of these there are, and what the bytes of
   * tables take.
   */
  readonly #bytes: readonly number[];
  readonly #counts: readonly number[];
  readonly #tablesMs: readonly number[];
  readonly #tableCounts: readonly number[];
  readonly #tableStartMs: number;

  constructor(layers: readonly PlannedLayer[], routes: Routes, costOf: CostOf) {
    const on = (route: Route) =>
      layers.map(({ parameters }) => parameters.filter(({ name }) => routes.get(name) === route));
    this.#dense = on('server dense');
    const [first] = this.#dense.flat();
    this.#denseCost = first ? costOf(first, 'server dense') : () => 0;
    this.#bytes = runningSum(this.#dense.map((own) => bytesOf(own)));
    this.#counts = runningSum(this.#dense.map(({ length }) => length));
    this.#tables = on('server rows').map((own) =>
      own.map((table): TimedTable => {
        const cost = costOf(table, 'server rows');
        return { message: messageOf([table], 'server rows', cost), startMs: cost(0) };
      }),
    );
    this.#tablesMs = runningSum(
      this.#tables.map((own) =>
        own.reduce((sum, { message, startMs }) => sum + message.predictedMs - startMs, 0),
      ),
    );
    this.#tableCounts = runningSum(this.#tables.map(({ length }) => length));
    // The start of rows is that of a table without any: the same for all.
    this.#tableStartMs = Math.max(0, ...this.#tables.flat().map(({ startMs }) => startMs));
  }

  denseBytes(first: number, end: number): number {
    return this.#bytes[end]! - this.#bytes[first]!;
  }

  in(first: number, end: number): Exchanged {
    const hasDense = this.#counts[end]! > this.#counts[first]!;
    const hasTables = this.#tableCounts[end]! > this.#tableCounts[first]!;
    const denseStartMs = hasDense ? this.#denseCost(0) : 0;
    const denseMs = hasDense ? this.#denseCost(this.denseBytes(first, end)) - denseStartMs : 0;
    const tablesMs = hasTables ? Math.max(0, this.#tablesMs[end]! - this.#tablesMs[first]!) : 0;
    return {
      startMs: Math.max(denseStartMs, hasTables ? this.#tableStartMs : 0),
      bytesMs: denseMs + tablesMs,
    };
  }

  messages(first: number, end: number): RoutedMessage[] {
    const dense = this.#dense.slice(first, end).flat();
    return [
      ...(dense.length > 0 ? [messageOf(dense, 'server dense', this.#denseCost)] : []),
      ...this.#tables.slice(first, end).flatMap((own) => own.map(({ message }) => message)),
    ];
  }
}

interface TimedTable {
  readonly message: RoutedMessage;
  readonly startMs: number;
}

function bytesOf(parameters: readonly PlannedParameter[]): number {
  return parameters.reduce((sum, one) => sum + bytesByRoute(one, 'server dense'), 0);
}

/**
 * Dense gradients by collectives, which lie in memory in the order of the backward pass: neighbours are one message, and a
 * parameter on servers between them makes two of it. Sums over all before each, so that any group takes O(1).
 */
class DenseRuns {
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

  constructor(layers: readonly PlannedLayer[], routes: Routes, costOf: CostOf) {
    const own: PlannedParameter[] = [];
    const [before, runOf, starts]: [number[], number[], number[]] = [[0], [], []];
    let isCut = true;
    for (const { parameters } of layers) {
      for (const parameter of parameters) {
        if (parameter.kind === 'sparse') continue;
        if (routes.get(parameter.name) === 'server dense') {
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
    this.#own = own;
    this.#cost = own[0] ? costOf(own[0], 'collective') : () => 0;
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
