/**
 * A parameter server in a thread of its own. Its main thread gives out memory, so it must not be that of a worker, which blocks while
 * it computes and while collectives are under way. Only start and end pass through here.
 */
import { once } from 'node:events';
import { startThread, unpack } from '../base/index.ts';
import type { pack } from '../base/index.ts';
import type { ParameterServerOptions, ServiceAccess } from '../server/index.ts';

export interface ServerThreadOptions {
  /** Where it listens. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** Threads that own parameters. Default 1. */
  readonly cores?: number | undefined;
  /** Of each of its services. */
  readonly services: readonly ServiceAccess[];
  /** Encrypts all connections. Default: none. */
  readonly tls?: ParameterServerOptions['tls'];
}

export type ServerOrder = { readonly endService: string } | 'close';

export type ServerNews =
  | { readonly kind: 'listening'; readonly address: string }
  | { readonly kind: 'failed'; readonly error: ReturnType<typeof pack> }
  | { readonly kind: 'closed' };

export interface ServerThread {
  /** 'host:port' */
  readonly address: string;
  /** Gives back what a service had, after its workers have left. */
  endService(namespace: string): void;
  close(): Promise<void>;
}

export async function startServerThread(options: ServerThreadOptions): Promise<ServerThread> {
  const worker = startThread(new URL('./server-thread-main', import.meta.url), options);
  const [news] = (await once(worker, 'message')) as [ServerNews];
  if (news.kind === 'failed') throw unpack(news.error);
  worker.unref();
  const order = (what: ServerOrder): void => worker.postMessage(what);
  // A server that dies is noticed by those who are connected to it.
  worker.on('error', () => undefined);
  const gone = once(worker, 'exit').catch(() => undefined);
  let closing: Promise<void> | undefined;
  const close = async (): Promise<void> => {
    worker.ref();
    const closed = once(worker, 'message').catch(() => undefined);
    order('close');
    await Promise.race([closed, gone]);
    await worker.terminate();
  };
  return {
    address: news.kind === 'listening' ? news.address : '',
    endService: (namespace) => order({ endService: namespace }),
    close: () => (closing ??= close()),
  };
}
