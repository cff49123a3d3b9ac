/**
 * Memory that the keys of a store keep for its life: for the sum of their gradients, and for their values on the way to plain
 * memory. Keys of one init lie in one segment, because a peer keeps only some of the others' segments mapped. Invariants:
 * a region stays the same, so that whoever maps or cuts it does so once; nothing is taken before it is asked for.
 */
import { randomBytes } from 'node:crypto';
import type { Group } from '../cluster/index.ts';
import { alignUp, REGION_ALIGNMENT } from '../memory/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';

export interface KeyRoom {
  readonly space: SharedSpace;
  /** Whether peers on this host work in it. */
  readonly isShared: boolean;
  /** Memory that others use in place too, in that space, and free. Default: segments of the keys' own. */
  readonly allocate?: ((length: number) => Region<'float32'>) | undefined;
}

/** Ranks on this host work in each other's memory where the transport can. */
export function roomOf({ space, progress }: Group): KeyRoom {
  return { space, isShared: progress.transport.inPlace !== undefined };
}

/** One region from the first of these to the last, if they lie side by side in this order, with nothing between but padding. */
export function spanOf(
  space: SharedSpace,
  regions: readonly Region<'float32'>[],
): Region<'float32'> | undefined {
  const [first, last] = [regions[0]!, regions.at(-1)!];
  const segment = space.segmentAt(first);
  const isSpan = regions.every((region, i) => {
    const before = i === 0 ? region.byteOffset : regions[i - 1]!.byteOffset + regions[i - 1]!.byteLength;
    return region.byteOffset === alignUp(before, REGION_ALIGNMENT) && space.segmentAt(region) === segment;
  });
  if (!segment || !isSpan) return undefined;
  const bytes = last.byteOffset + last.byteLength - first.byteOffset;
  return segment.region('float32', segment.offsetOf(first), bytes / 4);
}

export class KeyMemory {
  readonly #room: KeyRoom;
  readonly #segments: Segment[] = [];

  constructor(room: KeyRoom) {
    this.#room = room;
  }

  /** One region for each length; all are taken when the first is asked for. */
  plan(lengths: readonly number[]): (index: number) => Region<'float32'> {
    let regions: readonly Region<'float32'>[] | undefined;
    return (index) => {
      regions ??= this.#take(lengths);
      return regions[index]!;
    };
  }

  close(): void {
    for (const segment of this.#segments.splice(0)) segment.close();
  }

  #take(lengths: readonly number[]): readonly Region<'float32'>[] {
    const { space, isShared, allocate } = this.#room;
    if (allocate) return sliced(allocate, lengths);
    const bytes = lengths.reduce(
      (sum, length) => sum + alignUp(4 * length, REGION_ALIGNMENT),
      REGION_ALIGNMENT,
    );
    const segment = isShared
      ? space.createSegment(`keys-${process.pid}-${randomBytes(6).toString('hex')}`, bytes)
      : space.allocate(bytes);
    this.#segments.push(segment);
    return lengths.map((length) => segment.allocate('float32', length));
  }
}

/** Side by side, each from a multiple of the alignment on. */
function sliced(
  allocate: (length: number) => Region<'float32'>,
  lengths: readonly number[],
): readonly Region<'float32'>[] {
  const taken = lengths.map((length) => alignUp(4 * length, REGION_ALIGNMENT) / 4);
  const whole = allocate(taken.reduce((sum, one) => sum + one, 0));
  let start = 0;
  return lengths.map((length, i) => whole.slice((start += taken[i]!) - taken[i]!, length));
}
