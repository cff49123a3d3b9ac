/**
 * Parameter servers in the processes of some workers of a cluster, and stores on them. Who connects to which is decided by
 * whoever makes the store. Invariant: a server ends when all workers have closed their store, or have not within a time limit.
 */
import { allGather, barrier } from '../collectives/index.ts';
import type { Cluster } from '../cluster/index.ts';
import type { OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import { accessBySecret, ParameterServer } from '../server/index.ts';
import type { ServiceAccess } from '../server/index.ts';
import type { TlsOptions } from '../sockets/index.ts';
import type { KVStore } from './kv-store.ts';

export interface HostingOptions {
  /** The workers. Every one of them creates the store. */
  readonly cluster: Cluster;
  /** What the workers know and strangers do not, as for `joinCluster`; the nonce of the servers is made of it. */
  readonly secret: string;
  /** Threads of each server that this starts. Default 1. */
  readonly coresPerServer?: number | undefined;
  /** The address at which servers in this process listen. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** Encrypts what goes between workers and servers. Default: as the cluster was joined, with TLS or without. */
  readonly tls?: TlsOptions | undefined;
}

export interface Hosting {
  readonly cluster: Cluster;
  readonly addresses: readonly string[];
  readonly access: ServiceAccess;
  /** The server in this process. */
  readonly server: ParameterServer | undefined;
  readonly tls: TlsOptions | undefined;
}

/** What was asked to be encrypted between workers is never in plain text between them and servers. */
export function tlsOf({ tls, cluster }: HostingOptions): TlsOptions | undefined {
  return tls ?? cluster.tls;
}

/** Longest address that is sent to the others, in characters. */
const ADDRESS_LENGTH = 128;

/** Servers in the processes of the given ranks, with the service of the job and further ones for each, by its place in the list. */
export async function hostServers(
  options: HostingOptions,
  hosts: readonly number[],
  namespacesOf: (server: number) => readonly string[] = () => [],
): Promise<Hosting> {
  const { cluster, coresPerServer, address } = options;
  const { world } = cluster;
  const access = inNamespace(options, 'job');
  const own = hosts.indexOf(world.rank);
  const tls = tlsOf(options);
  const server = own >= 0 ? await ParameterServer.start({ cores: coresPerServer, address, tls }) : undefined;
  // All of one job: whatever the space has is theirs.
  const maxBytes = server?.capacityBytes;
  server?.createService({ ...access, maxBytes });
  for (const one of namespacesOf(own)) server?.createService({ ...inNamespace(options, one), maxBytes });
  try {
    const told = cluster.allocate('int32', ADDRESS_LENGTH);
    const all = cluster.allocate('int32', ADDRESS_LENGTH * world.size);
    if (server)
      told.view.set([...`${server.address}:${server.port}`].map((letter) => letter.codePointAt(0)!));
    await allGather(world, told, all, { name: 'addresses of servers' });
    const addresses = hosts.map((rank) => {
      const codes = all.view.subarray(rank * ADDRESS_LENGTH, (rank + 1) * ADDRESS_LENGTH);
      return String.fromCodePoint(...codes.filter((code) => code !== 0));
    });
    return { cluster, addresses, access, server, tls };
  } catch (error) {
    await server?.close();
    throw error;
  }
}

/** A store whose servers end when all workers have closed it. */
export class HostedStore implements KVStore {
  readonly isFused: boolean;
  readonly #store: KVStore;
  readonly #hosting: Hosting;
  #closed = false;

  constructor(store: KVStore, hosting: Hosting, isFused = false) {
    this.isFused = isFused;
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
  pushpullRows: KVStore['pushpullRows'] = (...args) => this.#store.pushpullRows(...args);
  setLearningRate: KVStore['setLearningRate'] = (lr) => this.#store.setLearningRate(lr);
  barrier: KVStore['barrier'] = () => this.#store.barrier();

  setOptimizer(spec: OptimizerSpec | OwnRuleSpec): Promise<void> {
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

/** A service of servers in the workers' processes: those who know the secret come to the same nonce. */
export function inNamespace({ secret, cluster }: HostingOptions, namespace: string): ServiceAccess {
  return accessBySecret(secret, cluster.world.key, namespace);
}
