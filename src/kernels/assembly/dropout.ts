// Dropout masks without state: an element depends on (seed, sample, element index) alone, so that any number
// of workers, in any order, make the same mask for a sample. Not cryptographic.
import { setLanes } from './vector';

// @ts-ignore: decorator
@inline
function mixWord(value: u32): u32 {
  let z = value;
  z = (z ^ (z >>> 16)) * 0x21f0aaad;
  z = (z ^ (z >>> 15)) * 0x735a2d97;
  return z ^ (z >>> 15);
}

// @ts-ignore: decorator
@inline
function mixLanes(value: v128): v128 {
  let z = v128.xor(value, i32x4.shr_u(value, 16));
  z = i32x4.mul(z, i32x4.splat(0x21f0aaad));
  z = v128.xor(z, i32x4.shr_u(z, 15));
  z = i32x4.mul(z, i32x4.splat(0x735a2d97));
  return v128.xor(z, i32x4.shr_u(z, 15));
}

// @ts-ignore: decorator
@inline
function maskOf(index: v128, key1: v128, key2: v128, limit: v128, value: v128): v128 {
  const hash = mixLanes(i32x4.add(mixLanes(v128.xor(index, key1)), key2));
  return v128.and(i32x4.ge_u(hash, limit), value);
}

/** 0 with the chance threshold / 2^32, else `kept`. */
export function dropoutMask(
  target: usize, samples: i32, perSample: usize, sampleIds: usize, seed: i32, threshold: u32, kept: f32,
): void {
  const limit = i32x4.splat(threshold);
  const value = f32x4.splat(kept);
  const step = i32x4.splat(4);
  const bytes = perSample << 2;
  for (let s: i32 = 0; s < samples; s++) {
    const id = load<u32>(sampleIds + ((<usize>s) << 2));
    // Two keys, mixed in at two places: one key would make the masks of samples shifts of one sequence.
    const key = mixWord(mixWord(seed) ^ mixWord(id + 0x9e3779b9));
    const key1 = i32x4.splat(key);
    const key2 = i32x4.splat(mixWord(key + 0x85ebca6b));
    const row = target + <usize>s * bytes;
    let index = i32x4(0, 1, 2, 3);
    let i: usize = 0;
    for (; i + 16 <= bytes; i += 16) {
      v128.store(row + i, maskOf(index, key1, key2, limit, value));
      index = i32x4.add(index, step);
    }
    let rest = maskOf(index, key1, key2, limit, value);
    for (; i < bytes; i += 4) {
      setLanes(row + i, rest, false);
      rest = i8x16.shuffle(rest, rest, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
    }
  }
}
