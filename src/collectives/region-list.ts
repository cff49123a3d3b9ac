/**
 * Regions of one type, one after the other, as one long vector: what collectives on lists work on. Not several vectors that
 * are added, as allreduce takes them. Invariant: the order of the list is that of the vector, and lists with the same
 * lengths are the same vector on every rank, wherever their regions lie.
 */
import { UsageError } from '../base/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { DType, Region } from '../memory/index.ts';
import type { Operation } from '../progress/index.ts';
import type { CallFields } from './call.ts';
import type { Part } from './parts.ts';

/** What ranks must agree on: every length, not only their sum. */
export function listFields(
  collective: string,
  regions: readonly Region[],
): Pick<CallFields, 'collective' | 'counts' | 'length'> & { readonly dtype: DType } {
  const dtype = regions[0]?.dtype;
  if (dtype === undefined || regions.some((region) => region.dtype !== dtype)) {
    const given = [...new Set(regions.map((region) => region.dtype))].join(' and ');
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${collective} was given ${given === '' ? 'no region' : `regions of ${given}`}; give one or more of one type`,
      { collective, dtypes: given },
    );
  }
  const counts = regions.map(({ length }) => length);
  return { collective, dtype, counts, length: elementsIn(regions) };
}

export function elementsIn(regions: readonly Region[]): number {
  return regions.reduce((sum, { length }) => sum + length, 0);
}

/** A piece of one region of the list. */
export interface Piece extends Part {
  /** The region's place in the list. */
  readonly index: number;
}

/** The pieces of regions that a part of the whole vector consists of. */
export function piecesOf(regions: readonly Region[], part: Part): Piece[] {
  const pieces: Piece[] = [];
  let first = 0;
  regions.forEach(({ length: own }, index) => {
    const start = Math.max(0, part.start - first);
    const length = Math.min(own, part.start + part.length - first) - start;
    if (length > 0) pieces.push({ index, start, length });
    first += own;
  });
  return pieces;
}

/** The list in memory of the operation, in one piece. */
export function gathered(operation: Operation, regions: readonly Region[], kernels: Kernels): Region {
  const whole = operation.scratch(regions[0]!.dtype, elementsIn(regions));
  let start = 0;
  for (const region of regions) {
    if (region.length > 0) kernels.copy(whole.slice(start, region.length), region);
    start += region.length;
  }
  return whole;
}

export function scattered(whole: Region, regions: readonly Region[], kernels: Kernels): void {
  let start = 0;
  for (const region of regions) {
    if (region.length > 0) kernels.copy(region, whole.slice(start, region.length));
    start += region.length;
  }
}
