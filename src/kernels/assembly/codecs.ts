// Gradient compression. Rounding codecs (fp16, bf16) go to nearest even and keep NaN; the 2-bit, 1-bit and
// top-k codecs send a coarse part and keep the rest in a residual, in float32. `n` counts elements.
import { lanes, setLanes } from './vector';

// @ts-ignore: decorator
@inline
function halfBits(v: v128): v128 {
  const sign = v128.and(i32x4.shr_u(v, 16), i32x4.splat(0x8000));
  const a = v128.and(v, i32x4.splat(0x7fffffff));
  // Normal numbers: move the exponent's bias, add just less than half a unit and the last kept bit, cut.
  const odd = v128.and(i32x4.shr_u(a, 13), i32x4.splat(1));
  const rounded = i32x4.add(i32x4.add(a, i32x4.splat(<i32>0xc8000fff)), odd);
  let h = i32x4.shr_u(rounded, 13);
  // Below 2^-14: one unit of a half is one unit of a float at 0.5, so adding 0.5 rounds at the right bit.
  const small = i32x4.sub(f32x4.add(a, f32x4.splat(0.5)), i32x4.splat(0x3f000000));
  h = v128.bitselect(small, h, i32x4.lt_s(a, i32x4.splat(0x38800000)));
  h = v128.bitselect(i32x4.splat(0x7c00), h, i32x4.ge_s(a, i32x4.splat(0x47800000)));
  h = v128.bitselect(i32x4.splat(0x7e00), h, i32x4.gt_s(a, i32x4.splat(0x7f800000)));
  return v128.or(h, sign);
}

// @ts-ignore: decorator
@inline
function floatOfHalf(h: v128): v128 {
  const sign = i32x4.shl(v128.and(h, i32x4.splat(0x8000)), 16);
  const a = v128.and(h, i32x4.splat(0x7fff));
  // 2^112 moves the exponent's bias and turns subnormal halves into normal floats, exactly.
  const scaled = f32x4.mul(i32x4.shl(a, 13), f32x4.splat(5192296858534827628530496329220096.0));
  const special = v128.and(i32x4.ge_s(a, i32x4.splat(0x7c00)), i32x4.splat(0x7f800000));
  return v128.or(v128.or(scaled, special), sign);
}

// @ts-ignore: decorator
@inline
function bfloatBits(v: v128): v128 {
  const a = v128.and(v, i32x4.splat(0x7fffffff));
  const odd = v128.and(i32x4.shr_u(v, 16), i32x4.splat(1));
  const rounded = i32x4.shr_u(i32x4.add(i32x4.add(v, i32x4.splat(0x7fff)), odd), 16);
  const quiet = v128.or(i32x4.shr_u(v, 16), i32x4.splat(0x40));
  return v128.bitselect(quiet, rounded, i32x4.gt_s(a, i32x4.splat(0x7f800000)));
}

// @ts-ignore: decorator
@inline
function shortBits(brain: bool, v: v128): v128 {
  return brain ? bfloatBits(v) : halfBits(v);
}

// @ts-ignore: decorator
@inline
function floatOfShort(brain: bool, v: v128): v128 {
  return brain ? i32x4.shl(v, 16) : floatOfHalf(v);
}

// @ts-ignore: decorator
@inline
function encodeShort(brain: bool, target: usize, source: usize, n: usize): void {
  let i: usize = 0;
  for (; i + 8 <= n; i += 8) {
    const low = shortBits(brain, v128.load(source + (i << 2)));
    const high = shortBits(brain, v128.load(source + (i << 2), 16));
    v128.store(target + (i << 1), i16x8.narrow_i32x4_u(low, high));
  }
  for (; i < n; i++) {
    v128.store_lane<u16>(target + (i << 1), shortBits(brain, lanes(source + (i << 2), false)), 0);
  }
}

// @ts-ignore: decorator
@inline
function decodeShort(brain: bool, target: usize, source: usize, n: usize): void {
  let i: usize = 0;
  for (; i + 4 <= n; i += 4) {
    v128.store(target + (i << 2), floatOfShort(brain, v128.load_ext<u16>(source + (i << 1))));
  }
  for (; i < n; i++) {
    setLanes(target + (i << 2), floatOfShort(brain, i32x4.splat(load<u16>(source + (i << 1)))), false);
  }
}

export function encodeFp16(target: usize, source: usize, n: usize): void {
  encodeShort(false, target, source, n);
}

export function decodeFp16(target: usize, source: usize, n: usize): void {
  decodeShort(false, target, source, n);
}

export function encodeBf16(target: usize, source: usize, n: usize): void {
  encodeShort(true, target, source, n);
}

export function decodeBf16(target: usize, source: usize, n: usize): void {
  decodeShort(true, target, source, n);
}

// @ts-ignore: decorator
@inline
function laneSum(v: v128): u32 {
  return (
    (i32x4.extract_lane(v, 0) | i32x4.extract_lane(v, 1)) | (i32x4.extract_lane(v, 2) | i32x4.extract_lane(v, 3))
  );
}

/** Codes of up to 4 elements, the first in the two most significant bits of a byte: 11 +t, 10 -t, 00 none. */
// @ts-ignore: decorator
@inline
function twoBitAt(residual: usize, gradient: usize, at: usize, t: v128, whole: bool): u32 {
  const r = f32x4.add(lanes(residual + at, whole), lanes(gradient + at, whole));
  const up = f32x4.ge(r, t);
  const down = f32x4.le(r, f32x4.neg(t));
  const sent = v128.or(v128.and(up, t), v128.and(v128.andnot(down, up), f32x4.neg(t)));
  setLanes(residual + at, f32x4.sub(r, sent), whole);
  const codes = v128.or(
    v128.and(v128.or(up, down), i32x4(0x80, 0x20, 0x08, 0x02)),
    v128.and(up, i32x4(0x40, 0x10, 0x04, 0x01)),
  );
  return whole ? laneSum(codes) : <u32>i32x4.extract_lane(codes, 0);
}

/** residual += gradient, then the codes are taken out of it; `packed` holds ceil(n / 16) words. */
export function encodeTwoBit(packed: usize, residual: usize, gradient: usize, threshold: f32, n: usize): void {
  const t = f32x4.splat(threshold);
  let i: usize = 0;
  for (; i + 4 <= n; i += 4) store<u8>(packed + (i >> 2), twoBitAt(residual, gradient, i << 2, t, true));
  const words = (n + 15) >> 4;
  if (i >> 2 < words << 2) memory.fill(packed + (i >> 2), 0, (words << 2) - (i >> 2));
  for (; i < n; i++) {
    const at = packed + (i >> 2);
    const code = twoBitAt(residual, gradient, i << 2, t, false) >> (<u32>(i & 3) << 1);
    store<u8>(at, load<u8>(at) | code);
  }
}

export function decodeTwoBit(target: usize, packed: usize, threshold: f32, n: usize): void {
  const t = f32x4.splat(threshold);
  const minus = f32x4.splat(-threshold);
  for (let i: usize = 0; i < n; i += 4) {
    const byte = i32x4.splat(load<u8>(packed + (i >> 2)));
    const sentMask = i32x4(0x80, 0x20, 0x08, 0x02);
    const upMask = i32x4(0x40, 0x10, 0x04, 0x01);
    const sent = i32x4.eq(v128.and(byte, sentMask), sentMask);
    const up = i32x4.eq(v128.and(byte, upMask), upMask);
    let value = v128.and(sent, v128.bitselect(t, minus, up));
    if (i + 4 <= n) v128.store(target + (i << 2), value);
    else {
      for (let j = i; j < n; j++) {
        setLanes(target + (j << 2), value, false);
        value = i8x16.shuffle(value, value, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
      }
    }
  }
}

// @ts-ignore: decorator
@inline
function oneBitAt(residual: usize, gradient: usize, at: usize, t: v128, bits: v128, whole: bool): u32 {
  const r = f32x4.add(lanes(residual + at, whole), lanes(gradient + at, whole));
  const up = f32x4.gt(r, t);
  const sent = v128.bitselect(f32x4.splat(1), f32x4.splat(-1), up);
  setLanes(residual + at, f32x4.sub(r, sent), whole);
  const codes = v128.and(up, bits);
  return whole ? laneSum(codes) : <u32>i32x4.extract_lane(codes, 0);
}

/** Bit 1 for +1 (residual above the threshold), else 0 for -1; the first element in a byte's highest bit. */
export function encodeOneBit(packed: usize, residual: usize, gradient: usize, threshold: f32, n: usize): void {
  const t = f32x4.splat(threshold);
  const first = i32x4(0x80, 0x40, 0x20, 0x10);
  const second = i32x4(0x08, 0x04, 0x02, 0x01);
  let i: usize = 0;
  for (; i + 8 <= n; i += 8) {
    const byte =
      oneBitAt(residual, gradient, i << 2, t, first, true) |
      oneBitAt(residual, gradient, (i << 2) + 16, t, second, true);
    store<u8>(packed + (i >> 3), byte);
  }
  const words = (n + 31) >> 5;
  if (i >> 3 < words << 2) memory.fill(packed + (i >> 3), 0, (words << 2) - (i >> 3));
  for (; i < n; i++) {
    const at = packed + (i >> 3);
    const code = oneBitAt(residual, gradient, i << 2, t, first, false) >> <u32>(i & 7);
    store<u8>(at, load<u8>(at) | code);
  }
}

export function decodeOneBit(target: usize, packed: usize, n: usize): void {
  for (let i: usize = 0; i < n; i += 4) {
    const byte = i32x4.splat(load<u8>(packed + (i >> 3)));
    const bits = i & 4 ? i32x4(0x08, 0x04, 0x02, 0x01) : i32x4(0x80, 0x40, 0x20, 0x10);
    const up = i32x4.eq(v128.and(byte, bits), bits);
    let value = v128.bitselect(f32x4.splat(1), f32x4.splat(-1), up);
    if (i + 4 <= n) v128.store(target + (i << 2), value);
    else {
      for (let j = i; j < n; j++) {
        setLanes(target + (j << 2), value, false);
        value = i8x16.shuffle(value, value, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
      }
    }
  }
}

// @ts-ignore: decorator
@inline
function magnitude(at: usize): u32 {
  return load<u32>(at) & 0x7fffffff;
}

/**
 * residual += gradient, then its k elements of largest magnitude (lowest index first among equals, NaN above
 * all) move to `values` with their ascending `indices`. `scratch` holds 2048 words. Needs 0 < k <= n.
 */
export function encodeTopK(
  indices: usize, values: usize, residual: usize, gradient: usize, k: u32, n: usize, scratch: usize,
): void {
  const bytes = n << 2;
  for (let i: usize = 0; i < bytes; i += 4) store<f32>(residual + i, load<f32>(residual + i) + load<f32>(gradient + i));

  // Find the k-th largest magnitude, as its bits, by three histograms from the highest digit down.
  let known: u32 = 0;
  let prefix: u32 = 0;
  let wanted = k;
  for (let digit: i32 = 0; digit < 3; digit++) {
    const shift: u32 = digit == 0 ? 20 : digit == 1 ? 9 : 0;
    const size: u32 = digit == 2 ? 512 : 2048;
    memory.fill(scratch, 0, 2048 << 2);
    for (let i: usize = 0; i < bytes; i += 4) {
      const m = magnitude(residual + i);
      if ((m & known) != prefix) continue;
      const at = scratch + (((m >>> shift) & (size - 1)) << 2);
      store<u32>(at, load<u32>(at) + 1);
    }
    let d = size - 1;
    while (load<u32>(scratch + (d << 2)) < wanted) {
      wanted -= load<u32>(scratch + (d << 2));
      d--;
    }
    prefix |= d << shift;
    known |= (size - 1) << shift;
  }

  let found: usize = 0;
  for (let i: usize = 0; i < bytes; i += 4) {
    const m = magnitude(residual + i);
    if (m < prefix) continue;
    if (m == prefix) {
      if (wanted == 0) continue;
      wanted--;
    }
    store<u32>(indices + found, i >> 2);
    store<f32>(values + found, load<f32>(residual + i));
    store<f32>(residual + i, 0);
    found += 4;
  }
}
