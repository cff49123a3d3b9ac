/**
 * Sums what workers pushed. Tall (PHub, section 3.2.2): one chunk across all workers at a time, so that sum and update stay
 * in the cache of one core. Rows are gathered and summed by index. Invariant: sums are in the order of the
 * contributions.
 */
import { allocateRowPlan, planRows, rowPlanBytes, SUM_SCRATCH_ELEMENTS, sumRows } from '../kernels/index.ts';
import type { Kernels, RowPlan } from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { RowsContribution } from './contribution.ts';

const SOURCES_A_PASS = 8;

/** sum: of the gradients; mean: each weighs by its samples. */
export type Combine = 'sum' | 'mean';

/**
 * tall: a chunk across all workers, then the next; wide: all chunks of one worker, then of the next, and the update at
 * last, which is slower because nothing stays in the cache; for comparison only.
 */
export type Aggregation = 'tall' | 'wide';

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
  /** Its first elements, by their number. */
  readonly #sums = new Map<number, Region<'float32'>>();
  #rows: RowScratch | undefined;
  /** The sum of a whole key. */
  #wide: { readonly segment: Segment; readonly region: Region<'float32'> } | undefined;

  constructor(kernels: Kernels, combine: Combine) {
    this.#kernels = kernels;
    this.#combine = combine;
  }

  /** Whether a chunk of these contributions is their plain sum, and by what it is to be multiplied; else undefined. */
  sumScale(samples: readonly number[]): number | undefined {
    if (samples.length < 2 || samples.length > SOURCES_A_PASS) return undefined;
    if (this.#combine === 'sum') return 1;
    return samples.every((count) => count === samples[0]) ? 1 / samples.length : undefined;
  }

  /** Room for as much of a sum as a rule that sums by itself needs. */
  get scratch(): Region<'float32'> {
    return this.#chunkScratch(SUM_SCRATCH_ELEMENTS);
  }

  /** One chunk of all contributions together, given with their samples; valid until the next call. */
  chunk(sources: readonly Region<'float32'>[], samples: readonly number[]): Scaled<Region<'float32'>> {
    const first = sources[0]!;
    if (sources.length === 1) return { gradient: first, gradientScale: 1 };
    const sum = this.#chunkScratch(first.length);
    if (this.#combine === 'sum' || samples.every((count) => count === samples[0])) {
      this.#kernels.sum(sum, sources);
      return { gradient: sum, gradientScale: this.#combine === 'sum' ? 1 : 1 / sources.length };
    }
    const total = samples.reduce((all, count) => all + count, 0);
    this.#kernels.fill(sum, 0);
    sources.forEach((source, i) => this.#kernels.axpy(sum, samples[i]! / total, source));
    return { gradient: sum, gradientScale: 1 };
  }

  /** The sums of all chunks, worker after worker; valid until the next call. */
  wide(contributions: readonly (readonly Region<'float32'>[])[]): Region<'float32'>[] {
    const elements = contributions[0]!.reduce((sum, { length }) => sum + length, 0);
    if (this.#wide === undefined || this.#wide.region.length < elements) {
      this.#wide?.segment.close();
      const segment = this.#kernels.space.allocate(4 * elements);
      this.#wide = { segment, region: segment.allocate('float32', elements) };
    }
    const { region } = this.#wide;
    let at = 0;
    const sums = contributions[0]!.map(({ length }) => region.slice((at += length) - length, length));
    contributions.forEach((chunks, worker) =>
      chunks.forEach((chunk, i) => {
        if (worker === 0) this.#kernels.copy(sums[i]!, chunk);
        else this.#kernels.sum(sums[i]!, [sums[i]!, chunk]);
      }),
    );
    return sums;
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
    this.#wide?.segment.close();
    this.#scratch = undefined;
    this.#wide = undefined;
    this.#rows = undefined;
  }

  #chunkScratch(length: number): Region<'float32'> {
    if (this.#scratch === undefined || this.#scratch.region.length < length) {
      this.#scratch?.segment.close();
      const segment = this.#kernels.space.allocate(4 * length);
      this.#scratch = { segment, region: segment.allocate('float32', length) };
      this.#sums.clear();
    }
    let sum = this.#sums.get(length);
    if (sum === undefined) this.#sums.set(length, (sum = this.#scratch.region.slice(0, length)));
    return sum;
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
