/**
 * From the plan of a run to the exchange that carries it out: starts servers if they could be of use, measures what they cost, has
 * the plan made, moves parameters to servers where it says so, and cuts the backward pass. All workers call it together.
 * Invariant: parameters have the same values on all workers afterwards, wherever they live.
 */
import type { CommunicationThread } from '../communication/index.ts';
import {
  CollectiveExchange,
  measureGather,
  measureMessages,
  measureServers,
  MixedExchange,
  ServerExchange,
  startRunServers,
  type Exchange,
  type MessageCosts,
  type RunServers,
  type TableShape,
} from '../exchange/index.ts';
import type { WorkerPlace } from '../launcher/index.ts';
import type { Replica } from '../runtime/index.ts';
import type { LockStep } from './on.ts';
import { groupsOf, planRun, routesOf } from './plan-run.ts';
import { withTriedRoutes } from './route-trial.ts';
import type { RunnerConfig } from './runner.ts';
import type { PlannedExchange } from './shared-step.ts';

export interface OpenExchangeOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly config: RunnerConfig;
  readonly way: LockStep;
  readonly secret: string;
  /** The address at which other hosts reach a server in this process. Default: this host only. */
  readonly address?: string | undefined;
  /** Encrypts what goes between workers and servers. Default: none. */
  readonly tls?: WorkerPlace['tls'];
}

/** The first batch lies in the replica's inputs. */
export async function openExchange(
  options: OpenExchangeOptions,
  samples: ArrayLike<number>,
): Promise<PlannedExchange> {
  const { thread, replica, way } = options;
  const { memory, kernels } = replica;
  const table = largestTable(replica);
  const largest = Math.max(...[...memory.parameters.values()].map(({ byteLength }) => byteLength));
  const messages = await measureMessages(thread, Math.max(memory.exchanged.byteLength, table ? largest : 0));
  const gather = table && (await measureGather(thread, kernels, table));
  const servers = couldUseServers(table, way) ? await startServers(options) : undefined;
  try {
    return await planAndOpen(options, samples, { messages, gather, table, servers });
  } catch (error) {
    await servers?.abort();
    throw error;
  }
}

interface Measured {
  readonly messages: MessageCosts;
  readonly gather: MessageCosts | undefined;
  readonly table: TableShape | undefined;
  readonly servers: RunServers | undefined;
}

async function planAndOpen(
  options: OpenExchangeOptions,
  samples: ArrayLike<number>,
  { messages, gather, table, servers }: Measured,
): Promise<PlannedExchange> {
  const { thread, replica, config, way } = options;
  const { memory, kernels } = replica;
  const { localAggregation = true } = config;
  const shape = { thread, table: table ?? NO_TABLE, localAggregation };
  const costs = servers && (await measureServers({ ...shape, servers }));
  const planned = await planRun(
    {
      ...{ thread, replica, messages, gather, way, options: config },
      sparseUpdates: config.sparseUpdates ?? 'exact',
      servers: servers && { count: servers.servers, costs: costs! },
    },
    samples,
  );
  const hasExactRows = (config.sparseUpdates ?? 'exact') === 'exact';
  const trial = servers && { thread, replica, servers, localAggregation, hasExactRows };
  const run = trial ? await withTriedRoutes(trial, planned, samples) : planned;
  const [groups, routes] = [groupsOf(run.plan), routesOf(run.plan)];
  const names = new Set([...routes].flatMap(([name, route]) => (route.startsWith('server') ? [name] : [])));
  const collective = new CollectiveExchange({ thread, memory, kernels, groups, routes });
  const exchange = servers ? await withServers(options, collective, servers, names) : collective;
  replica.setGroups(groups);
  return { ...run, exchange };
}

/** Dense parameters alone go by collectives unless servers are asked for: on the same links they never cost less. */
function couldUseServers(table: TableShape | undefined, { strategy }: LockStep): boolean {
  return strategy === 'hybrid' || strategy === 'parallax' ? table !== undefined : strategy === 'servers';
}

/** The one of which a worker can have the most bytes in a step. */
function largestTable({ memory }: Replica): TableShape | undefined {
  const shapes = [...memory.gradients.values()].flatMap((place) =>
    place.kind === 'sparse'
      ? [
          {
            rowLength: place.rowLength,
            mostRows: Math.max(1, Math.min(place.positions.length, place.tableRows)),
          },
        ]
      : [],
  );
  const bytes = ({ rowLength, mostRows }: TableShape) => rowLength * mostRows;
  return shapes.sort((a, b) => bytes(b) - bytes(a))[0];
}

/** To measure servers with that only dense parameters go to. */
const NO_TABLE: TableShape = { rowLength: 64, mostRows: 64 };

function startServers({
  thread,
  config,
  way,
  secret,
  address,
  tls,
}: OpenExchangeOptions): Promise<RunServers> {
  const { optimizer, sparseUpdates: rows = 'exact' } = config;
  const { servers, serverCores: cores } = way;
  return startRunServers({ thread, secret, optimizer, rows, servers, cores, address, tls });
}

async function withServers(
  { thread, replica, config }: OpenExchangeOptions,
  collective: CollectiveExchange,
  servers: RunServers,
  names: ReadonlySet<string>,
): Promise<Exchange> {
  if (names.size === 0) {
    await servers.close();
    return collective;
  }
  const { memory, kernels } = replica;
  const { groups } = collective;
  const hasExactRows = (config.sparseUpdates ?? 'exact') === 'exact';
  const { localAggregation, boundaryBetweenWorkersAndServers } = config;
  const clips = replica.model.graph.updateOperations.some(({ kind }) => kind === 'clip_global_norm');
  const boundaryAmongServers = !clips || config.boundaryAmongServers;
  const onServers = {
    ...{ thread, servers, memory, kernels, names, groups, hasExactRows },
    ...{ steps: replica.step },
    ...{ localAggregation, boundaryAmongServers, boundaryBetweenWorkersAndServers },
  };
  return new MixedExchange([collective, await ServerExchange.open(onServers)]);
}
