/**
 * Rows of a table between the workers of a group: each adds up its own by index, so that an index leaves it once; then they
 * are brought together, on one rank or on all, and added up again. Only touched rows travel. Invariant: rows are
 * added in the order of the ranks, so that the same pushes give the same bits.
 */
import { allGather, allToAll } from '../collectives/index.ts';
import { planRows, sumRows } from '../kernels/index.ts';
import type { RowPlan } from '../kernels/index.ts';
import type { DType, Region } from '../memory/index.ts';
import type { Channel } from './collective-channel.ts';
import type { Keys, NonFinite, Table } from './collective-keys.ts';
import type { StoreTensor as Tensor } from './kv-store.ts';

/** Ascending indices, each once, and what they point at. */
export interface UniqueRows {
  readonly indices: Region<'int32'>;
  /** [indices.length, rowLength] */
  readonly rows: Region<'float32'>;
}

/** What one rank pushes. */
export interface RowsPush {
  readonly indices: Int32Array;
  readonly rows: Tensor;
  readonly samples: number;
}

/** How much of it counts. */
export interface Share {
  /** 0 for one whose values are left out. */
  readonly samples: number;
  readonly isUsable: boolean;
}

export interface GatheredRows extends UniqueRows {
  /** Of all ranks. */
  readonly samples: number;
  /** Ranks whose values were used. */
  readonly used: number;
}

/** Which of the positions in a list of indices name the same row. */
export interface IndexPlan {
  readonly unique: Region<'int32'>;
  readonly plan: RowPlan;
}

export function planIndices(channel: Channel, indices: Region<'int32'>, table: Table): IndexPlan {
  const plan = channel.takePlan(indices.length);
  const tableRows = table.length / table.rowLength;
  const count = planRows(channel.group.kernels, { indices, tableRows, plan });
  return { unique: plan.indices.slice(0, count), plan };
}

export function sumByIndex(
  channel: Channel,
  indices: Region<'int32'>,
  rows: Region<'float32'>,
  table: Table,
): UniqueRows {
  const { rowLength } = table;
  const { unique, plan } = planIndices(channel, indices, table);
  const rowsOut = channel.take('float32', unique.length * rowLength);
  sumRows(channel.group.kernels, { plan, unique: unique.length, rows, rowLength, rowsOut });
  return { indices: unique, rows: rowsOut };
}

/** A worker's own push: checked, and each index once. */
export function ownRows(
  channel: Channel,
  table: Table,
  { indices, rows, samples }: RowsPush,
  keys: Keys,
  nonFinite: NonFinite,
): { readonly own: UniqueRows; readonly share: Share } {
  keys.checkRows(table, indices, rows);
  keys.checkSamples(table, samples);
  const values = channel.stage([rows], true).slice(0, indices.length * table.rowLength);
  const isUsable = keys.isUsable(table, values, channel.group.kernels, nonFinite);
  const count = isUsable ? indices.length : 0;
  const given = channel.take('int32', count);
  given.view.set(indices.subarray(0, count));
  const own = sumByIndex(channel, given, values.slice(0, count * table.rowLength), table);
  return { own, share: { samples: isUsable ? samples : 0, isUsable } };
}

/** Puts each unique row to all positions that name it. */
export function spreadRows(
  { unique, plan }: IndexPlan,
  rows: Float32Array,
  into: Float32Array,
  rowLength: number,
): void {
  const { starts, order } = plan;
  for (let i = 0; i < unique.length; i++) {
    const row = rows.subarray(i * rowLength, (i + 1) * rowLength);
    for (let j = starts.view[i]!; j < starts.view[i + 1]!; j++) into.set(row, order.view[j]! * rowLength);
  }
}

/**
 * The rows of all ranks added up, on rank 0 or on all ranks; undefined where they do not go. In a mean those of each rank
 * count by its samples; `own.rows` is changed by that.
 */
export async function gatherRows(
  channel: Channel,
  own: UniqueRows,
  share: Share,
  table: Table,
  { combine, to }: { readonly combine: 'sum' | 'mean'; readonly to: 'first' | 'all' },
): Promise<GatheredRows | undefined> {
  const { group } = channel;
  if (group.size === 1) return { ...own, samples: share.samples, used: Number(share.isUsable) };
  const told = await tellAll(channel, [own.indices.length, share.samples, Number(share.isUsable)]);
  const samples = total(told, 1);
  const used = total(told, 2);
  if (combine === 'mean' && own.rows.length > 0) group.kernels.scale(own.rows, share.samples / samples);
  const counts = told.map(([count]) => count!);
  const elements = counts.map((count) => count * table.rowLength);
  const bring = to === 'first' ? gather : gatherToAll;
  const [indices, rows] = await Promise.all([
    bring(channel, own.indices, counts),
    bring(channel, own.rows, elements),
  ]);
  if (indices === undefined || rows === undefined) return undefined;
  return { ...sumByIndex(channel, indices, rows, table), samples, used };
}

/** Numbers of each rank, known to all. */
export async function tellAll(channel: Channel, numbers: readonly number[]): Promise<readonly number[][]> {
  const { group, options } = channel;
  const own = channel.take('float64', numbers.length);
  const all = channel.take('float64', numbers.length * group.size);
  own.view.set(numbers);
  await allGather(group, own, all, options);
  return Array.from({ length: group.size }, (_, rank) => [
    ...all.view.subarray(rank * numbers.length, (rank + 1) * numbers.length),
  ]);
}

/** The parts of all ranks one after the other, on rank 0 only: each part travels once. */
export async function gather<T extends DType>(
  channel: Channel,
  part: Region<T>,
  counts: readonly number[],
): Promise<Region<T> | undefined> {
  const { group, options } = channel;
  const isFirst = group.rank === 0;
  const all = channel.take(part.dtype, isFirst ? sumOf(counts) : 0);
  const none = counts.map(() => 0);
  const sendCounts = none.with(0, part.length);
  await allToAll(group, part, all, { ...options, sendCounts, receiveCounts: isFirst ? counts : none });
  return isFirst ? all : undefined;
}

async function gatherToAll<T extends DType>(
  channel: Channel,
  part: Region<T>,
  counts: readonly number[],
): Promise<Region<T>> {
  const all = channel.take(part.dtype, sumOf(counts));
  await allGather(channel.group, part, all, { ...channel.options, counts });
  return all;
}

/** The opposite of `gather`: each rank gets its part of what rank 0 has. */
export async function scatter<T extends DType>(
  channel: Channel,
  all: Region<T> | undefined,
  part: Region<T>,
  counts: readonly number[],
): Promise<void> {
  const { group, options } = channel;
  const none = counts.map(() => 0);
  const receiveCounts = none.with(0, part.length);
  const sendCounts = all ? counts : none;
  await allToAll(group, all ?? channel.take(part.dtype, 0), part, { ...options, sendCounts, receiveCounts });
}

function total(told: readonly number[][], word: number): number {
  return sumOf(told.map((words) => words[word]!));
}

function sumOf(numbers: readonly number[]): number {
  return numbers.reduce((sum, one) => sum + one, 0);
}
