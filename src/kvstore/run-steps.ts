/**
 * A training loop that survives: counts steps, keeps checkpoints now and then, and goes back with all other workers
 * when a server or a worker was started again. What a step does is the caller's business. Invariant: in synchronous
 * training the parameters after the last step are those of a run in which nothing was lost.
 */
import { TributaryError, UsageError } from '../base/index.ts';
import type { RecoverableStore } from './kv-store.ts';

export interface RunStepsOptions {
  /** Steps in all, those before an earlier crash included. */
  readonly steps: number;
  /** Steps between two checkpoints. Default 100. */
  readonly checkpointEvery?: number | undefined;
  /**
   * One step, counted from 1: computes gradients and exchanges them. Where workers are in clients
   * it fails only when all calls that it made have ended, for a later one would count for the step
   * after going back. `isFirst`: the parameters are not those of this process's last step, but
   * those on the servers; pull them.
   */
  readonly step: (step: number, isFirst: boolean) => Promise<void>;
  /** Told when training goes back to the checkpoint after a step. */
  readonly onRewind?: ((step: number) => void) | undefined;
  /**
   * Receives the error of each checkpoint after the first that was not written, a disk that is full say; training
   * goes on, and would go back further if something were lost. Default: the first such error ends the training.
   */
  readonly onProblem?: ((error: TributaryError) => void) | undefined;
}

/** To be called after `init` and `setOptimizer`, by every worker, also by one that was started again. */
export async function runSteps(store: RecoverableStore, options: RunStepsOptions): Promise<void> {
  const { steps, checkpointEvery = 100, step: act, onRewind, onProblem } = options;
  if (!(Number.isInteger(checkpointEvery) && checkpointEvery > 0)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `checkpointEvery is ${checkpointEvery}; give a whole number of steps, 1 or more`,
      { checkpointEvery },
    );
  }
  let done: number | undefined;
  let isFirst = true;
  let keeps = true;
  while (done === undefined || done < steps) {
    try {
      if (done === undefined) {
        done = await store.resume();
        isFirst = true;
        // Something to go back to must be there before anything is trained.
        if (done === 0 && keeps) keeps = await keepsCheckpoints(store);
        continue;
      }
      await act(done + 1, isFirst);
      isFirst = false;
      done++;
      if (keeps && done % checkpointEvery === 0) await reported(store.checkpoint(done), onProblem);
      // The last ones are still being written.
      if (keeps && done >= steps) await reported(store.checkpointsWritten(), onProblem);
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'REWOUND') throw error;
      onRewind?.(done ?? 0);
      done = undefined;
    }
  }
}

/** Whether the servers keep checkpoints at all; a service without a folder does not. */
async function keepsCheckpoints(store: RecoverableStore): Promise<boolean> {
  try {
    await store.checkpoint(0, { isDurable: true });
    return true;
  } catch (error) {
    if (error instanceof TributaryError && error.code === 'NO_CHECKPOINTS') return false;
    throw error;
  }
}

async function reported(written: Promise<void>, onProblem: RunStepsOptions['onProblem']): Promise<void> {
  try {
    await written;
  } catch (error) {
    const isProblem = error instanceof TributaryError && error.code === 'CHECKPOINT_NOT_WRITTEN';
    if (!isProblem || onProblem === undefined) throw error;
    onProblem(error);
  }
}
