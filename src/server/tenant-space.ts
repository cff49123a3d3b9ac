/**
 * The space of a server as one of its tenants may use it: whatever is allocated for the tenant, on whichever thread, goes
 * through this and counts against its quota, in bytes by whole pages, and against its share of the ranges that the space can
 * keep apart. The counts lie in shared memory, so that all threads add to the same. Invariants: a tenant never has more
 * than its quota, whatever it asks for at the same time; what is given back is counted off once.
 */
import { UsageError } from '../base/index.ts';
import { Segment } from '../memory/index.ts';
import type { SegmentRange, SharedSpace } from '../memory/index.ts';
import type { Service } from './cores/office.ts';

/** What a segment takes of the space at least, whatever it holds. */
const PAGE_BYTES = 65536;
/** The part of the ranges of a space that one tenant may have. */
const SHARE_OF_RANGES = 1 / 4;
const PAGES = 0;
const RANGES = 1;
/** Memory for the counts of one tenant. */
export const ACCOUNT_BYTES = 64;

type Range = Pick<SegmentRange, 'byteOffset' | 'byteLength'>;

export class TenantSpace {
  readonly #space: SharedSpace;
  readonly #service: Pick<Service, 'namespace' | 'maxBytes'>;
  readonly #counts: Int32Array;
  /** What this thread has of the tenant beyond the space. */
  #outsideBytes = 0;

  constructor(space: SharedSpace, service: Pick<Service, 'namespace' | 'maxBytes' | 'account'>) {
    this.#space = space;
    this.#service = service;
    this.#counts = new Int32Array(space.buffer, service.account.byteOffset, 2);
  }

  get buffer(): SharedArrayBuffer {
    return this.#space.buffer;
  }

  /** Bytes that are taken now. */
  get bytes(): number {
    return Atomics.load(this.#counts, PAGES) * PAGE_BYTES;
  }

  /** Private memory; closing the segment gives it back. */
  allocate(byteLength: number): Segment {
    return this.#counted(byteLength, () => this.#space.allocate(byteLength));
  }

  createSegment(name: string, byteLength: number): Segment {
    return this.#counted(byteLength, () => this.#space.createSegment(name, byteLength, { sweep: false }));
  }

  /** A segment of a worker, which takes room in the space like any other. */
  attachSegment(name: string): Segment {
    const maxBytes = this.#service.maxBytes - this.bytes;
    const segment = this.#space.attachSegment(name, { maxBytes });
    try {
      return this.#counted(segment.byteLength, () => segment);
    } catch (error) {
      segment.close();
      throw error;
    }
  }

  /** What another thread allocated by `allocate` and handed over. */
  releaseRange(range: Range): void {
    this.#space.releaseRange(range);
    this.#give(range.byteLength);
  }

  adoptSegment(range: Range): Segment {
    return this.#space.adoptSegment(range);
  }

  /** Counts memory of this thread that is not of the space; by whole pages, so that the first page is free. */
  take(bytes: number): void {
    const outsideBytes = this.#outsideBytes + bytes;
    this.#takePages(wholePagesOf(outsideBytes) - wholePagesOf(this.#outsideBytes));
    this.#outsideBytes = outsideBytes;
  }

  give(bytes: number): void {
    const before = wholePagesOf(this.#outsideBytes);
    this.#outsideBytes -= bytes;
    Atomics.sub(this.#counts, PAGES, before - wholePagesOf(this.#outsideBytes));
  }

  #counted(byteLength: number, allocate: () => Segment): Segment {
    this.#take(byteLength);
    let inner: Segment;
    try {
      inner = allocate();
    } catch (error) {
      this.#give(byteLength);
      throw error;
    }
    return new Segment(this.#space, inner, () => {
      inner.close();
      this.#give(byteLength);
    });
  }

  #take(byteLength: number): void {
    const pages = pagesOf(byteLength);
    this.#takePages(pages);
    const ranges = Atomics.add(this.#counts, RANGES, 1);
    const maxRanges = Math.floor(this.#space.maxRanges * SHARE_OF_RANGES);
    if (ranges < maxRanges) return;
    this.#give(byteLength);
    const { namespace } = this.#service;
    throw new UsageError(
      'OUT_OF_SHARED_MEMORY',
      `namespace '${namespace}' has ${ranges} ranges of memory, of ${maxRanges} that one tenant may have; await answers, or put tensors together in fewer keys and segments`,
      { namespace, expected: maxRanges, actual: ranges + 1 },
    );
  }

  #takePages(pages: number): void {
    const { maxBytes, namespace } = this.#service;
    const before = Atomics.add(this.#counts, PAGES, pages);
    if ((before + pages) * PAGE_BYTES <= maxBytes || pages === 0) return;
    Atomics.sub(this.#counts, PAGES, pages);
    const [has, asked] = [before * PAGE_BYTES, pages * PAGE_BYTES];
    throw new UsageError(
      'OUT_OF_SHARED_MEMORY',
      `namespace '${namespace}' has ${has} of ${maxBytes} bytes and asked for ${asked} more; use a smaller model, await answers, or ask for a larger quota (maxBytes of createService, --max-bytes)`,
      { namespace, expected: maxBytes, actual: has + asked },
    );
  }

  #give(byteLength: number): void {
    Atomics.sub(this.#counts, PAGES, pagesOf(byteLength));
    Atomics.sub(this.#counts, RANGES, 1);
  }
}

function pagesOf(bytes: number): number {
  return Math.ceil(Math.max(1, bytes) / PAGE_BYTES);
}

function wholePagesOf(bytes: number): number {
  return Math.floor(bytes / PAGE_BYTES);
}
