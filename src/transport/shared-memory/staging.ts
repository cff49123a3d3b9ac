/**
 * Memory that peers can map, for payloads that lie in private memory. Pieces have sizes of a power of two and are used
 * again; what was taken from the system is kept until `close`. Invariant: a piece is in at most one hand.
 */
import type { Region, Segment } from '../../memory/index.ts';

const SEGMENT_BYTES = 4 * 2 ** 20;

export type StagingPiece = Region<'uint8'>;

export class Staging {
  readonly #createSegment: (number: number, byteLength: number) => Segment;
  readonly #segments: Segment[] = [];
  readonly #free = new Map<number, StagingPiece[]>();
  #leftBytes = 0;

  constructor(createSegment: (number: number, byteLength: number) => Segment) {
    this.#createSegment = createSegment;
  }

  /** At least so many bytes. */
  take(byteLength: number): StagingPiece {
    const pieceBytes = Math.max(4096, 2 ** Math.ceil(Math.log2(byteLength)));
    const piece = this.#free.get(pieceBytes)?.pop();
    if (piece) return piece;
    if (pieceBytes > this.#leftBytes) {
      const segmentBytes = Math.max(pieceBytes, SEGMENT_BYTES);
      this.#segments.push(this.#createSegment(this.#segments.length, segmentBytes));
      this.#leftBytes = segmentBytes;
    }
    this.#leftBytes -= pieceBytes;
    return this.#segments.at(-1)!.allocate('uint8', pieceBytes);
  }

  giveBack(piece: StagingPiece): void {
    const pieces = this.#free.get(piece.byteLength);
    if (pieces) pieces.push(piece);
    else this.#free.set(piece.byteLength, [piece]);
  }

  close(): void {
    for (const segment of this.#segments.splice(0)) segment.close();
    this.#free.clear();
    this.#leftBytes = 0;
  }
}
