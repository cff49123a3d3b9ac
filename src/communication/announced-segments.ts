/**
 * Regions as another thread of this process can find them. The caller's side of
 * `thread-regions.ts`: tells the thread of each named segment with the first region in it, and that
 * it is gone once it was closed here. Invariant: when a region is packed, the thread has been told
 * of its segment and of the end of every announced segment that is closed by then.
 */
import { UsageError } from '../base/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import type { PackedRegion, SegmentNews } from './messages.ts';

export class AnnouncedSegments {
  readonly #space: SharedSpace;
  readonly #post: (news: SegmentNews) => void;
  readonly #numbers = new Map<Segment, number>();
  #next = 1;

  constructor(space: SharedSpace, post: (news: SegmentNews) => void) {
    this.#space = space;
    this.#post = post;
  }

  pack(region: Region): PackedRegion {
    if (region.space.buffer !== this.#space.buffer) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `a region of ${region.length} ${region.dtype} lies in another space than the thread's that is to use it; allocate it in the space that the thread was started with`,
        { dtype: region.dtype, length: region.length },
      );
    }
    this.#forgetClosed();
    const { dtype, byteOffset, length } = region;
    const segment = region.space.segmentAt(region);
    return { dtype, byteOffset, length, segment: segment ? this.#numberOf(segment) : 0 };
  }

  /** The number of a segment that is about to be closed, if it has one, for the caller to have it forgotten. */
  withdraw(segment: Segment): number | undefined {
    const number = this.#numbers.get(segment);
    this.#numbers.delete(segment);
    return number;
  }

  #numberOf(segment: Segment): number {
    const known = this.#numbers.get(segment);
    if (known !== undefined) return known;
    const number = this.#next++;
    this.#numbers.set(segment, number);
    const { name, directory, byteOffset, byteLength } = segment;
    this.#post({ kind: 'adopt', segment: number, range: { name, directory, byteOffset, byteLength } });
    return number;
  }

  /** Its range may hold other memory by now, which peers must not look for under the old name. */
  #forgetClosed(): void {
    for (const [segment, number] of this.#numbers) {
      if (!segment.closed) continue;
      this.#numbers.delete(segment);
      this.#post({ kind: 'forget', segment: number });
    }
  }
}
