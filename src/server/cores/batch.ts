/**
 * Keys that one call of init opens together, on one core: what was agreed about them, and who waits for them. What
 * becomes of them is the tenant's business. Invariant: a batch has values only when it has memory.
 */
import { keyName } from '../../base/index.ts';
import type { StoreKey, TributaryError } from '../../base/index.ts';
import type { KeyShape, PieceShape } from '../wire/messages.ts';
import type { KeyMemory } from './key-places.ts';

/** Characters of a name that count as a chunk more. */
const NAME_LENGTH = 64;

/** One call of init: keys that were opened together. */
export interface Batch {
  /** What every worker must have said. */
  readonly plan: string;
  readonly keys: ReadonlySet<StoreKey>;
  readonly firstPiece: number;
  readonly pieceCount: number;
  memory: readonly KeyMemory[] | undefined;
  /** The first values are there. */
  isFilled: boolean;
  /** It was there before the server was started again. */
  readonly isRecovered: boolean;
  /** What waits for the memory or for the values, each with who asked: it is dropped when a connection ends. */
  waiting: {
    readonly owner: object;
    readonly go: () => void;
    readonly fail: (error: TributaryError) => void;
  }[];
}

/** The keys of a batch, and the pieces of them that belong to a core, numbered from `firstPiece`. */
export interface BatchPlan {
  readonly keys: readonly KeyShape[];
  readonly pieces: readonly PieceShape[];
  readonly firstPiece: number;
}

/** What every worker must say alike, and a log or a checkpoint keeps. */
export function planText({ keys, pieces, firstPiece }: BatchPlan): string {
  return JSON.stringify([keys, pieces, firstPiece]);
}

/** What a call of init makes a core remember: the call, each key with its name, and the chunks. */
export function chunksOf(keys: readonly KeyShape[], pieces: readonly PieceShape[]): number {
  const names = keys.reduce((sum, { key }) => sum + 1 + Math.floor(keyName(key).length / NAME_LENGTH), 0);
  return pieces.reduce((sum, { ranges }) => sum + Math.max(1, ranges.length), Math.max(1, names));
}
