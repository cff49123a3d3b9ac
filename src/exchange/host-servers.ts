/**
 * Parameter servers in the processes of some workers: started together, told to all, and ended
 * together. What is put there, and who connects, is decided by others. Invariant: they end when all
 * workers say so, or have not within a time limit; if one cannot be started, all workers fail with
 * its error.
 */
import { pack, unpack, type PackedError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import type { RemoteStoreOptions } from '../kvstore/index.ts';
import { accessBySecret } from '../server/index.ts';
import type { ServiceAccess } from '../server/index.ts';
import { tellAllTexts } from './agreement.ts';
import { startServerThread, type ServerThread } from './server-thread.ts';

export interface HostServersOptions {
  readonly thread: CommunicationThread;
  /** What the workers know and strangers do not; the nonces of the services are made of it. */
  readonly secret: string;
  /** Workers with a server in their process. */
  readonly ranks: readonly number[];
  /** Threads of each server. Default 1. */
  readonly cores?: number | undefined;
  /** Endings of the names of its services; each has one of its own. */
  readonly services: readonly string[];
  /** The address at which a server in this process is reached. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** Encrypts what goes between workers and servers. Default: none. */
  readonly tls?: RemoteStoreOptions['tls'];
}

export interface HostedServers {
  readonly addresses: readonly string[];
  /**
   * Of each, whether it is on this worker's host. Two hosts that can map each other's memory are two
   * all the same: their link would carry nothing, and plans and benchmarks reckon with it.
   */
  readonly areHere: readonly boolean[];
  /** To each of the services. */
  readonly accesses: readonly ServiceAccess[];
  /** Gives back what a service had, after all workers have left it. */
  readonly endService: (namespace: string) => void;
  /** Waits until all workers call it, and ends the server that is here. */
  readonly close: () => Promise<void>;
  /** Ends it without waiting for anybody, as after an error. */
  readonly abort: () => Promise<void>;
}

const CLOSE_MS = 10_000;
/** How often there were servers among these workers: each time under a name of their own. */
const started = new WeakMap<CommunicationThread, number>();

/** All workers call it together. */
export async function hostServers(options: HostServersOptions): Promise<HostedServers> {
  const { thread, secret, ranks, cores, services, address, tls } = options;
  const number = (started.get(thread) ?? 0) + 1;
  started.set(thread, number);
  const accesses = services.map((ending) => accessBySecret(secret, 'a run', `run-${number}${ending}`));
  let server: ServerThread | undefined;
  let failure: PackedError | undefined;
  if (ranks.includes(thread.world.rank)) {
    try {
      server = await startServerThread({ address, tls, cores, services: accesses });
    } catch (error) {
      failure = pack(error);
    }
  }
  const own = JSON.stringify({ address: server?.address, failure });
  let all: readonly { readonly address?: string; readonly failure?: PackedError }[];
  try {
    all = tellAllTexts(thread, own, 'addresses of servers').map((text) => JSON.parse(text) as never);
    const failed = all.findIndex((one) => one.failure !== undefined);
    if (failed >= 0) {
      const error = all[failed]!.failure!;
      throw unpack({ ...error, message: `worker ${failed}: ${error.message}` });
    }
  } catch (error) {
    await server?.close();
    throw error;
  }
  const { rank, hosts } = thread.world;
  const areHere = all.flatMap(({ address: one }, other) =>
    one === undefined ? [] : [hosts[other] === hosts[rank]],
  );
  return {
    ...{ addresses: all.flatMap((one) => one.address ?? []), areHere, accesses },
    endService: (namespace) => server?.endService(namespace),
    close: async () => {
      // Others may still be on their way out; one that died keeps nobody.
      await thread.barrier({ name: 'all have closed their store', deadlineMs: CLOSE_MS }).then(
        () => undefined,
        () => undefined,
      );
      await server?.close();
    },
    abort: async () => server?.close(),
  };
}
