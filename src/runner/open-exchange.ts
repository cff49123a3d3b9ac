/**
 * From the plan of a run to the exchange that carries it out: starts servers if they could be of use, measures what they cost, has
 * the plan made, moves parameters to servers where it says so, and cuts the backward pass. All workers call it together.
 * Invariant: parameters have the same values on all workers afterwards, wherever they live.
 */
import type { CommunicationThread } from '../communication/index.ts';
import {
  CollectiveExchange,
  measureMessages,
  measureServers,
  MixedExchange,
  ServerExchange,
  startRunServers,
  type Exchange,
  type RunServers,
} from '../exchange/index.ts';
import type { Replica } from '../runtime/index.ts';
import { groupsOf, planRun, routesOf } from './plan-run.ts';
import type { RunnerConfig } from './runner.ts';
import type { PlannedExchange } from './shared-step.ts';

export interface OpenExchangeOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly config: RunnerConfig;
  readonly secret: string;
  /** The address at which other hosts reach a server in this process. Default: this host only. */
  readonly address?: string | undefined;
}

/** The first batch lies in the replica's inputs. */
export async function openExchange(
  options: OpenExchangeOptions,
  samples: ArrayLike<number>,
): Promise<PlannedExchange> {
  const { thread, replica, config } = options;
  const { memory, kernels } = replica;
  const messages = measureMessages(thread, memory.exchanged.byteLength);
  const servers = couldUseServers(replica, config) ? await startServers(options) : undefined;
  const costs = servers && (await measureServers(thread, servers.store));
  const run = planRun(
    {
      ...{ thread, replica, messages, options: config, sparseUpdates: config.sparseUpdates ?? 'exact' },
      servers: servers && { count: servers.servers, costs: costs! },
    },
    samples,
  );
  const [groups, routes] = [groupsOf(run.plan), routesOf(run.plan)];
  const collective = new CollectiveExchange({ thread, memory, kernels, groups, routes });
  const names = new Set([...routes].flatMap(([name, route]) => (route.startsWith('server') ? [name] : [])));
  const exchange = servers ? await withServers(options, collective, servers, names) : collective;
  replica.setGroups(groups);
  return { ...run, exchange };
}

/** Dense parameters alone go by collectives unless servers are asked for: on the same links they never cost less. */
function couldUseServers({ memory }: Replica, { strategy = 'hybrid' }: RunnerConfig): boolean {
  if (strategy !== 'hybrid') return strategy === 'servers';
  return [...memory.gradients.values()].some(({ kind }) => kind === 'sparse');
}

function startServers({ thread, config, secret, address }: OpenExchangeOptions): Promise<RunServers> {
  const { optimizer, sparseUpdates: rows = 'exact' } = config;
  return startRunServers({ thread, secret, optimizer, rows, address });
}

async function withServers(
  { replica, config }: OpenExchangeOptions,
  collective: CollectiveExchange,
  servers: RunServers,
  names: ReadonlySet<string>,
): Promise<Exchange> {
  if (names.size === 0) {
    await servers.store.close();
    await servers.close();
    return collective;
  }
  const { memory, kernels } = replica;
  const { groups } = collective;
  const hasExactRows = (config.sparseUpdates ?? 'exact') === 'exact';
  const onServers = { servers, memory, kernels, names, groups, hasExactRows };
  return new MixedExchange([collective, await ServerExchange.open(onServers)]);
}
