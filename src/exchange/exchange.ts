/**
 * What the ways of gradients have in common: how they report what they do outside of a step's
 * operations, and tables that are nowhere else. What they do in a step is handlers for operations of
 * its program (`runtime/step-walk.ts`). Invariant: after `apply` and the next fetch the parameters
 * are those of one device that computed the whole batch.
 */
import type { Region } from '../memory/index.ts';
import type { StepOperation } from '../plan/index.ts';

export interface RemoteTable {
  /**
   * Its elements in their order, or those of a slot that the optimizer keeps; valid until the next
   * are asked for.
   */
  pieces(slot?: string): Iterable<Promise<Region<'float32'>>>;
}

/** By name. */
export type RemoteTables = ReadonlyMap<string, RemoteTable>;

/** Takes a message, by the name to show. Times are milliseconds since 1970; bytes are those that this worker gives or gets. */
export type OnMessage = (
  operation: StepOperation,
  name: string,
  startedMs: number,
  endedMs: number,
  bytes?: number,
) => void;

/** The clock of messages: milliseconds since 1970, as finely as it goes. */
export function wallMs(): number {
  return performance.timeOrigin + performance.now();
}

export const NO_TABLES: RemoteTables = new Map();
