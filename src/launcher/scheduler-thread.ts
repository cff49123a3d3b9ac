/**
 * A scheduler in a thread of its own, for a process whose main thread computes. Only its start and its end pass through here.
 * Invariant: the thread keeps no process alive that has nothing else to do.
 */
import { once } from 'node:events';
import { startThread, unpack } from '../base/index.ts';
import type { pack } from '../base/index.ts';
import type { SchedulerOptions } from '../cluster/index.ts';

export type PlainSchedulerOptions = Omit<SchedulerOptions, 'log'>;
export type SchedulerNews =
  | { readonly kind: 'listening'; readonly address: string }
  | { readonly kind: 'failed'; readonly error: ReturnType<typeof pack> };

export interface SchedulerThread {
  /** 'host:port' */
  readonly address: string;
  close(): Promise<void>;
}

export async function startSchedulerThread(options: PlainSchedulerOptions): Promise<SchedulerThread> {
  const worker = startThread(new URL('./scheduler-thread-main', import.meta.url), options);
  const [news] = (await once(worker, 'message')) as [SchedulerNews];
  if (news.kind === 'failed') throw unpack(news.error);
  worker.unref();
  return { address: news.address, close: async () => void (await worker.terminate()) };
}
