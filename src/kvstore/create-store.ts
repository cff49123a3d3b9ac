/**
 * A store by its type, in a cluster of workers: the six modes of MXNET-MPI (section 5) and the one without servers. What sets
 * them apart is how many servers and clients there are, and when pushes take effect. Servers can be processes of their
 * own, given by address, or live in the workers' processes; with racks, in those of their leaders. Invariant: all workers get
 * the same plan from the same options; the servers that this starts end with the store.
 */
import { UsageError } from '../base/index.ts';
import type { SharedSpace } from '../memory/index.ts';
import type { Consistency, ServiceAccess } from '../server/index.ts';
import { createClientStore } from './client-store.ts';
import { createCollectiveStore } from './collective-store.ts';
import { HostedStore, hostServers, tlsOf } from './hosted-store.ts';
import type { Hosting } from './hosted-store.ts';
import type { KVStore } from './kv-store.ts';
import { createInRacks } from './rack-cluster.ts';
import type { RackClusterOptions } from './rack-cluster.ts';
import { rackLayout } from './rack-plan.ts';
import { RemoteStore } from './remote/remote-store.ts';

/** dist: every worker faces the servers; mpi: workers form clients that do. sgd, asgd, esgd: together, at once, elastic. */
export const STORE_TYPES = [
  ...(['dist-sgd', 'dist-asgd', 'dist-esgd'] as const),
  ...(['mpi-sgd', 'mpi-asgd', 'mpi-esgd'] as const),
  'collective',
] as const;
export type StoreType = (typeof STORE_TYPES)[number];

export interface CreateStoreOptions extends RackClusterOptions {
  /**
   * A number: so many servers, in the processes of the first workers (CC: 1, CS: as many as workers). Addresses: servers of
   * their own (NCC: one, NCS: several), with `access`. Default 1. Of no meaning for 'collective'.
   */
  readonly servers?: number | readonly string[] | undefined;
  /** The service on servers of their own, as `createService` returned it. */
  readonly access?: ServiceAccess | undefined;
  /** Groups of workers that reduce among themselves, for the mpi types. Default 1. */
  readonly clients?: number | undefined;
  /**
   * For mpi-sgd with servers in the workers' processes: whether workers face the servers by themselves where all are on one host
   * and share memory. The servers then add what the clients would have added, without a pass more; the store tells by
   * `isFused`. Default true.
   */
  readonly fuseClients?: boolean | undefined;
  /** For the asynchronous types: how many steps a worker may be ahead of the slowest. Default: no bound. */
  readonly staleness?: number | undefined;
  /**
   * For the elastic types: the share of the distance by which centre and worker move towards each other, above 0 and at
   * most 1. Default 0.5.
   */
  readonly alpha?: number | undefined;
  /**
   * For dist-sgd: the number of the rack of every worker, by rank, or 'hosts' if each host is one. The first worker of each rack has
   * a server. If the bandwidths say that it pays, they reduce inside racks first; else they share the keys as any
   * servers do. Default: no racks.
   */
  readonly racks?: readonly number[] | 'hosts' | undefined;
}

export async function createStore(type: StoreType, options: CreateStoreOptions): Promise<KVStore> {
  const { cluster, combine, nonFinite, chunkBytes, rows, updater } = options;
  const { world } = cluster;
  checkOptions(type, options);
  if (type === 'collective')
    return createCollectiveStore({ group: world, combine, nonFinite, chunkBytes, rows, updater });
  if (options.racks) return createInRacks(options, rackLayout(world, options.racks));
  const { servers = 1, access } = options;
  const hosting: Hosting =
    typeof servers === 'number'
      ? await hostServers(options, [...Array(servers).keys()])
      : { cluster, addresses: servers, access: access!, server: undefined, tls: tlsOf(options) };
  try {
    const isFused = fuses(type, options);
    const hasClients = type.startsWith('mpi') && !isFused;
    const clients = hasClients ? (options.clients ?? 1) : world.size;
    const client = clientOf(world.rank, world.size, clients);
    const connect = (space?: SharedSpace) =>
      RemoteStore.connect({
        space,
        ...{ servers: hosting.addresses, access: hosting.access, worker: client.number, workers: clients },
        ...{ tls: hosting.tls, reconnectTimeoutMs: options.reconnectTimeoutMs },
        ...{ consistency: consistencyOf(type, options), combine, chunkBytes, rows, updater },
        ...{
          sharedMemory: options.sharedMemory,
          nonFinite: hasClients ? behindClient(nonFinite) : nonFinite,
        },
      });
    if (!hasClients) return new HostedStore(await connect(), hosting, isFused);
    const group = await cluster.group(client.ranks);
    // In the space of the client, so that its sums are where servers on this host read them.
    const behind = group.rank === 0 ? await connect(group.space) : undefined;
    const store = createClientStore({
      ...{ group, worker: world.rank, workers: world.size, combine, nonFinite },
      ...{ store: behind, elastic: type === 'mpi-esgd' },
      allocate: behind && ((length) => behind.allocate(length)),
    });
    return new HostedStore(store, hosting);
  } catch (error) {
    await hosting.server?.close();
    throw error;
  }
}

/** Clients are runs of workers, as even as can be. */
export function clientOf(
  rank: number,
  workers: number,
  clients: number,
): { number: number; ranks: number[] } {
  const first = (client: number) => Math.floor((client * workers) / clients);
  let number = 0;
  while (rank >= first(number + 1)) number++;
  const ranks = Array.from({ length: first(number + 1) - first(number) }, (_, i) => first(number) + i);
  return { number, ranks };
}

/**
 * The same on all workers. Only where all servers are ours: those of others may have been told how many clients there are. Not
 * with TLS, where memory is not shared, nor where pushes take effect one by one or weights are pushed: there a client is one.
 */
function fuses(type: StoreType, options: CreateStoreOptions): boolean {
  const { cluster, servers = 1, sharedMemory = true, fuseClients = true } = options;
  return (
    type === 'mpi-sgd' &&
    fuseClients &&
    sharedMemory &&
    typeof servers === 'number' &&
    tlsOf(options) === undefined &&
    new Set(cluster.world.hosts).size === 1
  );
}

/** Clients look at gradients before they meet. Only a step without any that can be used is left to the servers to skip. */
function behindClient(nonFinite: CreateStoreOptions['nonFinite']): CreateStoreOptions['nonFinite'] {
  return nonFinite === 'skip' ? 'skip' : 'accept';
}

function consistencyOf(type: StoreType, { staleness, alpha = 0.5 }: CreateStoreOptions): Consistency {
  if (type.endsWith('esgd')) return { kind: 'elastic', alpha };
  if (!type.endsWith('asgd')) return { kind: 'synchronous' };
  return staleness === undefined ? { kind: 'asynchronous' } : { kind: 'bounded', staleness };
}

function checkOptions(type: StoreType, options: CreateStoreOptions): void {
  const { cluster, servers = 1, clients = 1, access, racks } = options;
  const workers = cluster.world.size;
  const problem = !STORE_TYPES.includes(type)
    ? `there is no store of type '${type}'; give one of ${STORE_TYPES.join(', ')}`
    : typeof servers === 'number' && !isWithin(servers, workers)
      ? `${servers} servers in the processes of ${workers} workers cannot be; give 1 to ${workers}, or addresses`
      : typeof servers !== 'number' && (servers.length === 0 || access === undefined)
        ? 'servers of their own need addresses and access; give both'
        : !isWithin(clients, workers)
          ? `${clients} clients of ${workers} workers cannot be; give 1 to ${workers}`
          : racks && (type !== 'dist-sgd' || options.servers !== undefined)
            ? `racks are for 'dist-sgd', with a server in the process of the first worker of each rack; this is '${type}' with ${options.servers === undefined ? 'no' : 'the'} option servers; leave out one or the other`
            : undefined;
  if (problem !== undefined)
    throw new UsageError('INVALID_ARGUMENT', problem, { type, servers, clients, workers });
}

function isWithin(value: number, most: number): boolean {
  return Number.isInteger(value) && value >= 1 && value <= most;
}
