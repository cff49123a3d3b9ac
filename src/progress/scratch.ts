/**
 * Memory that operations borrow for as long as they run. Pieces come in powers of two from segments that are kept for
 * reuse, because mapping fresh memory costs more than most collectives. Invariant: a piece is in one operation's
 * hands or in the free list of its size; `close` gives back all segments.
 */
import { randomBytes } from 'node:crypto';
import { bytesPerElement } from '../memory/index.ts';
import type { DType, Region, Segment, SharedSpace } from '../memory/index.ts';

const SMALLEST_BYTES = 4096;
const SEGMENT_BYTES = 2 ** 20;

interface Piece {
  readonly segment: Segment;
  readonly byteOffsetInSegment: number;
  readonly bytes: number;
  /** As it was taken last: the next taker often wants the same. */
  region: Region | undefined;
}

export class Scratch {
  readonly #space: SharedSpace;
  readonly #shared: boolean;
  readonly #segments: Segment[] = [];
  readonly #free = new Map<number, Piece[]>();
  readonly #taken = new Map<number, Piece>();

  /** `shared`: in named segments, so that peers on this host can read the pieces in place. */
  constructor(space: SharedSpace, shared: boolean) {
    this.#space = space;
    this.#shared = shared;
  }

  take<T extends DType>(dtype: T, length: number): Region<T> {
    const bytes = pieceBytes(length * bytesPerElement(dtype));
    const piece = this.#free.get(bytes)?.pop() ?? this.#grow(bytes);
    const { region: last } = piece;
    const region =
      last?.dtype === dtype && last.length === length
        ? (last as Region<T>)
        : piece.segment.region(dtype, piece.byteOffsetInSegment, length);
    piece.region = region;
    this.#taken.set(region.byteOffset, piece);
    return region;
  }

  giveBack(region: Region): void {
    const piece = this.#taken.get(region.byteOffset);
    if (!piece) return;
    this.#taken.delete(region.byteOffset);
    this.#keep(piece);
  }

  close(): void {
    for (const segment of this.#segments) segment.close();
    this.#segments.length = 0;
    this.#free.clear();
    this.#taken.clear();
  }

  #keep(piece: Piece): void {
    const free = this.#free.get(piece.bytes);
    if (free) free.push(piece);
    else this.#free.set(piece.bytes, [piece]);
  }

  #grow(bytes: number): Piece {
    const size = Math.max(bytes, SEGMENT_BYTES);
    const segment = this.#shared
      ? this.#space.createSegment(`scratch-${process.pid}-${randomBytes(6).toString('hex')}`, size)
      : this.#space.allocate(size);
    this.#segments.push(segment);
    for (let at = bytes; at + bytes <= size; at += bytes) {
      this.#keep({ segment, byteOffsetInSegment: at, bytes, region: undefined });
    }
    return { segment, byteOffsetInSegment: 0, bytes, region: undefined };
  }
}

function pieceBytes(bytes: number): number {
  let size = SMALLEST_BYTES;
  while (size < bytes) size *= 2;
  return size;
}
