/**
 * The store of one tenant in a worker of `bench exchange`: its own line to the servers, or a share in that of its client. With it
 * goes the memory that the first to read it, server or client, reads in place. Invariant: opened, it has all keys of the
 * run, with all weights zero.
 */
import type { Cluster } from '../../cluster/index.ts';
import { clientOf, createClientStore, RemoteStore } from '../../kvstore/index.ts';
import type { KVStore } from '../../kvstore/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { Region } from '../../memory/index.ts';
import { LEARNING_RATE, MOMENTUM } from './known-exchange.ts';
import type { ModelTensor } from './models.ts';
import type { OurRun, TenantAssignment } from './our-run.ts';

/** Where a tenant is opened. */
export interface TenantPlace {
  readonly run: OurRun;
  readonly tenant: TenantAssignment;
  readonly worker: number;
  /** Addresses. */
  readonly servers: readonly string[];
  /** The server in this process, if any. */
  readonly own: number | undefined;
  /** Of all workers, where they form clients. */
  readonly cluster: Cluster | undefined;
}

export interface TenantStore {
  readonly store: KVStore;
  allocate(length: number): Region<'float32'>;
  /** The weights where a server has them, if this worker can read them there. */
  value(key: string): Region<'float32'> | undefined;
}

const SLACK_BYTES = 64 * 2 ** 20;

export async function openStore(place: TenantPlace): Promise<TenantStore> {
  const opened = place.cluster ? await openInClient(place, place.cluster) : await openAlone(place);
  const zeros = ({ key, length, rowLength }: ModelTensor) => ({
    ...{ key, rowLength, value: new Float32Array(length) },
  });
  await opened.store.init(place.run.tensors.map(zeros));
  await opened.store.setOptimizer({ name: 'sgd', lr: LEARNING_RATE, momentum: MOMENTUM });
  return opened;
}

async function openAlone(place: TenantPlace): Promise<TenantStore> {
  const store = await connect(place, place.worker);
  return {
    store,
    allocate: (length) => store.allocate(length),
    value: (key) => store.value(key),
  };
}

async function openInClient(place: TenantPlace, cluster: Cluster): Promise<TenantStore> {
  const { run, worker } = place;
  const { number, ranks } = clientOf(worker, run.workers, run.clients);
  // One for each tenant: tenants are exchanged at the same time, and their calls must not be taken for each other's.
  const group = await cluster.group(ranks);
  const behind = group.rank === 0 ? await connect(place, number, group.space) : undefined;
  const allocateBehind = behind && ((length: number) => behind.allocate(length));
  const store = createClientStore({
    ...{ group, worker, workers: run.workers, combine: 'sum', nonFinite: 'accept' },
    ...{ store: behind, allocate: allocateBehind },
  });
  return {
    store,
    allocate: allocateBehind ?? ((length) => cluster.allocate('float32', length)),
    value: () => undefined,
  };
}

/** As the worker of this number, of as many as there are clients. `space`: default a new one. */
function connect(
  { run, tenant, servers, own }: TenantPlace,
  worker: number,
  space?: SharedSpace,
): Promise<RemoteStore> {
  const { namespace, nonce, chunkBytes, aggregation } = tenant;
  const bytes = 4 * run.tensors.reduce((sum, { length }) => sum + length, 0);
  return RemoteStore.connect({
    ...{ servers, worker, workers: run.clients, access: { namespace, nonce }, chunkBytes, aggregation },
    consistency: { kind: 'synchronous' },
    combine: 'sum',
    // The peers do not look for values that are not finite either.
    nonFinite: 'accept',
    // By TCP nothing is shared except with the server in the same process, whose memory would not travel.
    sharedMemory: run.transport === 'shm' ? true : servers.map((_, server) => server === own),
    // Gradients, weights, and the first values on their way.
    space: space ?? SharedSpace.create({ maxBytes: Math.min(2 ** 32, 3 * bytes + SLACK_BYTES) }),
  });
}
