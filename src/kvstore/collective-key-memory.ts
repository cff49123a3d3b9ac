/**
 * Memory that the keys of a store keep for its life: for the sum of their gradients, and for their values on the way to plain
 * memory. Keys of one init lie in one segment, because a peer keeps only some of the others' segments mapped. Invariants:
 * a region stays the same, so that whoever maps or cuts it does so once; nothing is taken before it is asked for.
 */
import { randomBytes } from 'node:crypto';
import type { Group } from '../cluster/index.ts';
import { alignUp, REGION_ALIGNMENT } from '../memory/index.ts';
import type { Region, Segment } from '../memory/index.ts';

export class KeyMemory {
  readonly #group: Group;
  readonly #segments: Segment[] = [];

  constructor(group: Group) {
    this.#group = group;
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
    const { space, progress } = this.#group;
    const bytes = lengths.reduce(
      (sum, length) => sum + alignUp(4 * length, REGION_ALIGNMENT),
      REGION_ALIGNMENT,
    );
    // Peers on this host work in it, where the transport can.
    const segment = progress.transport.inPlace
      ? space.createSegment(`keys-${process.pid}-${randomBytes(6).toString('hex')}`, bytes)
      : space.allocate(bytes);
    this.#segments.push(segment);
    return lengths.map((length) => segment.allocate('float32', length));
  }
}
