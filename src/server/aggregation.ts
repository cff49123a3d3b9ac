/**
 * Sums what workers pushed. Tall (PHub, section 3.2.2): one chunk across all workers at a time, so that sum and update stay
 * in the cache of one core. Rows are gathered and summed by index. Invariant: sums are in the order of the
 * contributions.
 */
import {
  allocateRowPlan,
  copyRows,
  planRows,
  rowPlanBytes,
  SUM_SCRATCH_ELEMENTS,
  sumRows,
} from '../kernels/index.ts';
import type { Kernels, RowPlan } from '../kernels/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
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
  readonly #space: Pick<SharedSpace, 'allocate'>;
  readonly #combine: Combine;
  /** The sum of one chunk. */
  #scratch: { readonly segment: Segment; readonly region: Region<'float32'> } | undefined;
  /** Its first elements, by their number. */
  readonly #sums = new Map<number, Region<'float32'>>();
  #rows: RowScratch | undefined;
  #rowSums: RowSums | undefined;
  /** The sum of a whole key. */
  #wide: { readonly segment: Segment; readonly region: Region<'float32'> } | undefined;

  /** `space`: where its scratch memory comes from. */
  constructor(kernels: Kernels, combine: Combine, space: Pick<SharedSpace, 'allocate'> = kernels.space) {
    this.#kernels = kernels;
    this.#space = space;
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

  /** Room for the sum of any of these chunks. */
  reserveChunks(chunks: readonly { readonly length: number }[]): void {
    const most = chunks.reduce((length, chunk) => Math.max(length, chunk.length), 0);
    this.#chunkScratch(Math.max(SUM_SCRATCH_ELEMENTS, most));
  }

  /** Room for the sums of all these chunks. */
  reserveWide(chunks: readonly { readonly length: number }[]): void {
    this.#wideScratch(chunks.reduce((sum, { length }) => sum + length, 0));
  }

  /** Room for planning rows and, unless a plain sum needs none, for adding them up. */
  reserveRows(contributions: readonly RowsContribution[], rowLength: number, isPlainSumFree: boolean): void {
    const count = contributions.reduce((sum, { indices }) => sum + indices.length, 0);
    this.#rowScratch(count, rowLength);
    const isPlain = this.#isPlain(contributions.map(({ samples }) => samples));
    if (!isPlainSumFree || !isPlain) this.#sumScratch(count, rowLength);
  }

  /** One chunk of all contributions together, given with their samples; valid until the next call. */
  chunk(sources: readonly Region<'float32'>[], samples: readonly number[]): Scaled<Region<'float32'>> {
    const first = sources[0]!;
    if (sources.length === 1) return { gradient: first, gradientScale: 1 };
    const gradient = this.#chunkScratch(first.length);
    return { gradient, gradientScale: this.chunkInto(gradient, sources, samples) };
  }

  /** Room for a chunk, or rows; valid until the next call. */
  chunkRoom(length: number): Region<'float32'> {
    this.#chunkScratch(Math.max(length, this.#scratch?.region.length ?? 0));
    return this.#scratch!.region.slice(0, length);
  }

  /** The same in memory of the caller, zeros without sources; returns what it has still to be multiplied with. */
  chunkInto(
    sum: Region<'float32'>,
    sources: readonly Region<'float32'>[],
    samples: readonly number[],
  ): number {
    if (sources.length === 1) {
      this.#kernels.copy(sum, sources[0]!);
      return 1;
    }
    if (sources.length > 0 && this.#isPlain(samples)) {
      this.#kernels.sum(sum, sources);
      return this.#plainScale(sources.length);
    }
    const total = samples.reduce((all, count) => all + count, 0);
    this.#kernels.fill(sum, 0);
    sources.forEach((source, i) => this.#kernels.axpy(sum, samples[i]! / total, source));
    return 1;
  }

  /** All chunks of the contributions together, worker after worker; valid until the next call. */
  wide(
    contributions: readonly (readonly Region<'float32'>[])[],
    samples: readonly number[],
  ): Scaled<readonly Region<'float32'>[]> {
    const elements = contributions[0]!.reduce((sum, { length }) => sum + length, 0);
    const region = this.#wideScratch(elements);
    let at = 0;
    const sums = contributions[0]!.map(({ length }) => region.slice((at += length) - length, length));
    const isPlain = contributions.length === 1 || this.#isPlain(samples);
    const total = samples.reduce((all, count) => all + count, 0);
    if (!isPlain) for (const sum of sums) this.#kernels.fill(sum, 0);
    contributions.forEach((chunks, worker) =>
      chunks.forEach((chunk, i) => {
        if (!isPlain) this.#kernels.axpy(sums[i]!, samples[worker]! / total, chunk);
        else if (worker === 0) this.#kernels.copy(sums[i]!, chunk);
        else this.#kernels.sum(sums[i]!, [sums[i]!, chunk]);
      }),
    );
    return { gradient: sums, gradientScale: isPlain ? this.#plainScale(contributions.length) : 1 };
  }

  /** Which rows of the contributions belong together, and what their sum is multiplied with, if it is a plain sum. */
  planRows(contributions: readonly RowsContribution[], rowLength: number, tableRows: number): PlannedRows {
    const count = contributions.reduce((sum, { indices }) => sum + indices.length, 0);
    const scratch = this.#rowScratch(count, rowLength);
    let at = 0;
    for (const { indices } of contributions) {
      this.#kernels.copy(scratch.indices.slice(at, indices.length), indices);
      at += indices.length;
    }
    const { plan, indices, addresses, row } = scratch;
    const unique = planRows(this.#kernels, { indices, count, tableRows, plan });
    const samples = contributions.map((one) => one.samples);
    const gradientScale = this.#isPlain(samples) ? this.#plainScale(samples.length) : undefined;
    return { count, plan, unique, addresses, scratch: row, gradientScale };
  }

  /** The sums of planned rows, one after the other; valid until the next call. */
  sumRows(
    contributions: readonly RowsContribution[],
    planned: PlannedRows,
    rowLength: number,
  ): Region<'float32'> {
    const { summed } = this.#sumScratch(planned.count, rowLength);
    this.#sumRows(summed, contributions, planned, rowLength, this.#combine === 'mean');
    return summed;
  }

  /** The same in memory of the caller; returns what they have still to be multiplied with. */
  sumRowsInto(
    target: Region<'float32'>,
    contributions: readonly RowsContribution[],
    planned: PlannedRows,
    rowLength: number,
  ): number {
    const { gradientScale } = planned;
    this.#sumRows(target, contributions, planned, rowLength, gradientScale === undefined);
    return gradientScale ?? 1;
  }

  #sumRows(
    rowsOut: Region<'float32'>,
    contributions: readonly RowsContribution[],
    { count, plan, unique }: PlannedRows,
    rowLength: number,
    isWeighed: boolean,
  ): void {
    const total = contributions.reduce((sum, { samples }) => sum + samples, 0);
    const { gathered } = this.#sumScratch(count, rowLength);
    let at = 0;
    for (const { indices, rows, positions: from, samples } of contributions) {
      const target = gathered.slice(at * rowLength, indices.length * rowLength);
      copyRows(this.#kernels, { target, source: rows, from, count: indices.length, rowLength });
      if (isWeighed && target.length > 0) this.#kernels.scale(target, samples / total);
      at += indices.length;
    }
    const rows = gathered.slice(0, count * rowLength);
    sumRows(this.#kernels, { plan, unique, rows, rowLength, rowsOut });
  }

  /** What a plain sum of so many contributions is to be multiplied with. */
  #plainScale(count: number): number {
    return this.#combine === 'sum' ? 1 : 1 / count;
  }

  /** Whether nothing but a common factor lies between the sum and what is wanted. */
  #isPlain(samples: readonly number[]): boolean {
    return this.#combine === 'sum' || samples.every((count) => count === samples[0]);
  }

  close(): void {
    this.#scratch?.segment.close();
    this.#rows?.segment.close();
    this.#rowSums?.segment.close();
    this.#wide?.segment.close();
    this.#scratch = undefined;
    this.#rowSums = undefined;
    this.#wide = undefined;
    this.#rows = undefined;
  }

  #chunkScratch(length: number): Region<'float32'> {
    if (this.#scratch === undefined || this.#scratch.region.length < length) {
      this.#scratch?.segment.close();
      this.#scratch = undefined;
      const segment = this.#space.allocate(4 * length);
      this.#scratch = { segment, region: segment.allocate('float32', length) };
      this.#sums.clear();
    }
    let sum = this.#sums.get(length);
    if (sum === undefined) this.#sums.set(length, (sum = this.#scratch.region.slice(0, length)));
    return sum;
  }

  #wideScratch(elements: number): Region<'float32'> {
    if (this.#wide === undefined || this.#wide.region.length < elements) {
      this.#wide?.segment.close();
      this.#wide = undefined;
      const segment = this.#space.allocate(4 * elements);
      this.#wide = { segment, region: segment.allocate('float32', elements) };
    }
    return this.#wide.region;
  }

  #rowScratch(count: number, rowLength: number): RowScratch {
    const known = this.#rows;
    if (known && known.indices.length >= count && known.row.length >= rowLength) return known;
    known?.segment.close();
    this.#rows = undefined;
    const segment = this.#space.allocate(rowPlanBytes(count) + 4 * (3 * count + rowLength) + 3 * 64);
    this.#rows = {
      segment,
      plan: allocateRowPlan(segment, count),
      indices: segment.allocate('int32', count),
      addresses: segment.allocate('int32', 2 * count),
      row: segment.allocate('float32', rowLength),
    };
    return this.#rows;
  }

  #sumScratch(count: number, rowLength: number): RowSums {
    const elements = count * rowLength;
    const known = this.#rowSums;
    if (known && known.gathered.length >= elements) return known;
    known?.segment.close();
    this.#rowSums = undefined;
    const segment = this.#space.allocate(8 * elements + 2 * 64);
    const [gathered, summed] = [segment.allocate('float32', elements), segment.allocate('float32', elements)];
    return (this.#rowSums = { segment, gathered, summed });
  }
}

/** Rows of several contributions, by index; valid until the next are planned. */
export interface PlannedRows {
  /** Of rows, those of the same index included. */
  readonly count: number;
  readonly plan: RowPlan;
  readonly unique: number;
  /** What the sums have still to be multiplied with; undefined: the rows weigh differently. */
  readonly gradientScale: number | undefined;
  readonly addresses: Region<'int32'>;
  /** One row. */
  readonly scratch: Region<'float32'>;
}

interface RowScratch {
  readonly segment: Segment;
  readonly plan: RowPlan;
  /** Indices of all contributions, one after the other. */
  readonly indices: Region<'int32'>;
  readonly addresses: Region<'int32'>;
  readonly row: Region<'float32'>;
}

interface RowSums {
  readonly segment: Segment;
  /** The rows of all contributions, one after the other. */
  readonly gathered: Region<'float32'>;
  readonly summed: Region<'float32'>;
}
