/**
 * How parameters may travel, what a message of each costs alone, and what a strategy takes by that (after Parallax, section
 * 5.3.1, which sends dense parameters by collectives and sparse ones by servers without asking what they cost). It groups
 * nothing and measures nothing, and knows nothing of what overlaps in a step: `route-search.ts` starts from these choices
 * and compares whole steps. Terms: a route is a way to bring gradients together; `rows` means that only touched rows
 * travel, with their indices. Invariants: by a strategy dense parameters all take one route, since they share messages,
 * and apart each would pay the start of its own; a choice lists what every other route would have cost.
 */
import { refuse, requireCount } from './argument-checks.ts';
import { ELEMENT_BYTES } from './chunks.ts';
import { costFunction, type ExchangeCost } from './exchange-costs.ts';
import {
  linkBytes,
  requireShare,
  type ExchangeMethod,
  type Machines,
  type ParameterKind,
} from './transfer-amounts.ts';

/** Allreduce of the whole; allgather of rows; push and pull of the whole; push and pull of rows. */
export type Route = 'collective' | 'collective rows' | 'server dense' | 'server rows';

/**
 * Which routes may be taken: those of the quickest step, those of one kind, or what Parallax takes without asking what it costs:
 * dense parameters by collectives, tables by servers.
 */
export type Strategy = 'hybrid' | 'collectives' | 'servers' | 'parallax';

export interface PlannedParameter {
  readonly name: string;
  /** Elements of 4 bytes. */
  readonly elements: number;
  /** Sparse: its gradient has rows for what was looked up only. */
  readonly kind: ParameterKind;
  /** Elements of a row; needed if sparse. */
  readonly rowLength?: number;
  /**
   * Mean share of the rows that one worker touches in a step; needed if sparse. Lookups in a batch divided by rows is a bound
   * from above until it has been measured.
   */
  readonly sparsity?: number;
  /** Whether rows without a gradient must be left alone, as lazy updates do; a whole gradient would not. Default false. */
  readonly byRowsOnly?: boolean;
  /** Why it may not live on servers, as the end of a sentence; one dense parameter keeps all. Default: it may. */
  readonly keptHere?: string;
  /**
   * Whether a table is on servers and nowhere else: its rows have no other route, whatever the
   * strategy. Default false.
   */
  readonly isOnServers?: boolean;
  /** Share of the rows that all workers together touch in a step. Default: as if each chose its rows independently. */
  readonly unionShare?: number;
}

/** Who takes part. */
export interface ClusterShape extends Machines {
  readonly workers: number;
}

/** Measured on this cluster, with local aggregation as it will be used. A route without a cost is not taken. */
export interface ExchangeCosts {
  /** An allreduce, by the bytes of the vector. */
  readonly collective: ExchangeCost;
  /** An allgather of rows and their sum, by the bytes that one worker contributes. Default: not available. */
  readonly gather?: ExchangeCost;
  /** A push and pull of all workers, by the bytes of the parameter. Default: not available. */
  readonly serverDense?: ExchangeCost;
  /** A push and pull of rows, by the bytes of the rows and indices that one worker pushes. Default: not available. */
  readonly serverRows?: ExchangeCost;
  /**
   * Share of an exchange with servers that is the push. The rest, update and pull, waits until all gradients are combined.
   * Default 0.5.
   */
  readonly serverPushShare?: number;
  /** What the link of each machine carries in each direction. Default: unknown, and only what was measured counts. */
  readonly linkBytesPerSecond?: number;
}

export interface RouteOptions {
  /** Default 'hybrid'. */
  readonly strategy?: Strategy;
  /** Whether the workers of a machine add up among themselves first. Default true. */
  readonly localAggregation?: boolean;
}

export interface RouteChoice {
  readonly name: string;
  readonly route: Route;
  /** Bytes that one worker hands over in a step. */
  readonly bytes: number;
  /** Milliseconds of a message with nothing else in it. */
  readonly predictedMs: number;
  /** The same for every route that it could take. */
  readonly alternatives: Readonly<Partial<Record<Route, number>>>;
  /** One sentence for people. */
  readonly reason: string;
}

/** Bytes of a row's index. */
const INDEX_BYTES = 4;

/** The bytes that one worker hands over. */
export function bytesByRoute(parameter: PlannedParameter, route: Route): number {
  const { elements, rowLength = 1, sparsity = 1 } = parameter;
  if (route === 'collective' || route === 'server dense') return elements * ELEMENT_BYTES;
  return (elements / rowLength) * sparsity * (rowLength * ELEMENT_BYTES + INDEX_BYTES);
}

/** What a message takes on a route, by the bytes that one worker hands over: as measured, unless the link is slower. */
export type RouteCost = (bytes: number) => number;

/** The routes there are costs for. For `parameter`, whose union decides what passes a link; dense ones need none. */
export function routeCosts(
  cluster: ClusterShape,
  costs: ExchangeCosts,
  options: RouteOptions = {},
  parameter?: PlannedParameter,
): ReadonlyMap<Route, RouteCost> {
  const measured: [Route, ExchangeMethod, ParameterKind, ExchangeCost | undefined][] = [
    ['collective', 'collectives', 'dense', costs.collective],
    ['collective rows', 'collectives', 'sparse', costs.gather],
    ['server dense', 'servers', 'dense', costs.serverDense],
    ['server rows', 'servers', 'sparse', costs.serverRows],
  ];
  const byRoute = new Map<Route, RouteCost>();
  for (const [route, method, kind, cost] of measured) {
    if (cost === undefined || (method === 'servers' && cluster.servers === 0)) continue;
    const asMeasured = costFunction(cost);
    const { sparsity = 1, unionShare } = parameter ?? {};
    const load = {
      bytes: 1,
      sparsity,
      ...(unionShare === undefined ? {} : { unionShare }),
      localAggregation: options.localAggregation ?? true,
    };
    const passing = linkBytes(kind, method, cluster, load);
    // Rows are counted by those that one worker hands over, of which `sparsity` is in `passing` already.
    const perByte = kind === 'sparse' && sparsity > 0 ? passing / sparsity : passing;
    const msPerByte =
      costs.linkBytesPerSecond === undefined ? 0 : (1000 * perByte) / costs.linkBytesPerSecond;
    const startMs = asMeasured(0);
    byRoute.set(
      route,
      msPerByte === 0 ? asMeasured : (bytes) => Math.max(asMeasured(bytes), startMs + msPerByte * bytes),
    );
  }
  return byRoute;
}

/** Of one parameter, milliseconds of a message with nothing else in it, by every route that it could take. */
export type RouteTimes = ReadonlyMap<Route, number>;

/** By the name of each parameter. */
export function routeTimes(
  parameters: readonly PlannedParameter[],
  cluster: ClusterShape,
  costs: ExchangeCosts,
  options: RouteOptions = {},
): ReadonlyMap<string, RouteTimes> {
  checkCluster(cluster);
  parameters.forEach(checkParameter);
  const { strategy = 'hybrid' } = options;
  const keptDense = keptOf(parameters);
  return new Map(
    parameters.map((parameter) => {
      const { kind, keptHere = kind === 'dense' ? keptDense : undefined } = parameter;
      const routes = parameter.isOnServers
        ? (['server rows'] as const)
        : allowed(kind, strategy, keptHere).filter((one) => !parameter.byRowsOnly || one.endsWith('rows'));
      const byRoute = routeCosts(cluster, costs, options, parameter);
      return [parameter.name, timesOf(byRoute, routes, (route) => bytesByRoute(parameter, route))];
    }),
  );
}

/** A choice for each parameter by what its messages cost alone, in the order given. */
export function chooseRoutes(
  parameters: readonly PlannedParameter[],
  cluster: ClusterShape,
  costs: ExchangeCosts,
  options: RouteOptions = {},
): readonly RouteChoice[] {
  const times = routeTimes(parameters, cluster, costs, options);
  const { strategy = 'hybrid' } = options;
  const dense = parameters.filter(({ kind }) => kind === 'dense');
  const denseBytes = dense.reduce((sum, { elements }) => sum + elements * ELEMENT_BYTES, 0);
  const denseRoutes = allowed('dense', strategy, keptOf(parameters));
  const together = timesOf(routeCosts(cluster, costs, options), denseRoutes, () => denseBytes);
  const denseRoute = cheapest(together, strategy);
  return Object.freeze(
    parameters.map((parameter): RouteChoice => {
      const { name, kind } = parameter;
      const own = times.get(name)!;
      const route = kind === 'dense' ? denseRoute : cheapest(own, strategy);
      const reason =
        kind === 'dense'
          ? `${counted(dense.length)}: ${listed(together)}`
          : `${rounded(parameter.sparsity!)} of the rows are touched in a step: ${listed(own)}`;
      return choiceOf(parameter, route, own, withKept(parameter, parameters, reason));
    }),
  );
}

export function choiceOf(
  parameter: PlannedParameter,
  route: Route,
  times: RouteTimes,
  reason: string,
): RouteChoice {
  return Object.freeze({
    ...{ name: parameter.name, route, bytes: bytesByRoute(parameter, route) },
    predictedMs: times.get(route)!,
    alternatives: Object.freeze(Object.fromEntries(times)),
    reason,
  });
}

/** The reason, and why servers are none of the routes, if there is one. */
export function withKept(
  { kind, keptHere }: PlannedParameter,
  all: readonly PlannedParameter[],
  reason: string,
): string {
  const kept = keptHere ?? (kind === 'dense' ? keptOf(all) : undefined);
  return kept === undefined ? reason : `${reason}; not by servers: ${kept}`;
}

/** Why no dense parameter may live on servers: one keeps all. */
function keptOf(parameters: readonly PlannedParameter[]): string | undefined {
  return parameters.find(({ kind, keptHere }) => kind === 'dense' && keptHere !== undefined)?.keptHere;
}

function allowed(kind: ParameterKind, strategy: Strategy, keptHere?: string): readonly Route[] {
  if (keptHere !== undefined && strategy !== 'collectives') return allowed(kind, 'collectives');
  switch (strategy) {
    case 'hybrid':
      return kind === 'dense'
        ? ['collective', 'server dense']
        : ['collective', 'collective rows', 'server rows'];
    case 'collectives':
      return kind === 'dense' ? ['collective'] : ['collective', 'collective rows'];
    case 'servers':
      return kind === 'dense' ? ['server dense'] : ['server rows'];
    case 'parallax':
      return kind === 'dense' ? ['collective'] : ['server rows'];
    default:
      return refuse('strategy', strategy, "'hybrid', 'collectives', 'servers' or 'parallax'");
  }
}

function timesOf(
  costs: ReadonlyMap<Route, RouteCost>,
  routes: readonly Route[],
  bytesOf: (route: Route) => number,
): Map<Route, number> {
  const available = routes.filter((route) => costs.has(route));
  return new Map(available.map((route) => [route, costs.get(route)!(bytesOf(route))]));
}

function cheapest(times: RouteTimes, strategy: Strategy): Route {
  const [first, ...others] = times;
  if (first === undefined)
    refuse('strategy', strategy, 'one that there are servers and measured costs for, such as collectives');
  return others.reduce((best, one) => (one[1] < best[1] ? one : best), first)[0];
}

export const routeTitles: Readonly<Record<Route, string>> = {
  collective: 'dense by collective',
  'collective rows': 'rows by collective',
  'server dense': 'dense by server',
  'server rows': 'rows by server',
};

/** The cheapest first. */
function listed(times: RouteTimes): string {
  const ascending = [...times].sort((x, y) => x[1] - y[1]);
  return ascending.map(([route, ms]) => `${routeTitles[route]} ${rounded(ms)} ms`).join(', ');
}

export function counted(dense: number): string {
  return dense === 1 ? 'the only dense parameter' : `all ${dense} dense parameters together`;
}

export function rounded(value: number): string {
  return String(Number(value.toPrecision(2)));
}

function checkCluster({ workers, servers, machines, workersPerMachine }: ClusterShape): void {
  requireCount('workers', workers);
  requireCount('machines', machines);
  requireCount('workersPerMachine', workersPerMachine);
  if (!Number.isSafeInteger(servers) || servers < 0) refuse('servers', servers, 'an integer, 0 or more');
  if (workers > machines * workersPerMachine)
    refuse('workers', workers, `at most ${machines * workersPerMachine}, those of all machines`);
}

function checkParameter({ name, elements, kind, rowLength, sparsity, unionShare }: PlannedParameter): void {
  if (!Number.isSafeInteger(elements) || elements < 0)
    refuse(`elements of ${name}`, elements, 'a count of elements, 0 or more');
  if (kind === 'dense') return;
  if (
    rowLength === undefined ||
    !Number.isSafeInteger(rowLength) ||
    rowLength < 1 ||
    elements % rowLength !== 0
  )
    refuse(`rowLength of ${name}`, rowLength, `a divisor of its ${elements} elements`);
  requireShare(`sparsity of ${name}`, sparsity ?? NaN);
  if (unionShare !== undefined && !(unionShare >= sparsity! && unionShare <= 1))
    refuse(`unionShare of ${name}`, unionShare, `a share from ${sparsity}, that of one worker, to 1`);
}
