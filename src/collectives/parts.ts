/**
 * Cutting a vector into consecutive parts, one for each rank. `evenParts` is the rule of reduce-scatter that
 * callers see; `alignedParts` is for our own use and keeps parts on cache lines. Invariant: parts are in rank order,
 * do not overlap and cover the vector.
 */
import type { Region } from '../memory/index.ts';

export interface Part {
  readonly start: number;
  readonly length: number;
}

/** The first (length mod count) parts have one element more. */
export function evenParts(length: number, count: number): Part[] {
  const least = Math.floor(length / count);
  const longer = length % count;
  return Array.from({ length: count }, (_, i) => ({
    start: i * least + Math.min(i, longer),
    length: least + (i < longer ? 1 : 0),
  }));
}

/** Parts that start at multiples of 16 elements, so that no two ranks write to one cache line. */
export function alignedPart(length: number, count: number, index: number): Part {
  const lines = Math.ceil(length / 16);
  const least = Math.floor(lines / count);
  const longer = lines % count;
  const start = Math.min(length, (index * least + Math.min(index, longer)) * 16);
  const end = Math.min(length, start + (least + (index < longer ? 1 : 0)) * 16);
  return { start, length: end - start };
}

export function alignedParts(length: number, count: number): Part[] {
  return Array.from({ length: count }, (_, i) => alignedPart(length, count, i));
}

/** The parts of a vector by a list of their lengths. */
export function partsByCounts(counts: readonly number[]): Part[] {
  let start = 0;
  return counts.map((length) => {
    const part = { start, length };
    start += length;
    return part;
  });
}

export function cut<R extends Region>(region: R, part: Part): R {
  return region.slice(part.start, part.length) as R;
}
