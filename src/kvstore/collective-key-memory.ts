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
}

/** Ranks on this host work in each other's memory where the transport can. */
export function roomOf({ space, progress }: Group): KeyRoom {
  return { space, isShared: progress.transport.inPlace !== undefined };
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
    const { space, isShared } = this.#room;
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
