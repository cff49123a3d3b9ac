/**
 * What one core holds of one key between the pushes of all workers and the word to apply them, in memory of its own, so that
 * the norm of the whole gradient can be known before anything changes. It updates nothing. Invariants: at most one step
 * is held; what is held does not depend on the workers' memory any more, and stays to be looked at until the next step is
 * held; the numbers are those that an update without holding would use, bit by bit.
 */
import type { Kernels } from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { Aggregator } from './aggregation.ts';
import type { DenseContribution, RowsContribution } from './contribution.ts';
import type { ChunkRange } from './key.ts';

/** Where the memory comes from, and goes back to. */
export interface HeldMemory {
  allocate(bytes: number): Segment;
  free(segment: Segment): void;
}

/** A combined gradient, still to be multiplied with its scale; 'nothing' counts as a step, but changes no value. */
export type Held =
  | { readonly kind: 'nothing' }
  | {
      readonly kind: 'dense';
      /** One for each chunk of the key. */
      readonly chunks: readonly Region<'float32'>[];
      /** The chunks, one after the other. */
      readonly all: Region<'float32'>;
      readonly gradientScale: number;
    }
  | {
      readonly kind: 'rows';
      /** Ascending and unique. */
      readonly indices: Region<'int32'>;
      readonly rows: Region<'float32'>;
      readonly rowCount: number;
      readonly gradientScale: number;
    };

export class HeldGradient {
  readonly #kernels: Kernels;
  readonly #memory: HeldMemory;
  readonly #aggregator: Aggregator;
  #dense: DenseRoom | undefined;
  #rows: RowRoom | undefined;
  /** What was held last, taken or not. */
  #last: { readonly step: number; readonly content: Held } | undefined;
  #isTaken = false;
  /** Of what was held last, for those who ask again after it was applied. */
  sumOfSquares = 0;

  constructor(kernels: Kernels, memory: HeldMemory, aggregator: Aggregator) {
    this.#kernels = kernels;
    this.#memory = memory;
    this.#aggregator = aggregator;
  }

  /** Number of the push that is held; undefined: none is. */
  get step(): number | undefined {
    return this.#isTaken ? undefined : this.#last?.step;
  }

  /**
   * What was held of this step, if none was held since: also when it was taken, because a worker may look at it while a
   * faster one has applied it already.
   */
  ofStep(step: number): Held | undefined {
    return this.#last?.step === step ? this.#last.content : undefined;
  }

  /** The step counts, but nobody's values can be used. */
  holdNothing(step: number): void {
    this.#keep(step, { kind: 'nothing' }, 0);
  }

  /** Without contributions: zeros. `transform`: what is done to each chunk before it is held. */
  holdDense(
    step: number,
    ranges: readonly ChunkRange[],
    cut: DenseParts,
    transform?: (chunk: Region<'float32'>, number: number) => void,
  ): void {
    const { chunks, all } = (this.#dense ??= this.#denseRoom(ranges));
    let gradientScale = 1;
    let sumOfSquares = 0;
    chunks.forEach((chunk, i) => {
      const sources = cut.chunks.map((parts) => parts[i]!);
      gradientScale = this.#aggregator.chunkInto(chunk, sources, cut.samples);
      if (transform) {
        gradientScale = this.#scaled(chunk, gradientScale);
        transform(chunk, i);
      }
      sumOfSquares += this.#kernels.sumOfSquares(chunk);
    });
    this.#keep(step, { kind: 'dense', chunks, all, gradientScale }, sumOfSquares * gradientScale ** 2);
  }

  holdRows(
    step: number,
    rowLength: number,
    tableRows: number,
    contributions: readonly RowsContribution[],
    transform?: (all: Pick<Extract<Held, { kind: 'rows' }>, 'indices' | 'rows' | 'rowCount'>) => void,
  ): void {
    // Rows that nobody names have a gradient of zeros, which is what their absence means.
    if (contributions.every(({ indices }) => indices.length === 0)) return this.holdNothing(step);
    const planned = this.#aggregator.planRows(contributions, rowLength, tableRows);
    const { plan, unique } = planned;
    const room = this.#rowRoom(unique, rowLength);
    const indices = room.indices.slice(0, unique);
    const rows = room.rows.slice(0, unique * rowLength);
    this.#kernels.copy(indices, plan.indices.slice(0, unique));
    let gradientScale = this.#aggregator.sumRowsInto(rows, contributions, planned, rowLength);
    if (transform) {
      gradientScale = this.#scaled(rows, gradientScale);
      transform({ indices, rows, rowCount: unique });
    }
    const sumOfSquares = this.#kernels.sumOfSquares(rows) * gradientScale ** 2;
    this.#keep(step, { kind: 'rows', indices, rows, rowCount: unique, gradientScale }, sumOfSquares);
  }

  /** Hands over what is held, which is then held no more; valid until the next step is. */
  take(): Held | undefined {
    if (this.#isTaken) return undefined;
    this.#isTaken = true;
    return this.#last?.content;
  }

  forget(): void {
    this.#last = undefined;
  }

  close(): void {
    this.forget();
    if (this.#dense) this.#memory.free(this.#dense.segment);
    if (this.#rows) this.#memory.free(this.#rows.segment);
    this.#dense = undefined;
    this.#rows = undefined;
  }

  /** The factor is in the values then. */
  #scaled(values: Region<'float32'>, scale: number): number {
    if (scale !== 1) this.#kernels.scale(values, scale);
    return 1;
  }

  #keep(step: number, content: Held, sumOfSquares: number): void {
    this.#last = { step, content };
    this.#isTaken = false;
    this.sumOfSquares = sumOfSquares;
  }

  /** Of the core's own elements only, one chunk after the other. */
  #denseRoom(ranges: readonly ChunkRange[]): DenseRoom {
    const elements = ranges.reduce((sum, { length }) => sum + length, 0);
    const segment = this.#memory.allocate(Math.max(LINE_BYTES, 4 * elements));
    const all = segment.allocate('float32', elements);
    let at = 0;
    return { segment, all, chunks: ranges.map(({ length }) => all.slice((at += length) - length, length)) };
  }

  #rowRoom(count: number, rowLength: number): RowRoom {
    const known = this.#rows;
    if (known && known.indices.length >= count) return known;
    if (known) this.#memory.free(known.segment);
    this.#rows = undefined;
    const segment = this.#memory.allocate(4 * count * (1 + rowLength) + 2 * LINE_BYTES);
    const indices = segment.allocate('int32', count);
    return (this.#rows = { segment, indices, rows: segment.allocate('float32', count * rowLength) });
  }
}

/** The chunks of each contribution, and how much it weighs. */
export interface DenseParts {
  readonly chunks: readonly (readonly DenseContribution['gradient'][])[];
  readonly samples: readonly number[];
}

interface DenseRoom {
  readonly segment: Segment;
  readonly all: Region<'float32'>;
  readonly chunks: readonly Region<'float32'>[];
}

interface RowRoom {
  readonly segment: Segment;
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
}

const LINE_BYTES = 64;
