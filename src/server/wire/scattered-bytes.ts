/**
 * Bytes that lie in several ranges of the space and travel as one: the body of a message, whose chunks are elsewhere in
 * memory. It hands the ranges that are still to come to the kernel, many in one call. Invariant: `left` is the sum
 * of what the ranges have not had yet.
 */
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import type { ByteRange, Libc } from '../../sockets/index.ts';

/** Ranges of one call; the kernel takes 1024. */
const VECTORS = 64;
const VECTOR_WORDS = 2;
/** Bytes of one call, few enough that connections take turns. */
const CALL_BYTES = 1024 * 1024;
/** name, name length, vectors, number of vectors, control, control length, flags. */
const MESSAGE_WORDS = 7;
const MESSAGE_VECTORS = 2;
const MESSAGE_COUNT = 3;

export class Scatter {
  readonly #ranges: readonly ByteRange[];
  #index = 0;
  /** Bytes of the current range that are done. */
  #done = 0;
  left: number;

  constructor(ranges: readonly ByteRange[]) {
    this.#ranges = ranges;
    this.left = ranges.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  /** Calls back with the next ranges, as many as fit; does not move on. */
  peek(maxRanges: number, maxBytes: number, visit: (byteOffset: number, bytes: number) => void): number {
    let bytes = 0;
    for (let i = this.#index, seen = 0; i < this.#ranges.length && seen < maxRanges; i++, seen++) {
      const { byteOffset, byteLength } = this.#ranges[i]!;
      const skip = i === this.#index ? this.#done : 0;
      const take = Math.min(byteLength - skip, maxBytes - bytes);
      if (take <= 0 && bytes > 0) break;
      visit(byteOffset + skip, take);
      bytes += take;
    }
    return bytes;
  }

  advance(bytes: number): void {
    this.left -= bytes;
    this.#done += bytes;
    while (this.#index < this.#ranges.length && this.#done >= this.#ranges[this.#index]!.byteLength) {
      this.#done -= this.#ranges[this.#index]!.byteLength;
      this.#index++;
    }
  }
}

/** The same bytes in as few ranges as possible. */
export function joined(ranges: readonly ByteRange[]): ByteRange[] {
  const result: { byteOffset: number; byteLength: number }[] = [];
  for (const { byteOffset, byteLength } of ranges) {
    const last = result.at(-1);
    if (last && last.byteOffset + last.byteLength === byteOffset) last.byteLength += byteLength;
    else result.push({ byteOffset, byteLength });
  }
  return result;
}

/** So many of the bytes that lie in the ranges, without the first. */
export function windowOf(ranges: readonly ByteRange[], first: number, byteLength: number): ByteRange[] {
  const window: ByteRange[] = [];
  let passed = 0;
  for (const range of ranges) {
    const from = Math.max(0, first - passed);
    const to = Math.min(range.byteLength, first + byteLength - passed);
    if (from < to) window.push({ byteOffset: range.byteOffset + from, byteLength: to - from });
    passed += range.byteLength;
  }
  return window;
}

/** The structures through which the kernel learns of ranges; one for a thread. */
export class KernelVectors {
  readonly #segment: Segment;
  readonly #words: Region<'float64'>;
  /** Each word as its lower and upper half: making 64-bit integers of JavaScript takes longer than the call. */
  readonly #halves: Uint32Array;
  readonly #base: number;
  readonly #vectors: number;
  readonly #message: number;
  readonly #libc: Libc;

  constructor(space: SharedSpace, libc: Libc) {
    this.#libc = libc;
    this.#segment = space.allocate(8 * (VECTORS * VECTOR_WORDS + MESSAGE_WORDS));
    this.#words = this.#segment.allocate('float64', VECTORS * VECTOR_WORDS + MESSAGE_WORDS);
    this.#halves = new Uint32Array(space.buffer, this.#words.byteOffset, 2 * this.#words.length);
    this.#base = Number(space.baseAddress);
    this.#vectors = Number(this.#words.address);
    this.#message = this.#vectors + 8 * VECTORS * VECTOR_WORDS;
    this.#set(VECTORS * VECTOR_WORDS + MESSAGE_VECTORS, this.#vectors);
  }

  /** Returns the bytes that came, or the negative errno. */
  receive(fd: number, scatter: Scatter): number {
    const count = this.#fill(scatter);
    return this.#libc.receiveRanges(fd, this.#vectors, count);
  }

  send(fd: number, scatter: Scatter): number {
    this.#set(VECTORS * VECTOR_WORDS + MESSAGE_COUNT, this.#fill(scatter));
    return this.#libc.sendMessage(fd, this.#message, false);
  }

  close(): void {
    this.#segment.close();
  }

  #set(word: number, value: number): void {
    this.#halves[2 * word] = value % 2 ** 32;
    this.#halves[2 * word + 1] = value / 2 ** 32;
  }

  #fill(scatter: Scatter): number {
    let count = 0;
    scatter.peek(VECTORS, CALL_BYTES, (byteOffset, bytes) => {
      this.#set(VECTOR_WORDS * count, this.#base + byteOffset);
      this.#set(VECTOR_WORDS * count + 1, bytes);
      count++;
    });
    return count;
  }
}
