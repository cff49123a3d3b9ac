/**
 * A store by its type, in a cluster of workers: the six modes of MXNET-MPI (section 5) and the one without servers. What sets
 * them apart is how many servers and clients there are, and when pushes take effect. Servers can be processes of their
 * own, given by address, or live in the workers' processes. Invariant: all workers get the same plan from the same
 * options; the servers that this starts end with the store.
 */
import { createHmac } from 'node:crypto';
import { UsageError } from '../base/index.ts';
import { allGather, barrier } from '../collectives/index.ts';
import type { Cluster } from '../cluster/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import { ParameterServer } from '../server/index.ts';
import type { Combine, Consistency, RowsMode, ServiceAccess } from '../server/index.ts';
import { createClientStore } from './client-store.ts';
import { createCollectiveStore } from './collective-store.ts';
import type { KVStore } from './kv-store.ts';
import { RemoteStore } from './remote/remote-store.ts';

/** dist: every worker faces the servers; mpi: workers form clients that do. sgd, asgd, esgd: together, at once, elastic. */
export const STORE_TYPES = [
  ...(['dist-sgd', 'dist-asgd', 'dist-esgd'] as const),
  ...(['mpi-sgd', 'mpi-asgd', 'mpi-esgd'] as const),
  'collective',
] as const;
export type StoreType = (typeof STORE_TYPES)[number];

export interface CreateStoreOptions {
  /** The workers. Every one of them creates the store. */
  readonly cluster: Cluster;
  /** What the workers know and strangers do not; the nonce of the servers is made of it. */
  readonly secret: string;
  /**
   * A number: so many servers, in the processes of the first workers (CC: 1, CS: as many as workers). Addresses: servers of
   * their own (NCC: one, NCS: several), with `access`. Default 1. Of no meaning for 'collective'.
   */
  readonly servers?: number | readonly string[] | undefined;
  /** The service on servers of their own, as `createService` returned it. */
  readonly access?: ServiceAccess | undefined;
  /** Groups of workers that reduce among themselves, for the mpi types. Default 1. */
  readonly clients?: number | undefined;
  /** Threads of each server that this starts. Default 1. */
  readonly coresPerServer?: number | undefined;
  /** The address at which servers in this process listen. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** For the asynchronous types: how many steps a worker may be ahead of the slowest. Default: no bound. */
  readonly staleness?: number | undefined;
  /** For the elastic types: the share of the distance by which centre and worker move towards each other. Default 0.5. */
  readonly alpha?: number | undefined;
  /** Whether gradients are added or averaged by their samples. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /** What becomes of a gradient that is not finite. Default 'refuse'. */
  readonly nonFinite?: 'refuse' | 'skip' | 'accept' | undefined;
  /** Whether rows of tables without a gradient are left alone or get what dense updates would give them. Default 'lazy'. */
  readonly rows?: RowsMode | undefined;
  /** Longest piece that is updated at once, in bytes, a multiple of 64. Default 32 KB. */
  readonly chunkBytes?: number | undefined;
  /** Whether servers on this host may use this process's memory in place. Default true. */
  readonly sharedMemory?: boolean | undefined;
}

export async function createStore(type: StoreType, options: CreateStoreOptions): Promise<KVStore> {
  const { cluster, combine, nonFinite, chunkBytes, rows } = options;
  const { world } = cluster;
  checkOptions(type, options);
  if (type === 'collective')
    return createCollectiveStore({ group: world, combine, nonFinite, chunkBytes, rows });
  const hosting = await hostServers(options);
  try {
    const clients = type.startsWith('mpi') ? (options.clients ?? 1) : world.size;
    const client = clientOf(world.rank, world.size, clients);
    const connect = () =>
      RemoteStore.connect({
        ...{ servers: hosting.addresses, access: hosting.access, worker: client.number, workers: clients },
        ...{ consistency: consistencyOf(type, options), combine, chunkBytes, rows },
        ...{ sharedMemory: options.sharedMemory, nonFinite: type.startsWith('mpi') ? 'accept' : nonFinite },
      });
    if (type.startsWith('dist')) return new HostedStore(await connect(), hosting);
    const group = await cluster.group(client.ranks);
    const store = createClientStore({
      ...{ group, worker: world.rank, workers: world.size, combine, nonFinite },
      ...{ store: group.rank === 0 ? await connect() : undefined, elastic: type === 'mpi-esgd' },
    });
    return new HostedStore(store, hosting);
  } catch (error) {
    await hosting.server?.close();
    throw error;
  }
}

interface Hosting {
  readonly cluster: Cluster;
  readonly addresses: readonly string[];
  readonly access: ServiceAccess;
  /** The server in this process. */
  readonly server: ParameterServer | undefined;
}

/** Longest address that is told to the others, in characters. */
const ADDRESS_LENGTH = 128;

async function hostServers(options: CreateStoreOptions): Promise<Hosting> {
  const { cluster, servers = 1, coresPerServer, address } = options;
  const { world } = cluster;
  if (typeof servers !== 'number') {
    return { cluster, addresses: servers, access: options.access!, server: undefined };
  }
  const access = { namespace: 'job', nonce: nonceOf(options.secret, world.key) };
  const isHost = world.rank < servers;
  const server = isHost ? await ParameterServer.start({ cores: coresPerServer, address }) : undefined;
  server?.createService(access);
  try {
    const own = cluster.allocate('int32', ADDRESS_LENGTH);
    const all = cluster.allocate('int32', ADDRESS_LENGTH * world.size);
    if (server) own.view.set([...`${server.address}:${server.port}`].map((letter) => letter.codePointAt(0)!));
    await allGather(world, own, all, { name: 'addresses of servers' });
    const addresses = Array.from({ length: servers }, (_, rank) => {
      const codes = all.view.subarray(rank * ADDRESS_LENGTH, (rank + 1) * ADDRESS_LENGTH);
      return String.fromCodePoint(...codes.filter((code) => code !== 0));
    });
    return { cluster, addresses, access, server };
  } catch (error) {
    await server?.close();
    throw error;
  }
}

/** A store whose servers end when all workers have closed it. */
class HostedStore implements KVStore {
  readonly #store: KVStore;
  readonly #hosting: Hosting;
  #closed = false;

  constructor(store: KVStore, hosting: Hosting) {
    this.#store = store;
    this.#hosting = hosting;
  }

  get rank(): number {
    return this.#store.rank;
  }

  get workers(): number {
    return this.#store.workers;
  }

  init: KVStore['init'] = (...args) => this.#store.init(...args);
  push: KVStore['push'] = (...args) => this.#store.push(...args);
  pull: KVStore['pull'] = (...args) => this.#store.pull(...args);
  pushpull: KVStore['pushpull'] = (...args) => this.#store.pushpull(...args);
  pushRows: KVStore['pushRows'] = (...args) => this.#store.pushRows(...args);
  pullRows: KVStore['pullRows'] = (...args) => this.#store.pullRows(...args);
  barrier: KVStore['barrier'] = () => this.#store.barrier();

  setOptimizer(spec: OptimizerSpec): Promise<void> {
    return this.#store.setOptimizer(spec);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    const { cluster, server } = this.#hosting;
    await this.#store.close();
    // Others may still be on their way out; one that died keeps nobody.
    await barrier(cluster.world, { name: 'all have closed their store', deadlineMs: CLOSE_MS }).then(
      () => undefined,
      () => undefined,
    );
    await server?.close();
  }
}

const CLOSE_MS = 10_000;

/** Clients are runs of workers, as even as can be. */
function clientOf(rank: number, workers: number, clients: number): { number: number; ranks: number[] } {
  const first = (client: number) => Math.floor((client * workers) / clients);
  let number = 0;
  while (rank >= first(number + 1)) number++;
  const ranks = Array.from({ length: first(number + 1) - first(number) }, (_, i) => first(number) + i);
  return { number, ranks };
}

function consistencyOf(type: StoreType, { staleness, alpha = 0.5 }: CreateStoreOptions): Consistency {
  if (type.endsWith('esgd')) return { kind: 'elastic', alpha };
  if (!type.endsWith('asgd')) return { kind: 'synchronous' };
  return staleness === undefined ? { kind: 'asynchronous' } : { kind: 'bounded', staleness };
}

function nonceOf(secret: string, key: string): string {
  return createHmac('sha256', secret).update(`parameter servers of ${key}`).digest('hex');
}

function checkOptions(type: StoreType, options: CreateStoreOptions): void {
  const { cluster, servers = 1, clients = 1, access } = options;
  const workers = cluster.world.size;
  const problem = !STORE_TYPES.includes(type)
    ? `there is no store of type '${type}'; give one of ${STORE_TYPES.join(', ')}`
    : typeof servers === 'number' && !isWithin(servers, workers)
      ? `${servers} servers in the processes of ${workers} workers cannot be; give 1 to ${workers}, or addresses`
      : typeof servers !== 'number' && (servers.length === 0 || access === undefined)
        ? 'servers of their own need addresses and access; give both'
        : !isWithin(clients, workers)
          ? `${clients} clients of ${workers} workers cannot be; give 1 to ${workers}`
          : undefined;
  if (problem !== undefined)
    throw new UsageError('INVALID_ARGUMENT', problem, { type, servers, clients, workers });
}

function isWithin(value: number, most: number): boolean {
  return Number.isInteger(value) && value >= 1 && value <= most;
}
