/**
 * A piece: the part of a key that belongs to one core, and where its elements lie. Data only. Invariant: its ranges are in
 * order and do not overlap.
 */
import type { Region } from '../../memory/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import type { KeyShape, PieceShape } from '../wire/messages.ts';
import { joined } from '../wire/scattered-bytes.ts';

export interface Piece {
  readonly shape: PieceShape;
  readonly key: KeyShape;
  readonly value: Region<'float32'>;
  /** The ranges of the value, as they travel. */
  readonly valueBytes: readonly ByteRange[];
  readonly bytes: number;
}

/** An entry of a list with all that an exchange needs, found once. */
export interface PreparedEntry {
  readonly name: string;
  readonly piece: Piece;
  readonly gradient: Region<'float32'>;
  /** Where the gradient goes when it comes in a body. */
  readonly staged: readonly ByteRange[] | undefined;
  /** Where the value is copied to, range by range; undefined: it goes in the body of the reply, or nowhere. */
  readonly into: readonly ByteRange[] | undefined;
  readonly isInPlace: boolean;
}

/** The ranges of a piece in a tensor of its length. */
export function rangesIn(tensor: { readonly byteOffset: number }, { ranges }: PieceShape): ByteRange[] {
  return joined(
    ranges.map(([start, length]) => ({
      byteOffset: tensor.byteOffset + 4 * start,
      byteLength: 4 * length,
    })),
  );
}
