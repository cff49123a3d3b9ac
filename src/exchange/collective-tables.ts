/**
 * One table whose gradient goes by collectives: by its touched rows, which are gathered and summed by every worker, or as a whole,
 * for a table of which a step touches nearly all. When is the business of `collective-exchange.ts`.
 * Invariant: rows are summed in the order of the ranks, so that all workers get the same bits.
 */
import type { CommunicationThread, OnGroup, TimedHandle } from '../communication/index.ts';
import { copyRows, planRows, sumRows, type Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { SparsePlace } from '../runtime/index.ts';

/** Where the rows of a gradient lie. */
export type RowsPlace = Pick<SparsePlace, 'rowLength' | 'tableRows' | 'plan' | 'rows' | 'count'>;

export class RowsTable {
  readonly place: RowsPlace;
  readonly #indices: Region<'int32'>;
  readonly #rows: Region<'float32'>;
  #count = 0;

  constructor(thread: CommunicationThread, place: RowsPlace) {
    this.place = place;
    const capacity = place.plan.capacity;
    this.#indices = thread.allocate('int32', capacity);
    this.#rows = thread.allocate('float32', capacity * place.rowLength);
  }

  /** Of the rows that this rank gives, with their numbers. */
  get ownBytes(): number {
    const { count, rowLength } = this.place;
    return 4 * count * (1 + rowLength);
  }

  /** `counts`: rows of each rank of the group. `share`: what this rank's rows weigh. */
  gather(
    thread: CommunicationThread,
    kernels: Kernels,
    counts: readonly number[],
    share: number,
    onGroup: OnGroup = {},
  ): TimedHandle[] {
    const { rowLength, plan, count, rows } = this.place;
    const own = rows.slice(0, count * rowLength);
    if (own.length > 0) kernels.scale(own, share);
    this.#count = counts.reduce((sum, one) => sum + one, 0);
    const elements = counts.map((one) => one * rowLength);
    return [
      thread.allGather(plan.indices.slice(0, count), this.#indices.slice(0, this.#count), {
        ...onGroup,
        counts,
      }),
      thread.allGather(own, this.#rows.slice(0, this.#count * rowLength), { ...onGroup, counts: elements }),
    ];
  }

  sum(kernels: Kernels): void {
    const { place } = this;
    const { plan, rowLength, tableRows, rows: rowsOut } = place;
    place.count = planRows(kernels, { indices: this.#indices, count: this.#count, tableRows, plan });
    sumRows(kernels, { plan, unique: place.count, rows: this.#rows, rowLength, rowsOut });
  }

  /** After the last operation has ended. */
  close(thread: CommunicationThread): Promise<void> {
    return thread.free(this.#indices, this.#rows);
  }
}

export class WholeTable {
  readonly place: SparsePlace;
  readonly #whole: Region<'float32'>;

  constructor(thread: CommunicationThread, place: SparsePlace) {
    this.place = place;
    this.#whole = thread.allocate('float32', place.tableRows * place.rowLength);
  }

  get byteLength(): number {
    return this.#whole.byteLength;
  }

  reduce(thread: CommunicationThread, kernels: Kernels, samples: number, onGroup: OnGroup = {}): TimedHandle {
    const { place } = this;
    const { rowLength, plan, count, rows } = place;
    kernels.fill(this.#whole, 0);
    copyRows(kernels, {
      ...{ target: this.#whole, into: plan.indices.slice(0, count), rowLength },
      source: rows.slice(0, count * rowLength),
    });
    place.whole = this.#whole;
    return thread.allReduce(this.#whole, { op: 'mean', weight: samples, ...onGroup });
  }

  /** After the last operation has ended. */
  close(thread: CommunicationThread): Promise<void> {
    this.place.whole = undefined;
    return thread.free(this.#whole);
  }
}
