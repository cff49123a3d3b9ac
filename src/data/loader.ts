/**
 * The contract of the loaders: batches of a dataset in the order of a `BatchOrder`. Two implementations give the
 * same bytes: `DirectLoader` gathers in the caller's thread, `Prefetcher` in another one, ahead of time.
 * Invariant: `state` is the position after the last batch that was delivered, never that of prefetched ones.
 */
import { UsageError } from '../base/index.ts';
import { checkTarget, sampleSize } from './dataset.ts';
import type { BatchArray, Dataset } from './dataset.ts';
import { batchPart } from './sample-order.ts';
import type { BatchOrder, Draw, SampleOrderState } from './sample-order.ts';

export interface Batch {
  /** The ids of the samples. */
  readonly samples: Uint32Array;
  /** The number of samples: smaller than asked in the last batch of an epoch, 0 if this part got none. */
  readonly size: number;
  /** The number of samples in the whole batch, over all parts. */
  readonly batchSize: number;
  readonly epoch: number;
  /** Whether this is the last batch of its epoch. */
  readonly last: boolean;
  /** By column name, `size` samples each. */
  readonly columns: Readonly<Record<string, BatchArray>>;
}

export type BatchTargets = Readonly<Record<string, BatchArray>>;

export interface LoaderOptions {
  readonly dataset: Dataset;
  /** The loader draws from it and must be the only one to do so. */
  readonly order: BatchOrder;
  /** The samples of a batch, over all parts. */
  readonly batchSize: number;
  /**
   * Deliver only one rank's share of each batch (`batchPart`), or its share of a share. Default:
   * the whole.
   */
  readonly part?: Part;
  /** The columns to deliver. Default: all. */
  readonly columns?: readonly string[];
}

export interface Part {
  readonly index: number;
  readonly count: number;
  /** Of what it is a part. Default: of the batch. */
  readonly of?: Part | undefined;
}

export function partOf(samples: Uint32Array, { index, count, of }: Part): Uint32Array {
  return batchPart(of ? partOf(samples, of) : samples, index, count);
}

export interface BatchLoader {
  /** The order's position after the last delivered batch: what a checkpoint stores. */
  readonly state: SampleOrderState;
  /**
   * The next batch, valid until the following call. A column named in `targets` is written to the start of its
   * array there (which may lie on shared WebAssembly memory) and the batch's column is a view of it.
   */
  next(targets?: BatchTargets): Batch;
  /** Ends the loader and its thread, if it has one. */
  close(): Promise<void>;
}

/** The options of a loader, checked, with the sizes that follow from them. */
export class BatchLayout {
  readonly dataset: Dataset;
  readonly batchSize: number;
  /** The largest number of samples that this part can get. */
  readonly capacity: number;
  readonly columns: readonly {
    readonly name: string;
    readonly sampleSize: number;
    readonly integer: boolean;
  }[];
  readonly #order: BatchOrder;
  readonly #part: Part;

  constructor({ dataset, order, batchSize, part = { index: 0, count: 1 }, columns }: LoaderOptions) {
    if (!Number.isInteger(batchSize) || batchSize < 1) {
      throw new UsageError('INVALID_ARGUMENT', `batchSize is ${batchSize}; give a whole number above 0.`, {
        batchSize,
      });
    }
    if (order.length !== dataset.length) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `The order visits ${order.length} samples but the dataset has ${dataset.length}; make it for this dataset.`,
        { expected: dataset.length, actual: order.length },
      );
    }
    this.dataset = dataset;
    this.batchSize = batchSize;
    this.#order = order;
    this.#part = part;
    this.capacity = partOf(new Uint32Array(Math.min(batchSize, dataset.length)), part).length;
    this.columns = (columns ?? dataset.columns.map((column) => column.name)).map((name) => {
      const column = dataset.column(name);
      return { name, sampleSize: sampleSize(column.sampleShape), integer: column.dtype === 'int32' };
    });
  }

  /** The bytes of a full batch as delivered. */
  get bytes(): number {
    return this.columns.reduce((sum, column) => sum + column.sampleSize * 4 * this.capacity, 0);
  }

  draw(): Draw & { readonly batchSize: number; readonly state: SampleOrderState } {
    const { samples, epoch, last } = this.#order.draw(this.batchSize);
    const mine = partOf(samples, this.#part);
    return { samples: mine, batchSize: samples.length, epoch, last, state: this.#order.state };
  }

  checkTargets(targets: BatchTargets, size: number): void {
    const known = this.columns.map((column) => column.name);
    for (const [name, target] of Object.entries(targets)) {
      if (!known.includes(name)) {
        throw new UsageError(
          'INVALID_ARGUMENT',
          `There is a target for "${name}", but the loader delivers ${known.join(', ')}; remove the target or load the column.`,
          { column: name, known },
        );
      }
      const column = this.dataset.column(name);
      checkTarget(column, size * sampleSize(column.sampleShape), target);
    }
  }
}
