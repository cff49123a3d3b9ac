/**
 * The workers of a script, which all its runners share: they are joined for the first runner and left with the last one, so that models
 * or ways to exchange gradients can be compared side by side. Knows nothing of models.
 * Invariants: all workers of a script make and close their runners in the same order; further workers, which run the script from its
 * beginning, come to no other call than the first process has come to.
 */
import { availableParallelism } from 'node:os';
import { isDeepStrictEqual } from 'node:util';
import { PeerError, UsageError } from '../base/index.ts';
import { CommunicationThread, type CommunicationOptions } from '../communication/index.ts';
import { takeWorkerPlace, type WorkerPlace } from '../launcher/index.ts';
import { hasSharedMemory, removeStaleSegments, SharedSpace } from '../memory/index.ts';
import type { ResolvedResources } from './resources.ts';

export interface Workers {
  readonly place: WorkerPlace;
  readonly thread: CommunicationThread;
  /** The last one to leave ends the connections; processes that were started as further workers end here too. */
  leave(): Promise<void>;
  /** What cannot go on with all workers: they are given up, with all runners on them. */
  giveUp(error: Error): Promise<void>;
}

export interface JoinOptions {
  /** Whether no other runner may use the workers meanwhile. Default false. */
  readonly isAlone?: boolean | undefined;
}

interface Joined {
  readonly resources: ResolvedResources;
  readonly isAlone: boolean;
  readonly workers: Promise<Pick<Workers, 'place' | 'thread'>>;
  runners: number;
}

let joined: Joined | undefined;
/** Workers that were given up do not count: whoever tries the same again comes to the same call. */
let haveLeft = false;

export async function joinWorkers(resources: ResolvedResources, options: JoinOptions = {}): Promise<Workers> {
  const { isAlone = false } = options;
  if (!joined && haveLeft) throw secondTime(resources);
  joined ??= { resources, isAlone, workers: join(resources), runners: 0 };
  const own = joined;
  if (own.runners > 0 && (isAlone || own.isAlone)) throw notAlone(own.runners);
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
        if (joined === own) haveLeft = true;
        forget(own);
        await thread.close().finally(() => end(place));
        if (place.rank > 0) process.exit();
      },
      giveUp: async (error) => {
        forget(own);
        await thread.abort(error).finally(() => end(place));
      },
    };
  } catch (error) {
    forget(own);
    throw error;
  }
}

/** Workers that were killed could not clean up; when the first process is done with it, all have ended. */
async function end(place: WorkerPlace): Promise<void> {
  await place.close();
  if (place.rank === 0 && hasSharedMemory()) removeStaleSegments();
}

/** There may be others by now. */
function forget(own: Joined): void {
  if (joined === own) joined = undefined;
}

function secondTime({ workers }: ResolvedResources): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `This script has ended its workers, and asks for ${workers} again; they would run it from its beginning and come to the first call instead of this one. Close no runner of getRunner before all are done, or train each time in a process of its own.`,
    { workers },
  );
}

function notAlone(open: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `fit ends the further workers, and ${open} runner(s) are open on them. Use getRunner for all that they are to train, or close the others first.`,
    { open },
  );
}

/**
 * Messages look for news without a pause where each worker here has a processor for them beside the one that computes; where it has
 * one only, while it waits for them; where it has none to itself, never.
 */
function spinning(
  machines: ResolvedResources['machines'],
  host: string | undefined,
): Pick<CommunicationOptions, 'spinMicros' | 'yieldWhileSpinning' | 'spinWhileCallerWaits'> {
  const { workers } = machines.find(({ name }) => name === host) ?? machines[0];
  const processors = availableParallelism();
  if (2 * workers <= processors) return {};
  return { spinMicros: 0, yieldWhileSpinning: true, spinWhileCallerWaits: workers <= processors };
}

async function join({
  machines,
  transport,
  tls,
}: ResolvedResources): Promise<Pick<Workers, 'place' | 'thread'>> {
  const place = await takeWorkerPlace({ machines, transport, tls });
  const stop = new AbortController();
  const joining = CommunicationThread.start({
    signal: stop.signal,
    ...{ space: SharedSpace.create(), scheduler: place.scheduler, secret: place.secret },
    ...{ wantedRank: place.rank, transport: place.transport, host: place.host, address: place.address },
    tls: place.tls,
    ...spinning(machines, place.host),
  });
  try {
    const thread = await Promise.race([joining, place.failed.then((error) => Promise.reject(error))]);
    return { place, thread };
  } catch (error) {
    stop.abort();
    await joining.then((thread) => thread.abort(error as Error)).catch(() => undefined);
    await place.close();
    throw notCome(error, machines);
  }
}

/** Whoever trains on several machines knows them by their names. */
function notCome(error: unknown, machines: ResolvedResources['machines']): unknown {
  if (!(error instanceof PeerError) || error.code !== 'TIMEOUT' || machines.length === 1) return error;
  const { missingRanks = [], joinTimeoutMs } = error.facts as JoinFacts;
  const names = machines.flatMap(({ name, workers }) => Array.from({ length: workers }, () => name));
  if (missingRanks.length === 0 || joinTimeoutMs === undefined) return error;
  const who = missingRanks.map((rank) => `worker ${rank} on ${names[rank]}`).join(', ');
  return new PeerError(
    'TIMEOUT',
    `not there after ${joinTimeoutMs / 1000} s: ${who}. See whether the command of the machine starts it, and whether ${machines[0].address} can be reached from there, on any port.`,
    error.facts,
    error,
  );
}

interface JoinFacts {
  readonly missingRanks?: readonly number[];
  readonly joinTimeoutMs?: number;
}
