/**
 * The workers of a script, which all its runners share: they are joined for the first runner and left with the last one, so that models
 * or ways to exchange gradients can be compared side by side. Knows nothing of models.
 * Invariant: all workers of a script make and close their runners in the same order.
 */
import { availableParallelism } from 'node:os';
import { isDeepStrictEqual } from 'node:util';
import { UsageError } from '../base/index.ts';
import { CommunicationThread } from '../communication/index.ts';
import { takeWorkerPlace, type WorkerPlace } from '../launcher/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { ResolvedResources } from './resources.ts';

export interface Workers {
  readonly place: WorkerPlace;
  readonly thread: CommunicationThread;
  /** The last one to leave ends the connections; processes that were started as further workers end here too. */
  leave(): Promise<void>;
  /** Something went wrong before there was a runner: all workers are given up. */
  giveUp(error: Error): Promise<void>;
}

interface Joined {
  readonly resources: ResolvedResources;
  readonly workers: Promise<Omit<Workers, 'leave' | 'giveUp'>>;
  runners: number;
}

let joined: Joined | undefined;

export async function joinWorkers(resources: ResolvedResources): Promise<Workers> {
  joined ??= { resources, workers: join(resources), runners: 0 };
  const own = joined;
  if (!isDeepStrictEqual(own.resources, resources)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `A runner on ${own.resources.workers} workers is open, and another one on ${resources.workers} is asked for; give both the same resources, or close the first`,
      { open: own.resources.workers, workers: resources.workers },
    );
  }
  own.runners++;
  try {
    const { place, thread } = await own.workers;
    return {
      ...{ place, thread },
      leave: async () => {
        if (--own.runners > 0) return;
        joined = undefined;
        await thread.close();
        await place.close();
        if (place.rank > 0) process.exit();
      },
      giveUp: async (error) => {
        joined = undefined;
        await thread.abort(error);
        await place.close();
      },
    };
  } catch (error) {
    joined = undefined;
    throw error;
  }
}

/** Whether each worker here can have one for messages beside the one that computes: only then may messages spin on it. */
function hasProcessorsToSpare(machines: ResolvedResources['machines'], host: string | undefined): boolean {
  const { workers } = machines.find(({ name }) => name === host) ?? machines[0];
  return 2 * workers <= availableParallelism();
}

async function join({ machines, transport }: ResolvedResources): Promise<Pick<Workers, 'place' | 'thread'>> {
  const place = await takeWorkerPlace({ machines, transport });
  const joining = CommunicationThread.start({
    ...{ space: SharedSpace.create(), scheduler: place.scheduler, secret: place.secret },
    ...{ wantedRank: place.rank, transport: place.transport, host: place.host, address: place.address },
    ...(hasProcessorsToSpare(machines, place.host) ? {} : { spinMicros: 0, yieldWhileSpinning: true }),
  });
  try {
    const thread = await Promise.race([joining, place.failed.then((error) => Promise.reject(error))]);
    return { place, thread };
  } catch (error) {
    void joining.then((thread) => thread.abort(error as Error)).catch(() => undefined);
    await place.close();
    throw error;
  }
}
