/**
 * What a wrapper checks before it calls a kernel, since a kernel checks nothing: type, space, length and
 * overlap of regions. Not a validation of values. Invariant: after these checks a kernel cannot touch a
 * byte outside the regions it was given.
 */
import { UsageError } from '../base/index.ts';
import type { DType, Region, SharedSpace } from '../memory/index.ts';

/** Checks that a region is of the type and in the space; `exactly` also asks its length. */
export function checkRegion<T extends DType>(
  space: SharedSpace,
  what: string,
  region: Region,
  dtype: T,
  exactly?: number,
): asserts region is Region<T> {
  if (region.dtype !== dtype) {
    throw new UsageError('INVALID_ARGUMENT', `${what} is of ${region.dtype}; give a region of ${dtype}`, {
      what,
      expected: dtype,
      actual: region.dtype,
    });
  }
  if (region.space.buffer !== space.buffer) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${what} lies in another space than the kernels; create the kernels on its space`,
      { what },
    );
  }
  if (exactly !== undefined && region.length !== exactly) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${what} has ${region.length} elements, expected ${exactly}; give regions of one length (slice them)`,
      { what, expected: exactly, actual: region.length },
    );
  }
}

/** Checks that a region of the type has at least `atLeast` elements. */
export function checkCapacity<T extends DType>(
  space: SharedSpace,
  what: string,
  region: Region,
  dtype: T,
  atLeast: number,
): asserts region is Region<T> {
  checkRegion(space, what, region, dtype);
  if (region.length >= atLeast) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `${what} has ${region.length} elements, but ${atLeast} are needed; give a larger region`,
    { what, expected: atLeast, actual: region.length },
  );
}

/** In place is fine; half in place would read what was just written. */
export function checkNoPartialOverlap(what: string, target: Region, source: Region): void {
  if (target.byteOffset === source.byteOffset || !overlaps(target, source)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${what} overlaps the target in part (bytes ${source.byteOffset} and ${target.byteOffset}); use the same region or separate ones`,
    { what, source: source.byteOffset, target: target.byteOffset },
  );
}

export function checkSeparate(what: string, a: Region, b: Region): void {
  if (!overlaps(a, b)) return;
  throw new UsageError('INVALID_ARGUMENT', `${what} overlap; give separate regions`, {
    what,
    first: a.byteOffset,
    second: b.byteOffset,
  });
}

function overlaps(a: Region, b: Region): boolean {
  return a.byteOffset < b.byteOffset + b.byteLength && b.byteOffset < a.byteOffset + a.byteLength;
}

export function checkCount(what: string, value: number, least = 0): void {
  if (Number.isSafeInteger(value) && value >= least) return;
  throw new UsageError('INVALID_ARGUMENT', `${what} is ${value}; give a whole number from ${least}`, {
    what,
    actual: value,
  });
}
