/**
 * Keys that one call of init opens together, on one core: what was agreed about them, and who waits for them. What
 * becomes of them is the tenant's business. Invariant: a batch has values only when it has memory.
 */
import { keyName, keyText, UsageError } from '../../base/index.ts';
import type { StoreKey, TributaryError } from '../../base/index.ts';
import { ProtocolFault } from '../wire/frame.ts';
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

/**
 * Of a piece of a key that is no table: one update of it is not cut into turns. Stores cut keys at 1
 * MB, or at one chunk if that is longer.
 */
const MAX_PIECE_BYTES = 4 * 2 ** 20;

/** Throws unless each piece is short enough and some of a key's elements, and no element belongs to two. `pieceCount`: those before them. */
export function checkPlan({ keys, pieces, firstPiece }: BatchPlan, pieceCount: number): void {
  if (pieces.length > 0 && firstPiece !== pieceCount) {
    throw new ProtocolFault(`numbered pieces from ${firstPiece}, expected ${pieceCount}`);
  }
  const placed: {
    readonly piece: number;
    readonly key: string;
    readonly from: number;
    readonly to: number;
  }[] = [];
  for (const [i, { key, start, length, ranges }] of pieces.entries()) {
    const shape = keys[key];
    if (shape === undefined || start + length > shape.length) {
      throw new ProtocolFault(
        `named elements ${start} to ${start + length} of key ${key}, which are not there`,
      );
    }
    if (ranges.length === 0) {
      throw new ProtocolFault(`named piece ${firstPiece + i} of key ${keyText(shape.key)} without elements`);
    }
    checkLength(shape, ranges);
    for (const [from, count] of ranges) {
      placed.push({
        piece: firstPiece + i,
        key: keyText(shape.key),
        from: start + from,
        to: start + from + count,
      });
    }
  }
  placed.sort((a, b) => Number(a.key > b.key) - Number(a.key < b.key) || a.from - b.from);
  for (const [i, { piece, key, from, to }] of placed.entries()) {
    const before = placed[i - 1];
    if (before === undefined || before.key !== key || before.to <= from) continue;
    throw new ProtocolFault(
      `gave elements ${from} to ${Math.min(to, before.to)} of key ${key} to pieces ${before.piece} and ${piece}`,
    );
  }
}

/** Of a table a piece has all rows of a core, of which a push names those that it updates. */
function checkLength({ key, rowLength }: KeyShape, ranges: PieceShape['ranges']): void {
  const bytes = 4 * ranges.reduce((sum, [, count]) => sum + count, 0);
  if (rowLength !== undefined || bytes <= MAX_PIECE_BYTES) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `a piece of key ${keyText(key)} has ${bytes} bytes, where ${MAX_PIECE_BYTES} may be updated at once; use smaller chunks (chunkBytes)`,
    { key, expected: MAX_PIECE_BYTES, actual: bytes },
  );
}

/** What a call of init makes a core remember: the call, each key with its name, and the chunks. */
export function chunksOf(keys: readonly KeyShape[], pieces: readonly PieceShape[]): number {
  const names = keys.reduce((sum, { key }) => sum + 1 + Math.floor(keyName(key).length / NAME_LENGTH), 0);
  return pieces.reduce((sum, { ranges }) => sum + Math.max(1, ranges.length), Math.max(1, names));
}
