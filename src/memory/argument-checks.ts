/**
 * What the sizes and places of a space must be, checked once at its public methods. Not the checks of a region inside
 * its segment, which need the segment. Invariant: a check returns nothing or throws a UsageError that names the value.
 */
import { UsageError } from '../base/index.ts';
import { isDType } from './dtype.ts';
import type { DType } from './dtype.ts';

export function isCount(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

export function checkElements(dtype: DType, length: number): void {
  if (isDType(dtype) && isCount(length)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `a region of ${length} elements of '${String(dtype)}' was asked; give a whole number of elements of a known type`,
    { dtype, length },
  );
}

export function checkBytes(what: string, byteLength: number, maxBytes: number): void {
  if (!isCount(byteLength)) {
    throw new UsageError('INVALID_ARGUMENT', `${what} is ${byteLength}; give a whole number of bytes`, {
      [what]: byteLength,
    });
  }
  if (byteLength > maxBytes) {
    throw new UsageError(
      'MODEL_TOO_LARGE',
      `${what} is ${byteLength}, but WebAssembly cannot address more than ${maxBytes} bytes (4 GiB); use a smaller model or fewer buffers`,
      { [what]: byteLength, maxBytes },
    );
  }
}

export function checkRange(byteOffset: number, byteLength: number, spaceBytes: number): void {
  if (isCount(byteOffset) && isCount(byteLength) && byteOffset + byteLength <= spaceBytes) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `bytes ${byteOffset} to ${byteOffset + byteLength} are outside the ${spaceBytes} bytes of the space; describe a segment of this space`,
    { byteOffset, byteLength, spaceBytes },
  );
}
