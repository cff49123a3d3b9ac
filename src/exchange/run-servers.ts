/**
 * The parameter servers of a run: one in the process of the first worker of every host, and this worker's store on all of them, in a
 * thread of its own. Its updates are held, so that gradients can be clipped together. Who puts what there is not decided here.
 * Invariant: the servers of a run end when all its workers have closed their store, or have not within a time limit.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { RemoteStoreOptions } from '../kvstore/index.ts';
import { accessBySecret } from '../server/index.ts';
import type { ServiceAccess } from '../server/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import { tellAllTexts } from './agreement.ts';
import { startServerThread } from './server-thread.ts';
import { StoreThread } from './store-thread.ts';
import type { ThreadStore } from './thread-store.ts';

export interface RunServersOptions {
  readonly thread: CommunicationThread;
  /** What the workers know and strangers do not; the nonce of the servers is made of it. */
  readonly secret: string;
  readonly optimizer: OptimizerSpec;
  /** What becomes of rows without a gradient. */
  readonly rows: 'exact' | 'lazy';
  /** Whether servers on this host use this process's memory in place. Default true. */
  readonly sharedMemory?: boolean | undefined;
  /** The address at which a server in this process is reached. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** Encrypts what goes between workers and servers. Default: none. */
  readonly tls?: RemoteStoreOptions['tls'];
}

export interface RunServers {
  readonly store: ThreadStore;
  /** How many there are. */
  readonly servers: number;
  /** A store beside that of the run, with parameters of its own; once, before training. All workers call it together. */
  readonly openTrial: () => Promise<TrialStore>;
  /** Closes the store, waits until all workers have, and ends the server that is here. */
  readonly close: () => Promise<void>;
  /** Ends them without waiting for anybody, as after an error. */
  readonly abort: () => Promise<void>;
}

export interface TrialStore {
  readonly store: ThreadStore;
  /** The servers forget what was there. All workers call it together. */
  readonly close: () => Promise<void>;
}

const CLOSE_MS = 10_000;
/** How often there were servers among these workers: each time under a name of their own. */
const started = new WeakMap<CommunicationThread, number>();

/** All workers call it together. */
export async function startRunServers(options: RunServersOptions): Promise<RunServers> {
  const { thread, secret, optimizer, rows, address, sharedMemory, tls } = options;
  const { rank, size, hosts } = thread.world;
  const isFirst = hosts.indexOf(hosts[rank]!) === rank;
  const number = (started.get(thread) ?? 0) + 1;
  started.set(thread, number);
  const [access, trial] = ['', '-trial'].map((ending) =>
    accessBySecret(secret, 'a run', `run-${number}${ending}`),
  ) as [ServiceAccess, ServiceAccess];
  const server = isFirst ? await startServerThread({ address, tls, services: [access, trial] }) : undefined;
  const lane = new StoreThread(thread.space);
  let store: ThreadStore | undefined;
  const abort = async (): Promise<void> => {
    await Promise.allSettled([store?.close()]);
    await lane.close();
    await server?.close();
  };
  try {
    const addresses = tellAllTexts(thread, server?.address ?? '', 'addresses of servers').filter(
      (text) => text !== '',
    );
    const connect = async (as: typeof access): Promise<ThreadStore> => {
      const opened = await lane.connect({
        ...{ servers: addresses, access: as, worker: rank, workers: size },
        ...{ held: true, combine: 'mean', rows, nonFinite: 'accept', sharedMemory, tls },
      });
      try {
        await opened.setOptimizer(optimizer);
      } catch (error) {
        await opened.close();
        throw error;
      }
      return opened;
    };
    store = await connect(access);
    return {
      ...{ store, servers: addresses.length, abort },
      openTrial: async () => {
        const tried = await connect(trial);
        return {
          store: tried,
          close: async () => {
            await tried.close();
            await thread.barrier({ name: 'all have closed their store for measuring' });
            server?.endService(trial.namespace);
          },
        };
      },
      close: async () => {
        await store!.close();
        await lane.close();
        // Others may still be on their way out; one that died keeps nobody.
        await thread.barrier({ name: 'all have closed their store', deadlineMs: CLOSE_MS }).then(
          () => undefined,
          () => undefined,
        );
        await server?.close();
      },
    };
  } catch (error) {
    await abort();
    throw error;
  }
}
