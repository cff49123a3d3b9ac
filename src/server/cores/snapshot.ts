/**
 * A core's part of a checkpoint: copies of its pieces and of what the update rule keeps for them, made between two steps, so
 * that training goes on while the copy is written. Invariant: all tensors of a snapshot are of the same moment.
 */
import type { StoreKey } from '../../base/index.ts';
import type { ByteRange, SpaceBytes } from '../../sockets/index.ts';
import type { TenantSpace } from '../tenant-space.ts';
import type { SpaceRange } from './office.ts';
import { rangesIn } from './piece.ts';
import type { Piece } from './piece.ts';

export interface PieceSnapshot {
  readonly piece: number;
  readonly key: StoreKey;
  /** First element of the piece in its key. */
  readonly start: number;
  readonly length: number;
  readonly ranges: Piece['shape']['ranges'];
  readonly version: number;
  readonly lastSteps: Readonly<Record<string, number>>;
  /** Names, with the place of the packed copy. */
  readonly tensors: readonly { readonly name: string; readonly at: SpaceRange }[];
}

/** Some pieces as one text: a thread takes over a text at once, and objects one by one, which cannot be cut. */
export type PackedPieces = string;

const PIECES_A_PACK = 64;

/** Packs pieces one after the other. */
export class PiecePacker {
  readonly #packed: PackedPieces[] = [];
  #open: PieceSnapshot[] = [];

  add(piece: PieceSnapshot): void {
    this.#open.push(piece);
    if (this.#open.length === PIECES_A_PACK) this.end();
  }

  /** All that were added. */
  end(): readonly PackedPieces[] {
    if (this.#open.length > 0) this.#packed.push(JSON.stringify(this.#open));
    this.#open = [];
    return this.#packed;
  }
}

export function* piecesOf({ pieces }: CoreSnapshot): Generator<PieceSnapshot, void> {
  for (const packed of pieces) yield* JSON.parse(packed) as PieceSnapshot[];
}

export interface CoreSnapshot {
  readonly pieces: readonly PackedPieces[];
  /** The memory of all copies; given back by whoever has used it. */
  readonly memory: SpaceRange;
}

export interface SnapshotSource {
  readonly number: number;
  readonly piece: Piece;
  readonly version: number;
  readonly lastSteps: Readonly<Record<string, number>>;
  /** By name, of the piece's length; the value among them. */
  readonly tensors: Readonly<Record<string, { readonly byteOffset: number }>>;
}

/** Copies one piece to `at`, where there is room for all its tensors. */
function copyPiece(
  bytes: SpaceBytes,
  at: number,
  { number, piece, version, lastSteps, tensors }: SnapshotSource,
): PieceSnapshot {
  const { shape, key } = piece;
  const copies = Object.entries(tensors).map(([name, tensor]) => {
    const start = at;
    for (const { byteOffset, byteLength } of rangesAt(tensor.byteOffset, piece)) {
      bytes.copy(at, byteOffset, byteLength);
      at += byteLength;
    }
    return { name, at: { byteOffset: start, byteLength: at - start } };
  });
  return {
    ...{ piece: number, key: key.key, start: shape.start, length: shape.length, ranges: shape.ranges },
    ...{ version, lastSteps, tensors: copies },
  };
}

/** In steps of one piece, between which no piece may change. If it ends before it is done, its memory is given back. */
export function* takeSnapshot(
  space: TenantSpace,
  bytes: SpaceBytes,
  sources: Iterable<SnapshotSource>,
): Generator<void, CoreSnapshot> {
  const all: SnapshotSource[] = [];
  let total = 0;
  for (const source of sources) {
    all.push(source);
    total += bytesOf(source);
    yield;
  }
  const segment = space.allocate(Math.max(4, total));
  const packer = new PiecePacker();
  let at = segment.byteOffset;
  let isDone = false;
  try {
    for (const source of all) {
      packer.add(copyPiece(bytes, at, source));
      at += bytesOf(source);
      yield;
    }
    isDone = true;
  } finally {
    if (!isDone) space.releaseRange(segment);
  }
  return { pieces: packer.end(), memory: { byteOffset: segment.byteOffset, byteLength: segment.byteLength } };
}

function bytesOf({ piece, tensors }: SnapshotSource): number {
  return piece.bytes * Object.keys(tensors).length;
}

/** Copies the tensors of one piece from a snapshot to where they live. */
export function putBack(
  bytes: SpaceBytes,
  { tensors }: PieceSnapshot,
  piece: Piece,
  targets: Readonly<Record<string, { readonly byteOffset: number }>>,
): void {
  for (const { name, at } of tensors) {
    let from = at.byteOffset;
    for (const { byteOffset, byteLength } of rangesAt(targets[name]!.byteOffset, piece)) {
      bytes.copy(byteOffset, from, byteLength);
      from += byteLength;
    }
  }
}

function rangesAt(byteOffset: number, { shape }: Piece): ByteRange[] {
  return rangesIn({ byteOffset }, shape);
}
