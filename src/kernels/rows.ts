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

export interface CopyRowsOptions {
  readonly target: Region<'float32'>;
  readonly source: Region<'float32'>;
  readonly rowLength: number;
  readonly indices: Region<'int32'>;
}

/** target[j] = source[indices[j]]; nothing is copied when an index is outside the source. */
export function gatherRows(kernels: Kernels, options: CopyRowsOptions): void {
  copyRows(kernels, 'gatherRows', options, options.source, options.target);
}

/** target[indices[j]] = source[j]; nothing is copied when an index is outside the target. */
export function scatterRows(kernels: Kernels, options: CopyRowsOptions): void {
  copyRows(kernels, 'scatterRows', options, options.target, options.source);
}

function copyRows(
  kernels: Kernels,
  what: 'gatherRows' | 'scatterRows',
  { target, source, rowLength, indices }: CopyRowsOptions,
  table: Region<'float32'>,
  rows: Region<'float32'>,
): void {
  const { space, exports } = kernels;
  checkCount(`rowLength of ${what}`, rowLength, 1);
  checkRegion(space, `table of ${what}`, table, 'float32');
  checkRegion(space, `indices of ${what}`, indices, 'int32');
  checkCapacity(space, `rows of ${what}`, rows, 'float32', indices.length * rowLength);
  const tableRows = Math.floor(table.length / rowLength);
  const bad = exports.copyRows(
    ...([what === 'scatterRows' ? 1 : 0, target.byteOffset, source.byteOffset] as const),
    ...([tableRows, rowLength, indices.byteOffset, indices.length] as const),
  );
  if (bad >= 0) throw badIndex(what, indices, bad, tableRows);
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
