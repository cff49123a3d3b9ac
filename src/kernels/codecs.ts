/**
 * Gradient compression: fp16 and bf16 round to nearest even; 2-bit, 1-bit and top-k send a coarse part and
 * keep the rest in a residual that is added the next time, all in float32. Not a wire format: lengths,
 * thresholds and counts travel beside the codes. Invariant: decoded + residual equals residual + gradient
 * of before, up to float32 rounding.
 */
import { UsageError } from '../base/index.ts';
import type { Region } from '../memory/index.ts';
import { checkCapacity, checkCount, checkRegion, checkSeparate } from './argument-checks.ts';
import type { Kernels } from './kernels.ts';
import { addRows } from './rows.ts';

/** Words of scratch that top-k needs. */
export const TOP_K_SCRATCH_WORDS = 2048;

type Floats = Region<'float32'>;

export function encodeFp16(kernels: Kernels, target: Region<'uint16'>, source: Floats): void {
  checkShort(kernels, 'encodeFp16', target, source);
  kernels.exports.encodeFp16(target.byteOffset, source.byteOffset, source.length);
}

export function decodeFp16(kernels: Kernels, target: Floats, source: Region<'uint16'>): void {
  checkShort(kernels, 'decodeFp16', source, target);
  kernels.exports.decodeFp16(target.byteOffset, source.byteOffset, source.length);
}

export function encodeBf16(kernels: Kernels, target: Region<'uint16'>, source: Floats): void {
  checkShort(kernels, 'encodeBf16', target, source);
  kernels.exports.encodeBf16(target.byteOffset, source.byteOffset, source.length);
}

export function decodeBf16(kernels: Kernels, target: Floats, source: Region<'uint16'>): void {
  checkShort(kernels, 'decodeBf16', source, target);
  kernels.exports.decodeBf16(target.byteOffset, source.byteOffset, source.length);
}

/** Words that the 2-bit codes of `length` elements take. */
export function twoBitWords(length: number): number {
  return Math.ceil(length / 16);
}

/** Words that the 1-bit codes of `length` elements take. */
export function oneBitWords(length: number): number {
  return Math.ceil(length / 32);
}

export interface QuantizeOptions {
  /** Receives the codes; see `twoBitWords` and `oneBitWords`. */
  readonly packed: Region<'uint32'>;
  /** What was not sent so far; zeros at the start. */
  readonly residual: Floats;
  readonly gradient: Floats;
  /** Rounded to float32. For 2-bit codes above 0. */
  readonly threshold: number;
}

/** r += g; sends +threshold, -threshold or nothing for each element and takes it out of r. */
export function encodeTwoBit(kernels: Kernels, options: QuantizeOptions): void {
  const { packed, residual, gradient } = options;
  const n = gradient.length;
  const threshold = positiveThreshold(options.threshold);
  checkQuantize(kernels, 'encodeTwoBit', options, twoBitWords(n));
  kernels.exports.encodeTwoBit(packed.byteOffset, residual.byteOffset, gradient.byteOffset, threshold, n);
}

export function decodeTwoBit(
  kernels: Kernels,
  target: Floats,
  packed: Region<'uint32'>,
  threshold: number,
): void {
  checkRegion(kernels.space, 'target of decodeTwoBit', target, 'float32');
  checkCapacity(kernels.space, 'packed of decodeTwoBit', packed, 'uint32', twoBitWords(target.length));
  checkSeparate('target and packed of decodeTwoBit', target, packed);
  const value = positiveThreshold(threshold);
  kernels.exports.decodeTwoBit(target.byteOffset, packed.byteOffset, value, target.length);
}

/** r += g; sends +1 where r is above the threshold, else -1, and takes it out of r. */
export function encodeOneBit(kernels: Kernels, options: QuantizeOptions): void {
  const { packed, residual, gradient, threshold } = options;
  const n = gradient.length;
  if (!Number.isFinite(threshold)) throw badThreshold(threshold, 'a finite number');
  checkQuantize(kernels, 'encodeOneBit', options, oneBitWords(n));
  kernels.exports.encodeOneBit(packed.byteOffset, residual.byteOffset, gradient.byteOffset, threshold, n);
}

export function decodeOneBit(kernels: Kernels, target: Floats, packed: Region<'uint32'>): void {
  checkRegion(kernels.space, 'target of decodeOneBit', target, 'float32');
  checkCapacity(kernels.space, 'packed of decodeOneBit', packed, 'uint32', oneBitWords(target.length));
  checkSeparate('target and packed of decodeOneBit', target, packed);
  kernels.exports.decodeOneBit(target.byteOffset, packed.byteOffset, target.length);
}

export interface TopKOptions {
  /** Elements to send; all if there are fewer. */
  readonly k: number;
  /** Receives the ascending positions of the elements sent. */
  readonly indices: Region<'int32'>;
  /** Receives their values. */
  readonly values: Floats;
  /** What was not sent so far; zeros at the start. */
  readonly residual: Floats;
  readonly gradient: Floats;
  /** At least `TOP_K_SCRATCH_WORDS`. */
  readonly scratch: Region<'int32'>;
}

/**
 * r += g; sends the k elements of largest magnitude (lowest position first among equals) and sets them to 0
 * in r. Returns how many were sent.
 */
export function encodeTopK(kernels: Kernels, options: TopKOptions): number {
  const { k, indices, values, residual, gradient, scratch } = options;
  const { space, exports } = kernels;
  const n = gradient.length;
  checkCount('k of encodeTopK', k);
  const count = Math.min(k, n);
  checkRegion(space, 'gradient of encodeTopK', gradient, 'float32');
  checkRegion(space, 'residual of encodeTopK', residual, 'float32', n);
  checkCapacity(space, 'indices of encodeTopK', indices, 'int32', count);
  checkCapacity(space, 'values of encodeTopK', values, 'float32', count);
  checkCapacity(space, 'scratch of encodeTopK', scratch, 'int32', TOP_K_SCRATCH_WORDS);
  if (count === 0) {
    kernels.axpy(residual, 1, gradient);
    return 0;
  }
  exports.encodeTopK(
    indices.byteOffset,
    values.byteOffset,
    residual.byteOffset,
    gradient.byteOffset,
    count,
    n,
    scratch.byteOffset,
  );
  return count;
}

/** target = zeros but for the values sent; a position outside is an error. */
export function decodeTopK(
  kernels: Kernels,
  target: Floats,
  indices: Region<'int32'>,
  values: Floats,
  count: number,
): void {
  kernels.fill(target, 0);
  addRows(kernels, { target, rowLength: 1, indices, rows: values, rowCount: count });
}

function checkShort(kernels: Kernels, what: string, codes: Region, floats: Region): void {
  checkRegion(kernels.space, `codes of ${what}`, codes, 'uint16');
  checkRegion(kernels.space, `floats of ${what}`, floats, 'float32', codes.length);
  checkSeparate(`codes and floats of ${what}`, codes, floats);
}

function checkQuantize(kernels: Kernels, what: string, options: QuantizeOptions, words: number): void {
  const { packed, residual, gradient } = options;
  checkRegion(kernels.space, `gradient of ${what}`, gradient, 'float32');
  checkRegion(kernels.space, `residual of ${what}`, residual, 'float32', gradient.length);
  checkCapacity(kernels.space, `packed of ${what}`, packed, 'uint32', words);
  checkSeparate(`residual and packed of ${what}`, residual, packed);
  checkSeparate(`gradient and packed of ${what}`, gradient, packed);
}

function positiveThreshold(threshold: number): number {
  const rounded = Math.fround(threshold);
  if (rounded > 0 && Number.isFinite(rounded)) return rounded;
  throw badThreshold(threshold, 'a positive float32');
}

function badThreshold(threshold: number, expected: string): UsageError {
  return new UsageError('INVALID_ARGUMENT', `threshold is ${threshold}; give ${expected}`, { threshold });
}
