/**
 * What happens to gradients between the backward pass and the update: those of all workers become
 * one. A contract; which way a gradient takes is the implementation's. A parameter may live
 * elsewhere: then its combined gradient never comes here, and its new value is fetched before the
 * next forward pass. Invariant: after `finish` every worker knows the same loss and the same
 * gradients, bit for bit, and after `apply` and the next `prepare` the parameters are those of one
 * device that computed the whole batch.
 */
import type { Region } from '../memory/index.ts';
import type { StepOperation } from '../plan/index.ts';
import type { GradientsElsewhere } from '../runtime/index.ts';

export interface Exchange {
  /** Parameters whose gradients leave together, in the order backward makes them; what `Replica` is given. */
  readonly groups: readonly (readonly string[])[];
  /** Between two steps, on all workers the same. */
  setGroups(groups: readonly (readonly string[])[]): void;
  /**
   * What `prepare` has to do: fetch whole parameters, or rows of tables only; wait for updates of
   * what is read in place; nothing.
   */
  readonly fetches: 'pull' | 'pull rows' | 'wait' | undefined;
  /** Reports all messages from now on, each when it has ended. */
  traceTo(onMessage: OnMessage): void;
  /** Fetches what the batch in the replica's inputs needs of parameters that live elsewhere. */
  prepare(batch: number): Promise<void>;
  /**
   * The same for an evaluation, when `fetchAll` was called: rows of tables that are nowhere else.
   * By any worker, at any time. `average`: rows of this moving average as well.
   */
  prepareRows(batch: number, average?: string): Promise<void>;
  /** The gradients of the next step count for so many samples. Every worker calls this, also one without any. */
  begin(samples: number): void;
  /** The gradients of a group are in their places: they leave while the next ones are computed. */
  start(group: number): void;
  /** Waits until all are combined. */
  finish(): Promise<GradientsElsewhere>;
  /** When gradients travelled in the last step, where that is known. */
  readonly lastMessages: readonly SentMessage[];
  /**
   * What lives elsewhere is updated by the combined gradients times `scale`: it was asked for when this returns, and is done when
   * `prepare` or `fetchAll` is, which fail if it does.
   */
  apply(update: RemoteUpdate): void;
  /** Tables that are nowhere else, by name, for a checkpoint between two steps. */
  readonly remoteTables: ReadonlyMap<string, RemoteTable>;
  /**
   * Brings all that lives elsewhere here, but for these tables, as for an evaluation or a
   * checkpoint. `average`: this moving average as well.
   */
  fetchAll(average?: string): Promise<void>;
  /** The same for its moving averages and what the optimizer keeps of it, as for a checkpoint. */
  fetchState(): Promise<void>;
  /** Gives back what this holds. All workers call it; what lives elsewhere waits for them. */
  close(): Promise<void>;
  /** Gives up what this holds without waiting for anybody, as after an error. */
  abort(): Promise<void>;
}

export interface RemoteTable {
  /**
   * Its elements in their order, or those of a slot that the optimizer keeps; valid until the next
   * are asked for.
   */
  pieces(slot?: string): Iterable<Promise<Region<'float32'>>>;
}

/** Times are milliseconds since 1970. */
export interface SentMessage {
  /** The group that it is of, where it is of one. */
  readonly group?: number | undefined;
  readonly bytes: number;
  readonly startedMs: number;
  readonly endedMs: number;
}

/** Takes a message, by the name to show. Times are milliseconds since 1970; bytes are those that this worker gives or gets. */
export type OnMessage = (
  operation: StepOperation,
  name: string,
  startedMs: number,
  endedMs: number,
  bytes?: number,
) => void;

export interface RemoteUpdate {
  /** What clipping by the norm of all gradients leaves of them. */
  readonly scale: number;
  /** Learning rate of this step. Default that of the optimizer. */
  readonly lr?: number | undefined;
}

/** The clock of messages: milliseconds since 1970, as finely as it goes. */
export function wallMs(): number {
  return performance.timeOrigin + performance.now();
}

export const NO_TABLES: ReadonlyMap<string, RemoteTable> = new Map();
export const NOTHING_ELSEWHERE: GradientsElsewhere = { names: new Set(), sumOfSquares: 0 };
