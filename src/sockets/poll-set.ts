/**
 * The array of `struct pollfd` with which one system call asks after many sockets. It lies in the shared space, where
 * both JavaScript and the kernel can write. Entries may be built anew for each call, or kept and changed. Invariant:
 * results are those of the last `wait`, by the order of adding, but that the last entry takes the place of one that is
 * removed.
 */
import { UsageError } from '../base/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import type { Libc } from './libc.ts';

const CAPACITY = 8192;
/** The descriptor, then 16 bits of wanted and 16 bits of found events. */
const WORDS = 2;

/** In the place of a descriptor: nothing ever happens on it. */
export const NOTHING = -1;

export class PollSet {
  readonly #segment: Segment;
  readonly #region: Region<'int32'>;
  readonly #address: number;
  readonly #libc: Libc;
  #count = 0;
  /** On how many something happened. */
  #readyCount = 0;

  constructor(space: SharedSpace, libc: Libc) {
    this.#libc = libc;
    this.#segment = space.allocate(CAPACITY * WORDS * 4);
    this.#region = this.#segment.allocate('int32', CAPACITY * WORDS);
    this.#address = Number(this.#region.address);
  }

  clear(): void {
    this.#count = 0;
  }

  /** Returns its number. */
  add(fd: number, events: number): number {
    if (this.#count === CAPACITY) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `more than ${CAPACITY} connections are open; use fewer peers or connectionsPerPeer`,
        { capacity: CAPACITY },
      );
    }
    this.set(this.#count, fd, events);
    return this.#count++;
  }

  set(index: number, fd: number, events: number): void {
    this.#region.view[WORDS * index] = fd;
    this.#region.view[WORDS * index + 1] = events;
  }

  /** The last one gets its number. */
  remove(index: number): void {
    const last = WORDS * --this.#count;
    this.#region.view.copyWithin(WORDS * index, last, last + WORDS);
  }

  /** Sleeps until something happens on one of them, at most so long; returns on how many. */
  wait(timeoutMs: number): number {
    this.#readyCount = Math.max(0, this.#libc.poll(this.#address, this.#count, Math.ceil(timeoutMs)));
    return this.#readyCount;
  }

  /** The numbers of those on which something happened. */
  ready(): number[] {
    const ready: number[] = [];
    const { view } = this.#region;
    for (let i = 0; i < this.#count && ready.length < this.#readyCount; i++) {
      if (view[WORDS * i + 1]! >>> 16 !== 0) ready.push(i);
    }
    return ready;
  }

  /** What happened on the one that was added as number `index`. */
  found(index: number): number {
    return this.#region.view[WORDS * index + 1]! >>> 16;
  }

  close(): void {
    this.#segment.close();
  }
}
