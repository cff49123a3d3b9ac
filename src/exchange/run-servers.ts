/**
 * The parameter servers of a run in lock step, in the processes of its workers or of their own, and this worker's store on all of them, in a thread
 * of its own. Its updates are held, so that gradients can be clipped together. Who puts what there
 * is not decided here. Invariant: the servers of a run end when all its workers have closed their
 * store, or have not within a time limit.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { RemoteStoreOptions } from '../kvstore/index.ts';
import type { ServiceAccess } from '../server/index.ts';
import type { OptimizerSpec } from '../kernels/index.ts';
import { hostServers } from './host-servers.ts';
import { StoreThread } from './store-thread.ts';
import type { ThreadStore } from './thread-store.ts';

export interface RunServersOptions {
  readonly thread: CommunicationThread;
  /** What the workers know and strangers do not; the nonce of the servers is made of it. */
  readonly secret: string;
  readonly optimizer: OptimizerSpec;
  /**
   * How many, in the processes of the first workers; or servers of their own. Default: one on each
   * host.
   */
  readonly servers?: number | OwnServers | undefined;
  /** Threads of each. Default 1. */
  readonly cores?: number | undefined;
  /** What becomes of rows without a gradient. */
  readonly rows: 'exact' | 'lazy';
  /** Whether servers on this host use this process's memory in place. Default true. */
  readonly sharedMemory?: boolean | undefined;
  /** The address at which a server in this process is reached. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** Encrypts what goes between workers and servers. Default: none. */
  readonly tls?: RemoteStoreOptions['tls'];
}

/** Servers with a life of their own, and the service of the run on all of them. */
export interface OwnServers {
  readonly addresses: readonly string[];
  readonly access: ServiceAccess;
}

export interface RunServers {
  readonly store: ThreadStore;
  /** How many there are. */
  readonly servers: number;
  /**
   * A store beside that of the run, with parameters of its own; twice at most, before training. All
   * workers call it together. Undefined: a service of others keeps what it is given, and nothing is
   * measured or tried there.
   */
  readonly openTrial: (() => Promise<TrialStore>) | undefined;
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

const REFUSED_MS = 3000;
/** Services for measuring what servers cost, and for trying routes. */
const TRIALS = ['-trial', '-routes'];

/** All workers call it together. */
export async function startRunServers(options: RunServersOptions): Promise<RunServers> {
  const { thread, optimizer, rows, sharedMemory = true, tls, servers, ...hosting } = options;
  const { rank, size, hosts } = thread.world;
  const ranks = hosts.flatMap((host, other) =>
    (servers === undefined ? hosts.indexOf(host) === other : other < (servers as number)) ? [other] : [],
  );
  const isHosted = typeof servers !== 'object';
  const hosted = isHosted
    ? await hostServers({ ...hosting, thread, tls, ranks, services: ['', ...TRIALS] })
    : undefined;
  const addresses = isHosted ? hosted!.addresses : servers.addresses;
  const [access, ...trials] = isHosted ? hosted!.accesses : [servers.access];
  const lane = new StoreThread(thread.space);
  let store: ThreadStore | undefined;
  const abort = async (): Promise<void> => {
    await Promise.allSettled([store?.close()]);
    await lane.close();
    await hosted?.abort();
  };
  const connect = async (as: ServiceAccess): Promise<ThreadStore> => {
    const opened = await lane.connect({
      ...{ servers: addresses, access: as, worker: rank, workers: size },
      // A wrong nonce or name of a service will not become right.
      ...(isHosted ? {} : { refusedTimeoutMs: REFUSED_MS }),
      ...{ held: true, combine: 'mean', rows, nonFinite: 'accept', tls },
      sharedMemory: hosted ? hosted.areHere.map((isHere) => sharedMemory && isHere) : sharedMemory,
    });
    try {
      await opened.setOptimizer(optimizer);
    } catch (error) {
      await opened.close();
      throw error;
    }
    return opened;
  };
  try {
    store = await connect(access!);
    return {
      ...{ store, servers: addresses.length, abort },
      openTrial:
        hosted &&
        (async () => {
          const trial = trials.shift()!;
          const tried = await connect(trial);
          return {
            store: tried,
            close: async () => {
              await tried.close();
              await thread.barrier({ name: 'all have closed their store for measuring' });
              hosted.endService(trial.namespace);
            },
          };
        }),
      close: async () => {
        await store!.close();
        await lane.close();
        await hosted?.close();
      },
    };
  } catch (error) {
    await abort();
    throw error;
  }
}
