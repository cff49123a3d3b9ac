/**
 * One shared WebAssembly memory a process, and the segments and regions in it. A segment is a page-aligned
 * range: private, or a file that other processes map as well, so that kernels and `Atomics` work in place
 * on the same bytes. Invariants: the memory never grows and never has a hole (a closed range becomes zeroed
 * anonymous memory); a region lies wholly inside its segment. Regions of a closed segment must not be used.
 */
import { closeSync } from 'node:fs';
import { InternalError, UsageError } from '../base/index.ts';
import { checkBytes, checkElements, checkRange, isCount } from './argument-checks.ts';
import { alignUp, bytesPerElement, typedArray } from './dtype.ts';
import type { DType, TypedArrayOf } from './dtype.ts';
import { hasNative, native } from './native.ts';
import { PAGE_BYTES, RangeTable } from './range-table.ts';
import { createSegmentFile, openSegmentFile, unlinkSegmentFile } from './segment-file.ts';
import type { SegmentFile } from './segment-file.ts';
import { defaultSegmentDirectory } from './segment-folder.ts';
import { HEADER_BYTES } from './segment-header.ts';
import { webAssembly } from './web-assembly.ts';
import type { WasmMemory } from './web-assembly.ts';

/** Regions start at a cache line: no false sharing, and aligned vector loads. */
export const REGION_ALIGNMENT = 64;
const HUGE_PAGE_BYTES = 2 * 2 ** 20;

const MAX_PAGES = 65536;
const MAX_BYTES = MAX_PAGES * PAGE_BYTES;
const MIN_TRIED_PAGES = 256;

export interface SpaceOptions {
  /** Most bytes of the space, a maximum: less is taken when the system refuses. Default 4 GiB. */
  readonly maxBytes?: number;
  /**
   * Where named segments are: 'files' that other processes map, or 'within' this space, which then stands for the
   * memory of a whole simulated machine. Default 'files'.
   */
  readonly names?: 'files' | 'within';
}

export interface SegmentOptions {
  /**
   * Folder on a shared-memory file system that only this user can enter (mode 0700); others are refused. Default
   * /dev/shm/tributary-<uid>, which is made if it is not there.
   */
  readonly directory?: string;
  /** Whether creating first removes what dead owners left, which takes long among many segments. Default true. */
  readonly sweep?: boolean;
  /** Most bytes of a segment that is attached; a larger one is refused before it takes any room. Default: no limit. */
  readonly maxBytes?: number;
}

/** Where a segment lies; without a name it is private. */
export interface SegmentRange {
  readonly name?: string | undefined;
  readonly directory?: string | undefined;
  readonly byteOffset: number;
  readonly byteLength: number;
}

/** A typed range of the space. */
export interface Region<T extends DType = DType> {
  readonly dtype: T;
  /** Elements. */
  readonly length: number;
  /** Offset in the WebAssembly memory, which is what kernels take. */
  readonly byteOffset: number;
  readonly byteLength: number;
  /** Native address, which is what foreign functions take. */
  readonly address: bigint;
  /** Typed array on the shared memory. */
  readonly view: TypedArrayOf<T>;
  readonly space: SharedSpace;
  /** Elements `start` to `start + length` as a region of their own. */
  slice(start: number, length: number): Region<T>;
}

class SpaceRegion<T extends DType> implements Region<T> {
  readonly dtype: T;
  readonly length: number;
  readonly byteOffset: number;
  readonly space: SharedSpace;
  #view: TypedArrayOf<T> | undefined;

  constructor(space: SharedSpace, dtype: T, byteOffset: number, length: number) {
    this.space = space;
    this.dtype = dtype;
    this.byteOffset = byteOffset;
    this.length = length;
  }

  get byteLength(): number {
    return this.length * bytesPerElement(this.dtype);
  }

  get address(): bigint {
    return this.space.baseAddress + BigInt(this.byteOffset);
  }

  get view(): TypedArrayOf<T> {
    this.#view ??= typedArray(this.dtype, this.space.buffer, this.byteOffset, this.length);
    return this.#view;
  }

  slice(start: number, length: number): Region<T> {
    if (!isCount(start) || !isCount(length) || start + length > this.length) {
      throw new UsageError(
        'OUT_OF_BOUNDS',
        `elements ${start} to ${start + length} are outside a ${this.dtype} region of ${this.length} elements; slice within it`,
        { start, length, regionLength: this.length },
      );
    }
    const byteOffset = this.byteOffset + start * bytesPerElement(this.dtype);
    return new SpaceRegion(this.space, this.dtype, byteOffset, length);
  }
}

export class Segment {
  /** Undefined for a private segment. */
  readonly name: string | undefined;
  /** Folder of a named segment's file. */
  readonly directory: string | undefined;
  /** Bytes for data; the header of a named segment is not counted. */
  readonly byteLength: number;
  /** Offset of the first byte of data in the WebAssembly memory. */
  readonly byteOffset: number;
  readonly space: SharedSpace;
  readonly #release: () => void;
  #allocatedBytes = 0;
  #closed = false;

  /** Use the methods of `SharedSpace`. */
  constructor(space: SharedSpace, range: SegmentRange, release: () => void) {
    this.space = space;
    this.name = range.name;
    this.directory = range.directory;
    this.byteOffset = range.byteOffset;
    this.byteLength = range.byteLength;
    this.#release = release;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** The next free, 64-byte aligned region. Processes that allocate in the same order get the same ranges. */
  allocate<T extends DType>(dtype: T, length: number): Region<T> {
    checkElements(dtype, length);
    const start = alignUp(this.#allocatedBytes, REGION_ALIGNMENT);
    const end = start + length * bytesPerElement(dtype);
    if (end > this.byteLength) {
      throw new UsageError(
        'OUT_OF_SHARED_MEMORY',
        `${length} elements of ${dtype} do not fit: ${Math.max(0, this.byteLength - start)} of ${this.byteLength} bytes of ${this.#title()} are left; create it larger`,
        {
          segment: this.name,
          dtype,
          length,
          byteLength: this.byteLength,
          allocatedBytes: this.#allocatedBytes,
        },
      );
    }
    const region = this.region(dtype, start, length);
    this.#allocatedBytes = end;
    return region;
  }

  /** A region at a place that is known already, for instance from the segment's owner. */
  region<T extends DType>(dtype: T, byteOffsetInSegment: number, length: number): Region<T> {
    checkElements(dtype, length);
    if (this.#closed) {
      throw new UsageError('OUT_OF_BOUNDS', `${this.#title()} is closed; take regions before closing it`, {
        segment: this.name,
      });
    }
    const size = bytesPerElement(dtype);
    if (!isCount(byteOffsetInSegment) || byteOffsetInSegment % size !== 0) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `byte offset ${byteOffsetInSegment} is no multiple of the ${size} bytes of ${dtype}; align it`,
        { byteOffsetInSegment, dtype },
      );
    }
    if (byteOffsetInSegment + length * size > this.byteLength) {
      throw new UsageError(
        'OUT_OF_BOUNDS',
        `${length} elements of ${dtype} at byte ${byteOffsetInSegment} reach outside the ${this.byteLength} bytes of ${this.#title()}; check offset and length`,
        { segment: this.name, dtype, length, byteOffsetInSegment, byteLength: this.byteLength },
      );
    }
    return new SpaceRegion(this.space, dtype, this.byteOffset + byteOffsetInSegment, length);
  }

  /** Where a region of this segment starts, as `region` takes it in another process. */
  offsetOf(region: Region): number {
    return region.byteOffset - this.byteOffset;
  }

  /** Gives the range back; the owner of a named segment also removes its name. May be called again. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#release();
  }

  #title(): string {
    return this.name === undefined ? 'the private segment' : `segment '${this.name}'`;
  }
}

/** By name, the range and how many segments of it are open. */
type NamesWithin = Map<string, { readonly range: SegmentRange; users: number }>;

export class SharedSpace {
  readonly memory: WasmMemory;
  readonly #buffer: SharedArrayBuffer;
  readonly #ranges: RangeTable;
  readonly #named = new Set<Segment>();
  #lastNamed: Segment | undefined;
  /** By name, where named segments are within the space. */
  #within: NamesWithin | undefined;
  #baseAddress: bigint | undefined;

  private constructor(memory: WasmMemory, buffer: SharedArrayBuffer) {
    this.memory = memory;
    this.#buffer = buffer;
    this.#ranges = new RangeTable(buffer);
  }

  static create(options: SpaceOptions = {}): SharedSpace {
    const maxBytes = options.maxBytes ?? MAX_BYTES;
    checkBytes('maxBytes', maxBytes, MAX_BYTES);
    const wanted = Math.max(2, Math.ceil(maxBytes / PAGE_BYTES));
    let refusal: unknown;
    for (let pages = wanted; pages === wanted || pages >= MIN_TRIED_PAGES; pages = Math.floor(pages / 2)) {
      try {
        const memory = new webAssembly.Memory({ initial: pages, maximum: pages, shared: true });
        const space = new SharedSpace(memory, memory.buffer as SharedArrayBuffer);
        space.#ranges.initialise();
        if (options.names === 'within') space.#within = new Map();
        return space;
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        refusal = error;
      }
    }
    throw new UsageError(
      'OUT_OF_SHARED_MEMORY',
      `the system refuses even ${MIN_TRIED_PAGES * PAGE_BYTES} bytes of address space; raise the limit (ulimit -v) or close other spaces`,
      { maxBytes },
      refusal,
    );
  }

  /** The same space in another thread of the process, from its `memory`. */
  static fromMemory(memory: WasmMemory): SharedSpace {
    const buffer = memory.buffer;
    if (!(buffer instanceof SharedArrayBuffer) || buffer.byteLength < 2 * PAGE_BYTES) {
      throw new UsageError('INVALID_ARGUMENT', 'the memory is not shared; pass the memory of a SharedSpace');
    }
    const space = new SharedSpace(memory, buffer);
    if (!space.#ranges.isInitialised) {
      throw new UsageError('INVALID_ARGUMENT', 'the memory holds no space; pass the memory of a SharedSpace');
    }
    return space;
  }

  get buffer(): SharedArrayBuffer {
    return this.#buffer;
  }

  /** Bytes that all segments can take together. */
  get capacityBytes(): number {
    return this.#ranges.capacityBytes;
  }

  /** Segments that can be open at a time. */
  get maxRanges(): number {
    return this.#ranges.maxRanges;
  }

  /** Native address of byte 0 of the memory. */
  get baseAddress(): bigint {
    this.#baseAddress ??= native().addressOf(new Uint8Array(this.#buffer));
    return this.#baseAddress;
  }

  /** A new named segment, zeroed, that other processes can attach; this process owns it. */
  createSegment(name: string, byteLength: number, options: SegmentOptions = {}): Segment {
    checkBytes('byteLength', byteLength, MAX_BYTES);
    if (this.#within) return this.#createWithin(this.#within, name, byteLength);
    const directory = options.directory ?? defaultSegmentDirectory();
    const byteOffset = this.#ranges.take(byteLength + HEADER_BYTES);
    return this.#orRelease(byteOffset, () => {
      const file = createSegmentFile(directory, name, byteLength, options.sweep);
      try {
        return this.#map(name, directory, byteOffset, file, () => unlinkSegmentFile(directory, file));
      } catch (error) {
        unlinkSegmentFile(directory, file);
        throw error;
      }
    });
  }

  /** Maps the segment that another process created. */
  attachSegment(name: string, options: SegmentOptions = {}): Segment {
    if (this.#within) return this.#attachWithin(this.#within, name);
    const directory = options.directory ?? defaultSegmentDirectory();
    const file = openSegmentFile(directory, name);
    const { maxBytes = Infinity } = options;
    let byteOffset: number;
    try {
      if (file.byteLength > maxBytes) throw tooLarge(name, file.byteLength, maxBytes);
      byteOffset = this.#ranges.take(file.byteLength + HEADER_BYTES);
    } catch (error) {
      closeSync(file.fd);
      throw error;
    }
    return this.#orRelease(byteOffset, () => this.#map(name, directory, byteOffset, file, () => undefined));
  }

  /** A private segment, zeroed, which needs nothing native; a large one is put on huge pages where there are any. */
  allocate(byteLength: number): Segment {
    checkBytes('byteLength', byteLength, MAX_BYTES);
    const byteOffset = this.#ranges.take(byteLength);
    if (byteLength >= HUGE_PAGE_BYTES && hasNative()) {
      native().preferHugePages(this.baseAddress + BigInt(byteOffset), byteLength);
    }
    return new Segment(this, { byteOffset, byteLength }, () => this.#giveBack(byteOffset, byteLength));
  }

  /**
   * A segment that another thread of this process has mapped, so that this object knows it as well. Nothing is mapped
   * or owned: `close` only forgets it, and must be called before the other thread closes the segment itself.
   */
  adoptSegment(range: SegmentRange): Segment {
    checkRange(range.byteOffset, range.byteLength, this.#buffer.byteLength);
    const segment = new Segment(this, range, () => this.#forget(segment));
    if (segment.name !== undefined) this.#named.add(segment);
    return segment;
  }

  /** Gives back a private segment that another thread of this process allocated and handed over. */
  releaseRange({ byteOffset, byteLength }: Pick<SegmentRange, 'byteOffset' | 'byteLength'>): void {
    checkRange(byteOffset, byteLength, this.#buffer.byteLength);
    this.#giveBack(byteOffset, byteLength);
  }

  /** The open named segment around a region, if this object created, attached or adopted it. */
  segmentAt(region: Region): Segment | undefined {
    if (region.space.buffer !== this.#buffer) return undefined;
    if (this.#lastNamed && holds(this.#lastNamed, region)) return this.#lastNamed;
    for (const segment of this.#named) {
      if (holds(segment, region)) return (this.#lastNamed = segment);
    }
    return undefined;
  }

  #createWithin(names: NamesWithin, name: string, byteLength: number): Segment {
    if (names.has(name)) {
      throw new UsageError('SEGMENT_EXISTS', `segment '${name}' exists; choose another name`, { name });
    }
    const range = { name, byteOffset: this.#ranges.take(byteLength), byteLength };
    names.set(name, { range, users: 0 });
    return this.#attachWithin(names, name, () => names.delete(name));
  }

  #attachWithin(names: NamesWithin, name: string, onClose?: () => void): Segment {
    const known = names.get(name);
    if (known === undefined) {
      throw new UsageError('SEGMENT_NOT_FOUND', `there is no segment '${name}'; check the name`, { name });
    }
    known.users++;
    const segment = new Segment(this, known.range, () => {
      this.#forget(segment);
      onClose?.();
      if (--known.users === 0) this.#giveBack(known.range.byteOffset, known.range.byteLength);
    });
    this.#named.add(segment);
    return segment;
  }

  #map(name: string, directory: string, byteOffset: number, file: SegmentFile, onClose: () => void): Segment {
    const fileBytes = file.byteLength + HEADER_BYTES;
    const errno = native().mapShared(this.baseAddress + BigInt(byteOffset), fileBytes, file.fd);
    closeSync(file.fd);
    if (errno !== 0) {
      // A failed fixed mapping may already have removed what was there.
      this.#clear(byteOffset, fileBytes);
      throw new UsageError(
        'OUT_OF_SHARED_MEMORY',
        `${file.path} (${fileBytes} bytes) cannot be mapped: errno ${errno}; check the limits on locked and mapped memory`,
        { path: file.path, fileBytes, errno },
      );
    }
    const range = { name, directory, byteOffset: byteOffset + HEADER_BYTES, byteLength: file.byteLength };
    const segment = new Segment(this, range, () => {
      this.#forget(segment);
      this.#giveBack(byteOffset, fileBytes);
      onClose();
    });
    this.#named.add(segment);
    return segment;
  }

  #forget(segment: Segment): void {
    this.#named.delete(segment);
    if (this.#lastNamed === segment) this.#lastNamed = undefined;
  }

  #orRelease<T>(byteOffset: number, action: () => T): T {
    try {
      return action();
    } catch (error) {
      this.#ranges.release(byteOffset);
      throw error;
    }
  }

  #giveBack(byteOffset: number, byteLength: number): void {
    this.#clear(byteOffset, byteLength);
    this.#ranges.release(byteOffset);
  }

  #clear(byteOffset: number, byteLength: number): void {
    if (byteLength === 0) return;
    if (!hasNative()) {
      new Uint8Array(this.#buffer, byteOffset, byteLength).fill(0);
      return;
    }
    const errno = native().mapAnonymous(this.baseAddress + BigInt(byteOffset), byteLength);
    if (errno !== 0) {
      throw new InternalError(
        'BROKEN_INVARIANT',
        `fresh memory could not be put over ${byteLength} bytes at ${byteOffset} of the space: errno ${errno}; restart the process`,
        { byteOffset, byteLength, errno },
      );
    }
  }
}

function tooLarge(name: string, actual: number, expected: number): UsageError {
  return new UsageError(
    'OUT_OF_SHARED_MEMORY',
    `segment '${name}' has ${actual} bytes where ${Math.max(0, expected)} more may be taken; use a smaller one, or ask for a larger quota (maxBytes of createService, --max-bytes)`,
    { segment: name, expected, actual },
  );
}

/** An empty region at the end of a segment is not in it: it may be the beginning of the next one. */
function holds(segment: Segment, { byteOffset, byteLength }: Region): boolean {
  const start = byteOffset - segment.byteOffset;
  return start >= 0 && start < segment.byteLength && start + byteLength <= segment.byteLength;
}
