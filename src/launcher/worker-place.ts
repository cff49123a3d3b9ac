/**
 * This process's place among the workers of a run: in the user's own process the others are started from here, with a
 * scheduler in a thread; in a process that was started that way, the place is read. Joins nothing yet.
 * Invariant: what was started here has ended when `close` is done, whatever went wrong.
 */
import { randomBytes } from 'node:crypto';
import { UsageError } from '../base/index.ts';
import type { PeerError } from '../base/index.ts';
import type { TransportChoice } from './join-cluster.ts';
import { startSchedulerThread } from './scheduler-thread.ts';
import { assignmentOfThisProcess } from './worker-assignment.ts';
import { WorkerProcesses } from './worker-processes.ts';
import type { WorkerProcessesOptions } from './worker-processes.ts';

export interface WorkerPlaceOptions extends WorkerProcessesOptions {
  /** All of them, this process included. */
  readonly workers: number;
  /** How they exchange data. Default 'auto'. */
  readonly transport?: TransportChoice | undefined;
}

export interface WorkerPlace {
  readonly rank: number;
  readonly workers: number;
  readonly scheduler: string;
  readonly secret: string;
  readonly transport: TransportChoice;
  /** Settles if a worker ends while it is still needed; only the first process hears of it. */
  readonly failed: Promise<PeerError>;
  /** Waits for the other processes, where they were started here. */
  close(): Promise<void>;
}

export const MAX_WORKERS = 256;

export async function takeWorkerPlace(options: WorkerPlaceOptions): Promise<WorkerPlace> {
  const { workers, transport = 'auto' } = options;
  if (!(Number.isInteger(workers) && workers >= 2 && workers <= MAX_WORKERS)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `workers is ${workers}; give a whole number from 2 to ${MAX_WORKERS}`,
      { workers },
    );
  }
  const assigned = assignmentOfThisProcess();
  if (assigned) {
    endWithTheFirst();
    return { ...assigned, failed: new Promise(() => undefined), close: () => Promise.resolve() };
  }
  const secret = randomBytes(32).toString('hex');
  const scheduler = await startSchedulerThread({ size: workers, secret });
  const shared = { workers, scheduler: scheduler.address, secret, transport };
  const others = Array.from({ length: workers - 1 }, (_, i) => ({ assignment: { ...shared, rank: i + 1 } }));
  const processes = new WorkerProcesses(others, options);
  return {
    ...{ ...shared, rank: 0, failed: processes.failed },
    close: async () => {
      await processes.close();
      await scheduler.close();
    },
  };
}

/** The standard input ends with the process that started this one. */
function endWithTheFirst(): void {
  process.stdin.on('end', () => process.exit(1));
  process.stdin.on('error', () => process.exit(1));
  process.stdin.resume();
  // It must not keep a process alive that is done.
  (process.stdin as { unref?: () => void }).unref?.();
}
