/**
 * From the plan of a run to the parts that carry it out: starts servers if they could be of use,
 * measures what they cost, has the plan made, moves parameters to servers where it says so, and cuts
 * the backward pass. All workers call it together.
 * Invariant: parameters have the same values on all workers afterwards, wherever they live.
 */
import { InternalError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import {
  assumedServerCosts,
  CollectiveExchange,
  measureGather,
  measureMessages,
  measureServers,
  ServerExchange,
  startRunServers,
  tellAllTexts,
  type FoundValues,
  type MessageCosts,
  type RunServers,
  type TableShape,
} from '../exchange/index.ts';
import type { KeyOperations } from '../kernels/index.ts';
import type { WorkerPlace } from '../launcher/index.ts';
import { operationsElsewhere, type Replica, type StepContext } from '../runtime/index.ts';
import { foundValues, readNonce } from './nonce.ts';
import type { LockStep } from './on.ts';
import { groupsOf, planRun, routesOf } from './plan-run.ts';
import { withTriedRoutes } from './route-trial.ts';
import type { RunnerConfig } from './runner.ts';
import type { OpenRun } from './run-program.ts';

/** A run with what exchanges gradients in it. */
export interface PlannedExchange extends OpenRun {
  readonly collective: CollectiveExchange;
  readonly servers?: ServerExchange | undefined;
}

export interface OpenExchangeOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly step: StepContext;
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
  const costs =
    servers &&
    (servers.openTrial
      ? await measureServers({ ...shape, openTrial: servers.openTrial })
      : assumedServerCosts(messages, gather));
  const planned = await planRun(
    {
      ...{ thread, replica, messages, gather, way, options: config },
      sparseUpdates: config.sparseUpdates ?? 'exact',
      servers: servers && { count: servers.servers, costs: costs! },
    },
    samples,
  );
  const hasExactRows = (config.sparseUpdates ?? 'exact') === 'exact';
  const openTrial = servers?.openTrial;
  const run = openTrial
    ? await withTriedRoutes({ thread, replica, openTrial, localAggregation, hasExactRows }, planned, samples)
    : planned;
  const routes = routesOf(run.plan);
  const names = new Set([...routes].flatMap(([name, route]) => (route.startsWith('server') ? [name] : [])));
  const collective = new CollectiveExchange({ thread, memory, kernels, step: options.step, routes });
  const onServers = servers && (await withServers(options, servers, names));
  const fetched = new Set(
    tellAllTexts(thread, JSON.stringify(onServers?.fetched ?? []), 'what workers fetch').flatMap(
      (text) => JSON.parse(text) as string[],
    ),
  );
  replica.setGroups(groupsOf(run.plan));
  // In the same order on all workers.
  const inOrder = [...memory.gradients.keys()].filter((name) => fetched.has(name));
  return { ...run, fetched: inOrder, collective, servers: onServers };
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
  const { serverCores: cores, access } = way;
  const servers =
    typeof way.servers === 'object'
      ? { addresses: way.servers, access: { namespace: access!.namespace, nonce: readNonce(access!) } }
      : way.servers;
  return startRunServers({ thread, secret, optimizer, rows, servers, cores, address, tls });
}

async function withServers(
  { thread, replica, step, config, way }: OpenExchangeOptions,
  servers: RunServers,
  names: ReadonlySet<string>,
): Promise<ServerExchange | undefined> {
  if (names.size === 0) {
    await servers.close();
    return undefined;
  }
  const { memory, kernels } = replica;
  const hasExactRows = (config.sparseUpdates ?? 'exact') === 'exact';
  const { localAggregation, boundaryBetweenWorkersAndServers } = config;
  const clips = replica.model.graph.updateOperations.some(({ kind }) => kind === 'clip_global_norm');
  const boundaryAmongServers = !clips || config.boundaryAmongServers;
  return ServerExchange.open({
    ...{ thread, servers, memory, kernels, names, step, hasExactRows },
    operations: new Map([...names].map((name) => [name, onServers(replica, name)])),
    ...{ steps: replica.step, firstSlots: firstSlotsOf(replica) },
    ...(typeof way.servers === 'object' ? { found: replacesFound(config, way) } : {}),
    ...{ localAggregation, boundaryAmongServers, boundaryBetweenWorkersAndServers },
  });
}

/** What becomes of the values of an earlier training on servers of others. */
function replacesFound({ resume, overwrite }: RunnerConfig, { servers, access }: LockStep): FoundValues {
  if (resume === true || overwrite === true) return 'replace';
  return foundValues(access!.namespace, servers as readonly string[]);
}

/** Of each slot of the optimizer, before the first step. */
function firstSlotsOf({ optimizer, memory, kernels }: Replica): ReadonlyMap<string, number> {
  const segment = memory.segment.space.allocate(64 * (optimizer.slots.length + 1));
  try {
    const slots = Object.fromEntries(optimizer.slots.map((slot) => [slot, segment.allocate('float32', 1)]));
    for (const slot of Object.values(slots)) kernels.fill(slot, 0);
    optimizer.initialise(slots);
    return new Map(Object.entries(slots).map(([slot, { view }]) => [slot, view[0]!]));
  } finally {
    segment.close();
  }
}

/** The plan leaves a parameter with the workers where servers cannot. */
function onServers({ model }: Replica, name: string): KeyOperations {
  const operations = operationsElsewhere(model.graph, model.graph.parameters.get(name)!);
  if (typeof operations !== 'string') return operations;
  throw new InternalError('BROKEN_INVARIANT', `${name} is on servers, but ${operations}`, {
    parameter: name,
  });
}
