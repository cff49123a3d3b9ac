/**
 * A parameter server in a thread of its own. Its main thread gives out memory, so it must not be that of a worker, which blocks while
 * it computes and while collectives are under way. Only start and end pass through here.
 */
import { once } from 'node:events';
import { startThread, unpack } from '../base/index.ts';
import type { pack } from '../base/index.ts';
import type { ServiceAccess } from '../server/index.ts';

export interface ServerThreadOptions {
  /** Where it listens. Default 127.0.0.1. */
  readonly address?: string | undefined;
  /** Of its only service. */
  readonly access: ServiceAccess;
}

export type ServerNews =
  | { readonly kind: 'listening'; readonly address: string }
  | { readonly kind: 'failed'; readonly error: ReturnType<typeof pack> }
  | { readonly kind: 'closed' };

export interface ServerThread {
  /** 'host:port' */
  readonly address: string;
  close(): Promise<void>;
}

export async function startServerThread(options: ServerThreadOptions): Promise<ServerThread> {
  const worker = startThread(new URL('./server-thread-main', import.meta.url), options);
  const [news] = (await once(worker, 'message')) as [ServerNews];
  if (news.kind === 'failed') throw unpack(news.error);
  worker.unref();
  return {
    address: news.kind === 'listening' ? news.address : '',
    close: async () => {
      worker.ref();
      const closed = once(worker, 'message');
      worker.postMessage('close');
      await closed;
      await worker.terminate();
    },
  };
}
