/**
 * Regions in a thread, made from the places that its caller sent; the other side of
 * `announced-segments.ts`. It maps nothing: both threads see the same memory. Invariant: a region of a named segment is
 * known to this thread's space as such, so that peers can be lent it in place.
 */
import { InternalError } from '../base/index.ts';
import type { Region, Segment, SegmentRange, SharedSpace } from '../memory/index.ts';
import type { PackedRegion } from './messages.ts';

export class ThreadRegions {
  readonly #space: SharedSpace;
  /** The whole memory, in which private regions lie. */
  readonly #whole: Segment;
  readonly #adopted = new Map<number, Segment>();

  constructor(space: SharedSpace) {
    this.#space = space;
    this.#whole = space.adoptSegment({ byteOffset: 0, byteLength: space.buffer.byteLength });
  }

  adopt(segment: number, range: SegmentRange): void {
    this.#adopted.set(segment, this.#space.adoptSegment(range));
  }

  /** Returns what it was, closed. */
  forget(number: number): Segment | undefined {
    const segment = this.#adopted.get(number);
    segment?.close();
    this.#adopted.delete(number);
    return segment;
  }

  unpack<T extends PackedRegion['dtype']>(packed: PackedRegion & { readonly dtype: T }): Region<T> {
    const { dtype, byteOffset, length } = packed;
    const segment = packed.segment === 0 ? this.#whole : this.#adopted.get(packed.segment);
    if (segment) return segment.region(dtype, byteOffset - segment.byteOffset, length);
    throw new InternalError(
      'BROKEN_INVARIANT',
      `a region of ${length} ${dtype} lies in segment ${packed.segment}, which this thread was not told of; please report it`,
      { ...packed },
    );
  }

  close(): void {
    for (const segment of this.#adopted.values()) segment.close();
    this.#adopted.clear();
  }
}
