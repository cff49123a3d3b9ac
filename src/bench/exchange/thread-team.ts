/**
 * Threads that do one job of a benchmark together, from start to end. Not where they wait for each other (thread-barrier.ts),
 * which has the deadline. Invariant: when the job is over, well or not, no thread is left.
 */
import type { Worker } from 'node:worker_threads';
import { InternalError, startThread } from '../../base/index.ts';

/** A thread for each of the data; `entry` as in `startThread`. */
export async function runThreads(entry: URL, data: readonly object[]): Promise<void> {
  const workers = data.map((own) => startThread(entry, own));
  try {
    await Promise.all(workers.map((worker, thread) => untilEnded(worker, thread, workers.length)));
  } finally {
    // If one has failed, the others still wait for it.
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
}

function untilEnded(worker: Worker, thread: number, threads: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (cause: unknown): void =>
      reject(
        new InternalError(
          'BROKEN_INVARIANT',
          `thread ${thread} of ${threads} of a measurement failed: ${cause instanceof Error ? cause.message : String(cause)}; measure with fewer threads, or report it`,
          { thread, threads },
          cause,
        ),
      );
    worker.once('error', fail);
    worker.once('exit', (code) => (code === 0 ? resolve() : fail(`exit code ${code}`)));
  });
}
