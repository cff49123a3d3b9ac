/**
 * What one worker brings to one step of a key: a dense gradient, or rows of it. Held in place until the step is applied.
 * Invariant: contributions are combined in the order of the workers' numbers, never of arrival, so that the same
 * pushes give the same bits.
 */
import type { StoreKey } from '../base/index.ts';
import type { Region } from '../memory/index.ts';

/** Told once, when the push has taken effect, or has been combined where updates are held. */
export interface PushReply {
  /** Updates that the key has seen, this one included. */
  readonly version: number;
  /** Updates by others between this worker's last pull and its push. */
  readonly staleness: number;
  /** The push was known already: a retry, which changes nothing. */
  readonly duplicate: boolean;
  /** Where updates are held: of the core's part of the combined gradient. */
  readonly sumOfSquares?: number | undefined;
}

interface Pushed {
  readonly worker: number;
  /** Number of this push of the key, from 1. */
  readonly step: number;
  /** How much it counts in an average. 0 for one that is skipped. */
  readonly samples: number;
}

export interface DenseContribution extends Pushed {
  readonly gradient: Region<'float32'>;
}

export interface RowsContribution extends Pushed {
  /** One for each row; may repeat. */
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  /** Which of the rows belongs to each index. Default: they are in the order of the indices. */
  readonly positions?: Region<'int32'> | undefined;
  /** Receives the new rows, in the places of their gradients. Default: nobody wants them. */
  readonly answer?: Region<'float32'> | undefined;
  /** Whether the worker sees them, there or in the table itself. */
  readonly pulls?: boolean | undefined;
}

export type Contribution = DenseContribution | RowsContribution;

export function inWorkerOrder<T extends { readonly worker: number }>(contributions: Iterable<T>): T[] {
  return [...contributions].sort((a, b) => a.worker - b.worker);
}

/** A push as whoever feeds a core gives it. */
export interface Push {
  readonly worker: number;
  readonly key: StoreKey;
  /** Number of this worker's push of the key, from 1; in synchronous mode the number of the update. */
  readonly step: number;
  /** Samples behind the gradient, which weigh in an average; 0, where updates are held, weighs nothing. Default 1. */
  readonly samples?: number | undefined;
  /** Counts as pushed, but its values are left out: whoever pushes has found them not to be finite. Default false. */
  readonly isSkipped?: boolean | undefined;
}

export interface DensePush extends Push {
  /** As long as the key. Must stay as it is until the reply. In elastic mode: the weights, which are moved. */
  readonly gradient: Region<'float32'>;
}

export interface RowsPush extends Push {
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  /** Which of the rows belongs to each index. Default: they are in the order of the indices. */
  readonly positions?: Region<'int32'> | undefined;
  /** Receives the rows as they are after the push, in the places of their gradients; may be `rows`. Default: none. */
  readonly answer?: Region<'float32'> | undefined;
  /** Whether the worker sees them, there or in the table itself. Default false. */
  readonly pulls?: boolean | undefined;
}
