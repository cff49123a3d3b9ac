/**
 * Which ranges of a shared WebAssembly memory are taken. The table lives in the first 64 KiB of the memory
 * itself, so that all threads of the process agree on it; it knows nothing of segments or files. Terms: a
 * page is 64 KiB (also a multiple of every system's page size). Invariant: ranges are sorted, disjoint and
 * never include page 0; every access holds the lock word, which names the thread that holds it.
 */
import { threadId } from 'node:worker_threads';
import { InternalError, UsageError } from '../base/index.ts';

export const PAGE_BYTES = 65536;

const MAGIC = 0x54726962;
const WORD_MAGIC = 0;
const WORD_LOCK = 1;
const WORD_COUNT = 2;
const FIRST_RANGE = 16;
const MAX_RANGES = (PAGE_BYTES / 4 - FIRST_RANGE) / 2;
const LOCK_TIMEOUT_MS = 10_000;
const LOCK_PAUSE_MS = 10;

export class RangeTable {
  readonly #words: Int32Array;
  readonly #pages: number;
  readonly #lockTimeoutMs: number;

  /** `lockTimeoutMs`: longest wait for another thread, which holds the lock for microseconds. Default 10,000. */
  constructor(buffer: SharedArrayBuffer, lockTimeoutMs = LOCK_TIMEOUT_MS) {
    this.#lockTimeoutMs = lockTimeoutMs;
    this.#words = new Int32Array(buffer, 0, PAGE_BYTES / 4);
    this.#pages = buffer.byteLength / PAGE_BYTES;
  }

  /** Bytes that ranges can take in all. */
  get capacityBytes(): number {
    return (this.#pages - 1) * PAGE_BYTES;
  }

  /** How many ranges it can keep apart. */
  get maxRanges(): number {
    return MAX_RANGES;
  }

  get isInitialised(): boolean {
    return Atomics.load(this.#words, WORD_MAGIC) === MAGIC;
  }

  initialise(): void {
    Atomics.store(this.#words, WORD_MAGIC, MAGIC);
  }

  /** Takes the first free range that is large enough; returns its byte offset. */
  take(byteLength: number): number {
    const wanted = Math.max(1, Math.ceil(byteLength / PAGE_BYTES));
    return this.#locked((words) => {
      const count = words[WORD_COUNT]!;
      let used = 0;
      let start = 1;
      let place = -1;
      for (let i = 0; i < count; i++) {
        const first = words[FIRST_RANGE + 2 * i]!;
        const pages = words[FIRST_RANGE + 2 * i + 1]!;
        if (place < 0 && first - start >= wanted) place = i;
        if (place < 0) start = first + pages;
        used += pages;
      }
      if (place < 0 && this.#pages - start >= wanted) place = count;
      if (place < 0 || count >= MAX_RANGES) throw this.#full(wanted, used, count);
      const at = FIRST_RANGE + 2 * place;
      words.copyWithin(at + 2, at, FIRST_RANGE + 2 * count);
      words[at] = start;
      words[at + 1] = wanted;
      words[WORD_COUNT] = count + 1;
      return start * PAGE_BYTES;
    });
  }

  /** Gives a range back, named by the byte offset that `take` returned. */
  release(byteOffset: number): void {
    this.#locked((words) => {
      const count = words[WORD_COUNT]!;
      for (let i = 0; i < count; i++) {
        const at = FIRST_RANGE + 2 * i;
        if (words[at]! * PAGE_BYTES !== byteOffset) continue;
        words.copyWithin(at, at + 2, FIRST_RANGE + 2 * count);
        words[WORD_COUNT] = count - 1;
        return;
      }
      throw new InternalError(
        'BROKEN_INVARIANT',
        `no range starts at byte ${byteOffset} of the space; please report it`,
        { byteOffset },
      );
    });
  }

  #full(wantedPages: number, usedPages: number, ranges: number): UsageError {
    const facts = {
      wantedBytes: wantedPages * PAGE_BYTES,
      usedBytes: usedPages * PAGE_BYTES,
      capacityBytes: this.capacityBytes,
      ranges,
    };
    const fits = usedPages + wantedPages < this.#pages;
    return fits
      ? new UsageError(
          'OUT_OF_SHARED_MEMORY',
          `the space has ${facts.capacityBytes - facts.usedBytes} bytes free, but no free range of ${facts.wantedBytes} bytes (${ranges} ranges are taken); allocate large segments first or close unused ones`,
          facts,
        )
      : new UsageError(
          'MODEL_TOO_LARGE',
          `${facts.wantedBytes} bytes were asked, ${facts.usedBytes} of ${facts.capacityBytes} bytes of the space are taken, and WebAssembly cannot address more than 4 GiB; use a smaller model, fewer buffers or more workers' machines`,
          facts,
        );
  }

  #locked<T>(action: (words: Int32Array) => T): T {
    const words = this.#words;
    const deadline = performance.now() + this.#lockTimeoutMs;
    for (;;) {
      const holder = Atomics.compareExchange(words, WORD_LOCK, 0, threadId + 1);
      if (holder === 0) break;
      if (performance.now() >= deadline) {
        throw new InternalError(
          'BROKEN_INVARIANT',
          `thread ${threadId} waited ${this.#lockTimeoutMs} ms for the range table of the space, which thread ${holder - 1} holds; that thread ended while it held it, so restart the process`,
          { holderThread: holder - 1 },
        );
      }
      Atomics.wait(words, WORD_LOCK, holder, LOCK_PAUSE_MS);
    }
    try {
      return action(words);
    } finally {
      Atomics.store(words, WORD_LOCK, 0);
      Atomics.notify(words, WORD_LOCK, 1);
    }
  }
}
