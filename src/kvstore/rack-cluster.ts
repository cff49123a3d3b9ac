/**
 * The store of a cluster whose workers are in racks: a server in the process of each rack's first worker, and racks only if the
 * plan says that they pay. Otherwise the same servers share the keys, and every worker talks to all of them. Invariant:
 * all workers make the same choice, and receive the reason.
 */
import type { ReductionChoice } from '../plan/index.ts';
import type { Combine, RowsMode, Updater } from '../server/index.ts';
import { createCollectiveStore } from './collective-store.ts';
import { HostedStore, hostServers, inNamespace } from './hosted-store.ts';
import type { HostingOptions } from './hosted-store.ts';
import type { KVStore } from './kv-store.ts';
import { planRacks } from './rack-plan.ts';
import type { BetweenRacks, RackBandwidths, RackLayout } from './rack-plan.ts';
import { createRackStore } from './rack-store.ts';
import { RemoteStore } from './remote/remote-store.ts';

export interface RackClusterOptions extends HostingOptions {
  /** Whether gradients are added or averaged by their samples. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /** What becomes of a gradient that is not finite. Default 'refuse'. */
  readonly nonFinite?: 'refuse' | 'skip' | 'accept' | undefined;
  /** Whether rows of tables without a gradient are left alone or get what dense updates would give them. Default 'lazy'. */
  readonly rows?: RowsMode | undefined;
  /** What becomes of pushes before `setOptimizer`: the value is the combined push, or the sum of all. Default 'assign'. */
  readonly updater?: Updater | undefined;
  /** Longest piece that is updated at once, in bytes, a multiple of 64. Default 32 KB. */
  readonly chunkBytes?: number | undefined;
  /** Whether servers on this host may use this process's memory in place. Default true. */
  readonly sharedMemory?: boolean | undefined;
  /** How long an unreachable server is tried again before calls fail, in milliseconds. Default 30,000. */
  readonly reconnectTimeoutMs?: number | undefined;
  /** How racks reduce among each other: the leaders by collectives, or by shares of the keys on all racks' servers. Default 'ring'. */
  readonly betweenRacks?: BetweenRacks | undefined;
  /** What the network can do, the same on all workers. Default: measured, which takes some transfers of 4 MB. */
  readonly bandwidths?: RackBandwidths | undefined;
  /** Told whether racks are used, and why, before the store is made. */
  readonly onPlan?: ((choice: ReductionChoice) => void) | undefined;
}

export async function createInRacks(options: RackClusterOptions, layout: RackLayout): Promise<KVStore> {
  const { cluster, betweenRacks = 'ring', combine, chunkBytes, rows, updater, sharedMemory } = options;
  const { world } = cluster;
  const { ranks, own } = layout;
  const leaders = ranks.map(([first]) => first!);
  const plan = await planRacks(cluster, layout, betweenRacks, options.bandwidths);
  options.onPlan?.(plan);
  const hosting = await hostServers(options, leaders, (rack) => [rackService(rack)]);
  const { addresses: servers, access, tls } = hosting;
  const { reconnectTimeoutMs } = options;
  const opened: KVStore[] = [];
  try {
    if (plan.choice === 'flat') {
      const of = {
        worker: world.rank,
        workers: world.size,
        combine,
        chunkBytes,
        rows,
        updater,
        sharedMemory,
      };
      const how = { nonFinite: options.nonFinite, tls, reconnectTimeoutMs };
      return new HostedStore(await RemoteStore.connect({ ...of, ...how, servers, access }), hosting);
    }
    // The store in racks looks at gradients itself; those below leave out a step of which nothing can be used.
    const nonFinite = options.nonFinite === 'skip' ? 'skip' : 'accept';
    const common = { combine, chunkBytes, nonFinite } as const;
    const isLeader = leaders[own] === world.rank;
    const rackWorker = ranks[own]!.indexOf(world.rank);
    const rack = await RemoteStore.connect({
      ...{ ...common, tls, reconnectTimeoutMs },
      ...{ servers: [servers[own]!], access: inNamespace(options, rackService(own)) },
      ...{ worker: rackWorker, workers: ranks[own]!.length, sharedMemory: isLeader || sharedMemory },
      updater: 'accumulate',
    });
    opened.push(rack);
    const between = !isLeader
      ? undefined
      : betweenRacks === 'ring'
        ? createCollectiveStore({ ...common, rows, updater, group: await cluster.group(leaders) })
        : await RemoteStore.connect({
            ...{ ...common, tls, reconnectTimeoutMs, rows, updater, servers, access },
            ...{ worker: own, workers: ranks.length },
          });
    if (between) opened.push(between);
    const store = await createRackStore({
      ...{ rack, between, worker: world.rank, workers: world.size, nonFinite: options.nonFinite },
    });
    return new HostedStore(store, hosting);
  } catch (error) {
    await Promise.all(opened.map((store) => store.close()));
    await hosting.server?.close();
    throw error;
  }
}

function rackService(rack: number): string {
  return `rack-${rack}`;
}
