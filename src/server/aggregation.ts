/**
 * Sums what workers pushed. Tall (PHub, section 3.2.2): one chunk across all workers at a time, so that sum and update stay
 * in the cache of one core. Rows are gathered and summed by index. Invariant: sums are in the order of the
 * contributions.
 */
import { allocateRowPlan, planRows, rowPlanBytes, sumRows } from '../kernels/index.ts';
import type { Kernels, RowPlan } from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { DenseContribution, RowsContribution } from './contribution.ts';

/** sum: of the gradients; mean: each weighs by its samples. */
export type Combine = 'sum' | 'mean';

/** What a sum has still to be multiplied with. */
export interface Scaled<T> {
  readonly gradient: T;
  readonly gradientScale: number;
}

export class Aggregator {
  readonly #kernels: Kernels;
  readonly #combine: Combine;
  /** The sum of one chunk. */
  #scratch: { readonly segment: Segment; readonly region: Region<'float32'> } | undefined;
  #rows: RowScratch | undefined;

  constructor(kernels: Kernels, combine: Combine) {
    this.#kernels = kernels;
    this.#combine = combine;
  }

  /** Elements `start` to `start + length` of all contributions together; valid until the next call. */
  chunk(
    contributions: readonly DenseContribution[],
    start: number,
    length: number,
  ): Scaled<Region<'float32'>> {
    const total = contributions.reduce((sum, { samples }) => sum + samples, 0);
    const first = contributions[0]!;
    const isEven = contributions.every(({ samples }) => samples === first.samples);
    if (contributions.length === 1) {
      return { gradient: first.gradient.slice(start, length), gradientScale: 1 };
    }
    const sum = this.#chunkScratch(length);
    if (this.#combine === 'sum' || isEven) {
      const sources = contributions.map(({ gradient }) => gradient.slice(start, length));
      this.#kernels.sum(sum, sources);
      return { gradient: sum, gradientScale: this.#combine === 'sum' ? 1 : 1 / contributions.length };
    }
    this.#kernels.fill(sum, 0);
    for (const { gradient, samples } of contributions) {
      this.#kernels.axpy(sum, samples / total, gradient.slice(start, length));
    }
    return { gradient: sum, gradientScale: 1 };
  }

  /** The rows of all contributions, each index once; valid until the next call. */
  rows(
    contributions: readonly RowsContribution[],
    rowLength: number,
    tableRows: number,
  ): Scaled<{
    readonly indices: Region<'int32'>;
    readonly rows: Region<'float32'>;
    readonly rowCount: number;
  }> {
    const total = contributions.reduce((sum, { samples }) => sum + samples, 0);
    const count = contributions.reduce((sum, { indices }) => sum + indices.length, 0);
    const scratch = this.#rowScratch(count, rowLength);
    let at = 0;
    for (const { indices, rows, samples } of contributions) {
      const into = scratch.gathered.slice(at * rowLength, indices.length * rowLength);
      this.#kernels.copy(scratch.indices.slice(at, indices.length), indices);
      this.#kernels.copy(into, rows.slice(0, into.length));
      if (this.#combine === 'mean' && into.length > 0) this.#kernels.scale(into, samples / total);
      at += indices.length;
    }
    const rowCount = planRows(this.#kernels, {
      indices: scratch.indices,
      count,
      tableRows,
      plan: scratch.plan,
    });
    sumRows(this.#kernels, {
      plan: scratch.plan,
      unique: rowCount,
      rows: scratch.gathered.slice(0, count * rowLength),
      rowLength,
      rowsOut: scratch.summed,
    });
    return {
      gradient: { indices: scratch.plan.indices, rows: scratch.summed, rowCount },
      gradientScale: 1,
    };
  }

  close(): void {
    this.#scratch?.segment.close();
    this.#rows?.segment.close();
    this.#scratch = undefined;
    this.#rows = undefined;
  }

  #chunkScratch(length: number): Region<'float32'> {
    if (this.#scratch === undefined || this.#scratch.region.length < length) {
      this.#scratch?.segment.close();
      const segment = this.#kernels.space.allocate(4 * length);
      this.#scratch = { segment, region: segment.allocate('float32', length) };
    }
    return this.#scratch.region.slice(0, length);
  }

  #rowScratch(count: number, rowLength: number): RowScratch {
    const known = this.#rows;
    if (known && known.indices.length >= count && known.gathered.length >= count * rowLength) return known;
    known?.segment.close();
    const elements = count * rowLength;
    const segment = this.#kernels.space.allocate(rowPlanBytes(count) + 4 * (count + 2 * elements) + 3 * 64);
    this.#rows = {
      segment,
      plan: allocateRowPlan(segment, count),
      indices: segment.allocate('int32', count),
      gathered: segment.allocate('float32', elements),
      summed: segment.allocate('float32', elements),
    };
    return this.#rows;
  }
}

interface RowScratch {
  readonly segment: Segment;
  readonly plan: RowPlan;
  /** Indices of all contributions, one after the other, and their rows. */
  readonly indices: Region<'int32'>;
  readonly gathered: Region<'float32'>;
  readonly summed: Region<'float32'>;
}
