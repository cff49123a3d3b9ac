/** The entry of a scheduler's thread. Run by `scheduler-thread.ts`, never imported. Says where it listens, or why not. */
import { parentPort, workerData } from 'node:worker_threads';
import { pack } from '../base/index.ts';
import { Scheduler } from '../cluster/index.ts';
import type { PlainSchedulerOptions, SchedulerNews } from './scheduler-thread.ts';

const tell = (news: SchedulerNews): void => parentPort!.postMessage(news);
try {
  const { address } = await Scheduler.start(workerData as PlainSchedulerOptions);
  tell({ kind: 'listening', address });
} catch (error) {
  tell({ kind: 'failed', error: pack(error) });
}
