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

export interface CoreSnapshot {
  readonly pieces: readonly PieceSnapshot[];
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

export function takeSnapshot(
  space: TenantSpace,
  bytes: SpaceBytes,
  sources: readonly SnapshotSource[],
): CoreSnapshot {
  const total = sources.reduce(
    (sum, { piece, tensors }) => sum + piece.bytes * Object.keys(tensors).length,
    0,
  );
  const segment = space.allocate(Math.max(4, total));
  let at = segment.byteOffset;
  const pieces = sources.map(({ number, piece, version, lastSteps, tensors }): PieceSnapshot => {
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
  });
  return { pieces, memory: { byteOffset: segment.byteOffset, byteLength: segment.byteLength } };
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
