/**
 * Sparse gradients of embedding tables: many rows for few distinct tokens become one row for each. The plan
 * depends on the indices alone (it can be made while the backward pass runs); the sum follows it. Invariant:
 * unique indices ascend and rows are added in the order of their positions, so the result is deterministic.
 */
import { UsageError } from '../base/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import { checkCapacity, checkCount, checkRegion, checkSeparate } from './argument-checks.ts';
import type { Kernels } from './kernels.ts';

const RADIX_WORDS = 256;

/** Where a plan is kept. After `planRows` the first `unique` indices are valid. */
export interface RowPlan {
  /** Most positions that can be planned. */
  readonly capacity: number;
  /** Unique indices, ascending. */
  readonly indices: Region<'int32'>;
  /** Where the positions of each unique index start in `order`; one more than unique indices. */
  readonly starts: Region<'int32'>;
  /** Positions, grouped by index. */
  readonly order: Region<'int32'>;
  readonly scratch: Region<'int32'>;
}

/** Bytes that `allocateRowPlan` takes from a segment, alignment included. */
export function rowPlanBytes(capacity: number): number {
  return 4 * (6 * capacity + 1 + RADIX_WORDS) + 4 * 64;
}

/** `indices` can be given, so that they are written where they are sent from. */
export function allocateRowPlan(segment: Segment, capacity: number, indices?: Region<'int32'>): RowPlan {
  return {
    capacity,
    indices: indices ?? segment.allocate('int32', capacity),
    starts: segment.allocate('int32', capacity + 1),
    order: segment.allocate('int32', capacity),
    scratch: segment.allocate('int32', 3 * capacity + RADIX_WORDS),
  };
}

export interface PlanRowsOptions {
  /** One index for each position. */
  readonly indices: Region<'int32'>;
  /** Positions to plan. Default all. */
  readonly count?: number;
  /** Rows of the table; an index outside is an error. */
  readonly tableRows: number;
  /** Index whose positions are dropped. Default none. */
  readonly paddingIndex?: number | undefined;
  readonly plan: RowPlan;
}

/** Sorts the positions by index; returns the number of unique indices. */
export function planRows(kernels: Kernels, options: PlanRowsOptions): number {
  const { indices, plan, tableRows, paddingIndex = -1 } = options;
  const { space } = kernels;
  const count = options.count ?? indices.length;
  checkCount('count of planRows', count);
  checkCount('tableRows of planRows', tableRows);
  checkCapacity(space, 'indices of planRows', indices, 'int32', count);
  checkCapacity(space, 'plan.indices', plan.indices, 'int32', count);
  checkCapacity(space, 'plan.starts', plan.starts, 'int32', count + 1);
  checkCapacity(space, 'plan.order', plan.order, 'int32', count);
  checkCapacity(space, 'plan.scratch', plan.scratch, 'int32', 3 * count + RADIX_WORDS);
  const unique = kernels.exports.planRows(
    indices.byteOffset,
    count,
    tableRows,
    paddingIndex,
    plan.indices.byteOffset,
    plan.starts.byteOffset,
    plan.order.byteOffset,
    plan.scratch.byteOffset,
  );
  if (unique < 0) throw badIndex('planRows', indices, -1 - unique, tableRows);
  return unique;
}

export interface NumberRowsOptions {
  readonly plan: RowPlan;
  /** What `planRows` returned, for all positions: without padding. */
  readonly unique: number;
  /** Receives, for each position that was planned, the place of its index among the unique ones. */
  readonly numbers: Region<'int32'>;
}

/** Looking up these numbers in the unique rows is looking up the planned indices in the table. */
export function numberRows(kernels: Kernels, { plan, unique, numbers }: NumberRowsOptions): void {
  const { space, exports } = kernels;
  checkCount('unique of numberRows', unique);
  checkRegion(space, 'numbers of numberRows', numbers, 'int32');
  checkCapacity(space, 'plan.starts', plan.starts, 'int32', unique + 1);
  checkCapacity(space, 'plan.order', plan.order, 'int32', numbers.length);
  const [starts, order] = [plan.starts.byteOffset, plan.order.byteOffset];
  if (exports.numberRows(unique, starts, order, numbers.byteOffset, numbers.length)) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `the plan of ${unique} unique indices is not one of ${numbers.length} positions; call planRows for these positions first, without padding`,
    { unique, positions: numbers.length },
  );
}

export interface SumRowsOptions {
  readonly plan: RowPlan;
  /** What `planRows` returned. */
  readonly unique: number;
  /** Gradient rows, one for each position that was planned: [count, rowLength]. */
  readonly rows: Region<'float32'>;
  /** Elements of a row. */
  readonly rowLength: number;
  /** Receives [unique, rowLength]. */
  readonly rowsOut: Region<'float32'>;
}

/** Adds the rows of each unique index. */
export function sumRows(kernels: Kernels, options: SumRowsOptions): void {
  const { plan, unique, rows, rowLength, rowsOut } = options;
  const { space } = kernels;
  checkCount('unique of sumRows', unique);
  checkCount('rowLength of sumRows', rowLength, 1);
  checkRegion(space, 'rows of sumRows', rows, 'float32');
  checkCapacity(space, 'rowsOut of sumRows', rowsOut, 'float32', unique * rowLength);
  checkCapacity(space, 'plan.starts', plan.starts, 'int32', unique + 1);
  checkRegion(space, 'plan.order', plan.order, 'int32');
  checkSeparate('rows and rowsOut of sumRows', rows, rowsOut);
  const rowCount = Math.floor(rows.length / rowLength);
  const fits = kernels.exports.sumRows(
    rows.byteOffset,
    rowCount,
    rowLength,
    unique,
    plan.starts.byteOffset,
    plan.order.byteOffset,
    plan.order.length,
    rowsOut.byteOffset,
  );
  if (fits !== 0) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `the plan of ${unique} unique indices does not fit ${rowCount} rows; call planRows for these rows first`,
    { unique, rowCount },
  );
}

export interface AddRowsOptions {
  /** Dense table, [tableRows, rowLength]. */
  readonly target: Region<'float32'>;
  readonly rowLength: number;
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  /** Rows to add. Default all indices. */
  readonly rowCount?: number;
}

/** target[indices[j]] += rows[j]; nothing is added when an index is outside the table. */
export function addRows(kernels: Kernels, options: AddRowsOptions): void {
  const { target, rowLength, indices, rows } = options;
  const count = options.rowCount ?? indices.length;
  checkCount('rowCount of addRows', count);
  checkCount('rowLength of addRows', rowLength, 1);
  checkRegion(kernels.space, 'target of addRows', target, 'float32');
  checkCapacity(kernels.space, 'indices of addRows', indices, 'int32', count);
  checkCapacity(kernels.space, 'rows of addRows', rows, 'float32', count * rowLength);
  const tableRows = Math.floor(target.length / rowLength);
  const bad = kernels.exports.addRows(
    target.byteOffset,
    tableRows,
    rowLength,
    indices.byteOffset,
    count,
    rows.byteOffset,
  );
  if (bad >= 0) throw badIndex('addRows', indices, bad, tableRows);
}

export interface BlendRowsOptions {
  readonly target: Region<'float32'>;
  readonly keep: number;
  /** A table like the target. */
  readonly x: Region<'float32'>;
  readonly share: number;
  readonly rowLength: number;
  readonly indices: Region<'int32'>;
  readonly rowCount: number;
  /** How often; the same bits as one after the other. Default 1. */
  readonly times?: number | undefined;
}

/** target[row] = keep * target[row] + share * x[row] for the rows of these indices, which are unique. */
export function blendRows(kernels: Kernels, options: BlendRowsOptions): void {
  const { target, keep, x, share, rowLength, indices, rowCount, times = 1 } = options;
  const { space, exports } = kernels;
  checkCount('rowCount of blendRows', rowCount);
  checkCount('rowLength of blendRows', rowLength, 1);
  checkCount('times of blendRows', times);
  checkRegion(space, 'target of blendRows', target, 'float32');
  checkRegion(space, 'x of blendRows', x, 'float32', target.length);
  checkCapacity(space, 'indices of blendRows', indices, 'int32', rowCount);
  const tableRows = Math.floor(target.length / rowLength);
  const bad = exports.firstBadIndex(indices.byteOffset, rowCount, tableRows);
  if (bad >= 0) throw badIndex('blendRows', indices, bad, tableRows);
  const places = [target.byteOffset, keep, x.byteOffset, share] as const;
  exports.blendRows(...places, indices.byteOffset, rowCount, rowLength, times);
}

export interface CopyRowsOptions {
  readonly target: Region<'float32'>;
  /** The row of the target for each that is copied. Default: one after the other. */
  readonly into?: Region<'int32'> | undefined;
  readonly source: Region<'float32'>;
  /** The row of the source for each that is copied. Default: one after the other. */
  readonly from?: Region<'int32'> | undefined;
  /** Rows to copy. Default as many as there are indices. */
  readonly count?: number | undefined;
  readonly rowLength: number;
}

/** target[into[j]] = source[from[j]]; nothing is copied when an index is outside. */
export function copyRows(kernels: Kernels, options: CopyRowsOptions): void {
  const { target, into, source, from, rowLength } = options;
  const { space, exports } = kernels;
  const count = options.count ?? (into ?? from)?.length ?? Math.floor(source.length / rowLength);
  checkCount('rowLength of copyRows', rowLength, 1);
  checkCount('count of copyRows', count);
  const place = (what: string, rows: Region<'float32'>, indices: Region<'int32'> | undefined): number => {
    checkRegion(space, `${what} of copyRows`, rows, 'float32');
    if (indices) checkCapacity(space, `indices of the ${what} of copyRows`, indices, 'int32', count);
    else checkCapacity(space, `${what} of copyRows`, rows, 'float32', count * rowLength);
    const tableRows = Math.floor(rows.length / rowLength);
    const bad = indices ? exports.firstBadIndex(indices.byteOffset, count, tableRows) : -1;
    if (bad >= 0) throw badIndex('copyRows', indices!, bad, tableRows);
    return indices?.byteOffset ?? 0;
  };
  const [to, at] = [place('target', target, into), place('source', source, from)];
  exports.copyRows(target.byteOffset, to, source.byteOffset, at, count, rowLength);
}

export function badIndex(
  what: string,
  indices: Region<'int32'>,
  position: number,
  tableRows: number,
): UsageError {
  const index = indices.view[position];
  return new UsageError(
    'OUT_OF_BOUNDS',
    `index ${index} at position ${position} of ${what} is not right for a table of ${tableRows} rows; give indices from 0 to ${tableRows - 1}, ascending and unique where rows are updated`,
    { what, index, position, tableRows },
  );
}
