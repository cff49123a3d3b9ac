/**
 * From `on` with clients to a step on servers: what cannot be is refused before anything starts,
 * then servers are started in the processes of workers or those of others found, and the first
 * worker of each client connects; the very first one does so alone, since it brings the values. All
 * workers call it together. Invariant: what goes wrong on one worker fails on all of them with the
 * same error, and nobody waits.
 */
import { UsageError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import {
  ClientServers,
  hostServers,
  type ClientKind,
  type ClientLink,
  type SomeWorkers,
} from '../exchange/index.ts';
import { gradients, type Model } from '../graph/index.ts';
import { RemoteStore } from '../kvstore/index.ts';
import type { WorkerPlace } from '../launcher/index.ts';
import type { Replica } from '../runtime/index.ts';
import type { ClientLayout } from './client-layout.ts';
import type { ConnectedClient } from './client-step.ts';
import { attemptLaterTogether } from './joint-attempt.ts';
import { foundValues, readNonce } from './nonce.ts';
import type { Clients } from './on.ts';
import type { RunnerConfig } from './runner.ts';

export interface OpenClientsOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly config: RunnerConfig;
  readonly way: Clients;
  readonly layout: ClientLayout;
  readonly place: Pick<WorkerPlace, 'secret' | 'address' | 'tls'>;
}

/** A wrong nonce or name of a service will not become right. */
const REFUSED_MS = 3000;
/** Options of plans, which clients do not have. */
const PLANNED = [
  ...(['bucketBytes', 'averageDense', 'averageSparse', 'localAggregation'] as const),
  ...(['boundaryAmongServers', 'boundaryBetweenWorkersAndServers'] as const),
];

/** What clients cannot train, before any process is started. */
export function checkClients(model: Model, config: RunnerConfig, { mode, consistency }: Clients): void {
  const planned = PLANNED.find((name) => config[name] !== undefined);
  if (planned !== undefined) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${planned} is for workers in lock step with a plan, and on asks for ${mode}; leave it out, or leave out mode, clients, addresses and consistency`,
      { option: planned, mode },
    );
  }
  if (kindOf(consistency) !== 'updates') return;
  const tables = gradients(model.loss).filter(({ kind }) => kind === 'sparse');
  for (const { name, applies } of model.graph.movingAverages) {
    const followed = tables.find(({ parameter }) => applies(parameter));
    if (!followed) continue;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the moving average ${name} follows the table ${followed.parameter.name}, whose rows change on the servers without this worker in ${mode}; train in another mode, or let the average leave out the table`,
      { average: name, parameter: followed.parameter.name, mode },
    );
  }
}

/** Everything that a client needs of its servers. */
export async function openClients(
  options: OpenClientsOptions,
  link: ClientLink,
  leaders: SomeWorkers | undefined,
): Promise<ConnectedClient> {
  const { thread, replica, way, layout, place } = options;
  const { secret, address, tls } = place;
  const hosted =
    typeof way.servers === 'number'
      ? await hostServers({
          ...{ thread, secret, address, tls, cores: way.serverCores, services: ['-clients'] },
          ranks: Array.from({ length: way.servers }, (_, rank) => rank),
        })
      : undefined;
  const { memory, kernels } = replica;
  const parts = { thread, link, memory, kernels, leaders, kind: kindOf(way.consistency) };
  let servers: ClientServers | undefined;
  const opened: RemoteStore[] = [];
  const abort = async (): Promise<void> => {
    await Promise.allSettled([servers?.abort(), ...opened.map((store) => store.close())]);
    await hosted?.abort();
  };
  try {
    for (const isFirstTurn of [true, false]) {
      await attemptLaterTogether(thread, async () => {
        if (!link.isFirst || (layout.client === 0) !== isFirstTurn) return;
        const access = hosted ? hosted.accesses[0]! : accessOf(way);
        const addresses = hosted ? hosted.addresses : (way.servers as readonly string[]);
        const store = await connect(options, addresses, access, hosted?.areHere);
        opened.push(store);
        servers = new ClientServers(parts, store);
        await begin(options, servers, store);
      });
    }
    const all = servers ?? new ClientServers(parts, undefined);
    return { servers: all, abort, close: async () => hosted?.close() };
  } catch (error) {
    await abort();
    throw error;
  }
}

function connect(
  { thread, config, way, layout, place: { tls } }: OpenClientsOptions,
  servers: readonly string[],
  access: { readonly namespace: string; readonly nonce: string },
  sharedMemory: readonly boolean[] | undefined,
): Promise<RemoteStore> {
  const { consistency } = way;
  const kind = kindOf(consistency);
  return RemoteStore.connect({
    ...{
      servers,
      access,
      sharedMemory,
      tls,
      worker: layout.client,
      workers: way.clients,
      space: thread.space,
    },
    consistency: consistency.kind === 'elastic' ? { kind: 'elastic', alpha: consistency.alpha } : consistency,
    rows: kind === 'updates' ? (config.sparseUpdates ?? 'exact') : 'lazy',
    ...{ combine: 'mean', nonFinite: 'accept', refusedTimeoutMs: REFUSED_MS },
    ...(config.log && layout.client === 0 ? { log: config.log } : {}),
  });
}

async function begin(
  { replica, config, way, layout }: OpenClientsOptions,
  servers: ClientServers,
  store: RemoteStore,
): Promise<void> {
  const isUpdated = kindOf(way.consistency) === 'updates';
  const updates = replica.step * (isUpdated ? way.clients : 1);
  const start = { optimizer: replica.optimizer.spec, updates };
  await servers.init(start);
  if (layout.client > 0 || kindOf(way.consistency) === 'sums') return;
  const replaces = config.resume === true || config.overwrite === true;
  if (store.foundValues && !replaces) {
    throw foundValues(way.access!.namespace, way.servers as readonly string[]);
  }
  if (!store.foundValues && replica.step === 0) return;
  await servers.overwrite(start);
  if (typeof way.servers === 'number') return;
  // What servers have logged so far leads to the values from before.
  await store.checkpoint(replica.step, { isDurable: true }).catch((error: { readonly code?: string }) => {
    if (error.code !== 'NO_CHECKPOINTS') throw error;
  });
}

function accessOf({ access }: Clients): { readonly namespace: string; readonly nonce: string } {
  return { namespace: access!.namespace, nonce: readNonce(access!) };
}

function kindOf({ kind }: Clients['consistency']): ClientKind {
  if (kind === 'synchronous') return 'sums';
  return kind === 'elastic' ? 'centre' : 'updates';
}
