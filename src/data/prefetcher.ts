/**
 * The loader with a thread: a ring of slots on SharedArrayBuffers that a worker thread fills while the caller
 * computes (a run of the compute engine blocks the caller's thread, so nothing asynchronous in it would get time).
 * The caller draws the ids, the thread only gathers, so the order and the bytes are those of `DirectLoader`.
 * Invariant: a slot belongs either to the thread (requested, not filled) or to the caller, never to both.
 */
import { Worker } from 'node:worker_threads';
import { InternalError, PeerError, UsageError } from '../base/index.ts';
import type { BatchArray } from './dataset.ts';
import { BatchLayout } from './loader.ts';
import type { Batch, BatchLoader, BatchTargets, LoaderOptions } from './loader.ts';
import { CONTROL_WORDS, ControlWord, ERROR_BYTES, PREFETCH_THREAD } from './prefetch-thread.ts';
import type { ThreadColumn, ThreadData } from './prefetch-thread.ts';
import type { SampleOrderState } from './sample-order.ts';

export interface PrefetcherOptions extends LoaderOptions {
  /** The number of slots: one is the caller's, the others are filled ahead. Default 2. */
  readonly depth?: number;
  /** How long `next` waits for the thread before it gives up, in milliseconds. Default 60,000. */
  readonly waitTimeoutMs?: number;
}

type Drawn = ReturnType<BatchLayout['draw']>;

export class Prefetcher implements BatchLoader {
  readonly #layout: BatchLayout;
  readonly #shared: ThreadData;
  readonly #worker: Worker;
  readonly #exited: Promise<void>;
  readonly #waitTimeoutMs: number;
  /** What was drawn for each slot. */
  readonly #drawn: Drawn[] = [];
  #state: SampleOrderState;
  #slot = 0;
  /** Slots taken so far (modulo 2^32). */
  #taken = 0;
  /** Whether the slot before `#slot` is still the caller's. */
  #held = false;
  #closed = false;

  constructor(options: PrefetcherOptions) {
    const { depth = 2, waitTimeoutMs = 60_000 } = options;
    if (!Number.isInteger(depth) || depth < 2 || !(waitTimeoutMs > 0)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `A prefetcher cannot have depth ${depth} and waitTimeoutMs ${waitTimeoutMs}; give at least 2 slots and more than 0 ms.`,
        { depth, waitTimeoutMs },
      );
    }
    this.#layout = new BatchLayout(options);
    this.#waitTimeoutMs = waitTimeoutMs;
    this.#state = options.order.state;
    this.#shared = shareWithThread(this.#layout, depth);
    for (let slot = 0; slot < depth; slot++) this.#request(slot);
    this.#worker = new Worker(PREFETCH_THREAD, {
      eval: true,
      workerData: this.#shared,
      execArgv: [],
      stdin: false,
    });
    this.#exited = new Promise((resolve) => this.#worker.once('exit', () => resolve()));
    this.#worker.on('error', (error) => this.#recordFailure(error));
    // A loader that was forgotten must not keep the process alive.
    this.#worker.unref();
  }

  get state(): SampleOrderState {
    return this.#state;
  }

  next(targets: BatchTargets = {}): Batch {
    if (this.#closed) {
      throw new UsageError('INVALID_ARGUMENT', 'The prefetcher is closed; make a new one.');
    }
    this.#layout.checkTargets(targets, this.#layout.capacity);
    const { requests, columns: shared } = this.#shared;
    if (this.#held) {
      this.#request((this.#slot + requests.length - 1) % requests.length);
      this.#held = false;
    }
    this.#awaitSlot();
    const slot = this.#slot;
    const { samples, batchSize, epoch, last, state } = this.#drawn[slot]!;
    const columns: Record<string, BatchArray> = {};
    let lent = false;
    for (const { name, sampleSize, slots } of shared) {
      const filled = slots[slot]!.subarray(0, samples.length * sampleSize);
      const target = targets[name];
      target?.set(filled);
      lent ||= target === undefined;
      columns[name] = target?.subarray(0, filled.length) ?? filled;
    }
    this.#state = state;
    this.#slot = (slot + 1) % requests.length;
    this.#taken = (this.#taken + 1) | 0;
    if (lent) this.#held = true;
    else this.#request(slot);
    return { samples, size: samples.length, batchSize, epoch, last, columns };
  }

  async close(): Promise<void> {
    if (!this.#closed) {
      this.#closed = true;
      const { control } = this.#shared;
      Atomics.store(control, ControlWord.CLOSED, 1);
      Atomics.add(control, ControlWord.REQUESTED, 1);
      Atomics.notify(control, ControlWord.REQUESTED);
      this.#worker.ref();
    }
    await this.#exited;
  }

  #request(slot: number): void {
    const { control, requests } = this.#shared;
    const drawn = this.#layout.draw();
    const request = requests[slot]!;
    this.#drawn[slot] = drawn;
    request[0] = drawn.samples.length;
    request.set(drawn.samples, 1);
    Atomics.add(control, ControlWord.REQUESTED, 1);
    Atomics.notify(control, ControlWord.REQUESTED);
  }

  #awaitSlot(): void {
    const { control } = this.#shared;
    const deadline = performance.now() + this.#waitTimeoutMs;
    for (;;) {
      const filled = Atomics.load(control, ControlWord.FILLED);
      const ready = (filled - this.#taken) | 0;
      if (ready > 0) {
        const failedBytes = Atomics.load(control, ControlWord.FAILED);
        if (failedBytes > 0 && ready === 1) throw this.#failure(failedBytes);
        return;
      }
      const remaining = deadline - performance.now();
      if (remaining <= 0) throw this.#late();
      Atomics.wait(control, ControlWord.FILLED, filled, remaining);
    }
  }

  #failure(bytes: number): InternalError {
    const message = new TextDecoder().decode(this.#shared.error.slice(0, bytes));
    return new InternalError(
      'BROKEN_INVARIANT',
      `The data thread failed: ${message}. Check the dataset and the order, or use a DirectLoader.`,
      { samples: [...this.#drawn[this.#slot]!.samples.subarray(0, 8)] },
    );
  }

  #late(): PeerError {
    return new PeerError(
      'TIMEOUT',
      `The data thread did not deliver a batch of ${this.#layout.capacity} samples within ${this.#waitTimeoutMs} ms. ` +
        'Raise waitTimeoutMs, or use a DirectLoader.',
      { waitTimeoutMs: this.#waitTimeoutMs, capacity: this.#layout.capacity },
    );
  }

  /** For a thread that died outside its own error handling: its event arrives when the caller yields. */
  #recordFailure(error: unknown): void {
    const { control, error: buffer } = this.#shared;
    const text = error instanceof Error ? error.message : String(error);
    const bytes = new TextEncoder().encode(text || 'unknown error').subarray(0, buffer.length);
    buffer.set(bytes);
    Atomics.store(control, ControlWord.FAILED, bytes.length);
    Atomics.add(control, ControlWord.FILLED, 1);
  }
}

function shareWithThread(layout: BatchLayout, depth: number): ThreadData {
  const { dataset, capacity } = layout;
  const slots = (count: number) => Array.from({ length: depth }, () => new SharedArrayBuffer(4 * count));
  const columns = layout.columns.map(({ name, sampleSize, integer }): ThreadColumn => ({
    name,
    sampleSize,
    data: dataset.column(name).data,
    table: dataset.deliveryTable(name),
    slots: slots(sampleSize * capacity).map((buffer) =>
      integer ? new Int32Array(buffer) : new Float32Array(buffer),
    ),
  }));
  return {
    control: new Int32Array(new SharedArrayBuffer(4 * CONTROL_WORDS)),
    error: new Uint8Array(new SharedArrayBuffer(ERROR_BYTES)),
    length: dataset.length,
    requests: slots(1 + capacity).map((buffer) => new Uint32Array(buffer)),
    columns,
  };
}
