/**
 * How a communication thread is started: the options of joining, less what cannot be sent to a thread, which the caller
 * gets as events instead. Invariant: `plain` returns nothing but data.
 */
import type { JoinClusterOptions, JoinMpiJobOptions } from '../launcher/index.ts';
import type { SharedSpace } from '../memory/index.ts';

type NotSent = 'space' | 'signal' | 'log' | 'onWaiting' | 'onStall';

/** Joins a cluster through its scheduler. Reports about operations that wait long come as the event 'stalled'. */
export interface CommunicationOptions extends Omit<JoinClusterOptions, NotSent> {
  /** The memory whose regions are exchanged; both threads work on it. */
  readonly space: SharedSpace;
  /**
   * Whether the thread looks for news without a pause while its caller is blocked in `wait`: right where every process has a
   * processor, which is free then. Default false.
   */
  readonly spinWhileCallerWaits?: boolean | undefined;
  /** Ends the attempt to join with CANCELLED. Default none. */
  readonly signal?: AbortSignal | undefined;
  /** Receives, in the caller's thread, a line about addresses, peers and what joining waits for. Default: none. */
  readonly log?: ((line: string) => void) | undefined;
}

/** Joins the processes that mpirun or srun started together. */
export interface MpiCommunicationOptions extends Omit<JoinMpiJobOptions, 'space'> {
  readonly mpi: true;
  /** The memory whose regions are exchanged; both threads work on it. */
  readonly space: SharedSpace;
}

export type PlainOptions = Omit<CommunicationOptions, NotSent> | Omit<MpiCommunicationOptions, NotSent>;

export function isMpi<T extends object>(options: T): options is Extract<T, { mpi: true }> {
  return 'mpi' in options && options.mpi === true;
}

export function plain(options: CommunicationOptions | MpiCommunicationOptions): PlainOptions {
  const sent: Record<string, unknown> = { ...options };
  for (const name of ['space', 'signal', 'log', 'onWaiting', 'onStall'] satisfies NotSent[])
    delete sent[name];
  return sent as unknown as PlainOptions;
}
