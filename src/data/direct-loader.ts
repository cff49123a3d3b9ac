/** The loader without a thread: gathers each batch when it is asked for, into the targets or its own buffers. */
import type { BatchArray } from './dataset.ts';
import { BatchLayout } from './loader.ts';
import type { Batch, BatchLoader, BatchTargets, LoaderOptions } from './loader.ts';
import type { SampleOrderState } from './sample-order.ts';

export class DirectLoader implements BatchLoader {
  readonly #layout: BatchLayout;
  /** Made when first needed: a caller that always gives targets needs none. */
  readonly #own = new Map<string, BatchArray>();
  #state: SampleOrderState;

  constructor(options: LoaderOptions) {
    this.#layout = new BatchLayout(options);
    this.#state = options.order.state;
  }

  get state(): SampleOrderState {
    return this.#state;
  }

  next(targets: BatchTargets = {}): Batch {
    const layout = this.#layout;
    // Before the draw: a wrong target must not cost a batch.
    layout.checkTargets(targets, layout.capacity);
    const { samples, batchSize, epoch, last, state } = layout.draw();
    const columns: Record<string, BatchArray> = {};
    for (const { name, sampleSize } of layout.columns) {
      const array = targets[name] ?? this.#buffer(name);
      layout.dataset.read(samples, name, array);
      columns[name] = array.subarray(0, samples.length * sampleSize);
    }
    this.#state = state;
    return { samples, size: samples.length, batchSize, epoch, last, columns };
  }

  close(): Promise<void> {
    this.#own.clear();
    return Promise.resolve();
  }

  #buffer(name: string): BatchArray {
    let buffer = this.#own.get(name);
    if (buffer === undefined) {
      const column = this.#layout.columns.find((one) => one.name === name)!;
      const length = column.sampleSize * this.#layout.capacity;
      buffer = column.integer ? new Int32Array(length) : new Float32Array(length);
      this.#own.set(name, buffer);
    }
    return buffer;
  }
}
