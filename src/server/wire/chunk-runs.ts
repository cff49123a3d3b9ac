/**
 * The ranges of a piece as they travel: a run of ranges that follow each other and are equally long,
 * but for the last, is one entry, however many they are. Pure. Invariant: what is read is ascending,
 * ends within the piece, and is no more than a message may have.
 */
import { check, isCount } from './fields.ts';

/** First element and number of elements. */
export type Range = readonly [start: number, length: number];
/** The same of several ranges together, and the elements of each; left out: it is one. */
export type Run = readonly [start: number, length: number, each?: number];

/** Ranges of all pieces in a message: a key of 4 GiB in chunks of 32 KiB. */
export const MAX_RANGES = 2 ** 17;

export function runsOf(ranges: readonly Range[]): Run[] {
  const runs: Run[] = [];
  for (let i = 0; i < ranges.length;) {
    const [start, each] = ranges[i++]!;
    let end = start + each;
    for (let last = each; i < ranges.length && last === each; i++) {
      const [from, length] = ranges[i]!;
      if (from !== end || length > each) break;
      end += last = length;
    }
    runs.push(end === start + each ? [start, each] : [start, end - start, each]);
  }
  return runs;
}

/** `most`: how many there may be; `length`: elements among which they lie. */
export function rangesOfRuns(runs: readonly unknown[], length: number, most: number): Range[] {
  const ranges: Range[] = [];
  let end = 0;
  for (const run of runs) {
    check(Array.isArray(run) && (run.length === 2 || run.length === 3), 'range', run);
    const [start, count, each = count] = run as unknown[];
    // Ascending, so that no element belongs to a piece twice.
    check(isCount(start) && isCount(count) && start >= end && count > 0, 'range', run);
    check(isCount(each) && each > 0, 'range', run);
    end = start + count;
    check(end <= length, 'range', run);
    check(ranges.length + Math.ceil(count / each) <= most, 'number of ranges', run);
    for (let from = start; from < end; from += each) ranges.push([from, Math.min(each, end - from)]);
  }
  return ranges;
}
