// Elementwise combinations of vectors. `n` counts elements. Operands may be the target itself.
import { lanes, lanesAfter, setLanes, setLanesAfter, Skip0, Skip16, Skip32, Skip48 } from './vector';

// @ts-ignore: decorator
@inline
function sumAt<Skip>(
  k: i32, mean: bool, divisor: v128, target: usize,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  whole: bool,
): void {
  let sum = lanesAfter<Skip>(p0, whole);
  if (k > 1) sum = f32x4.add(sum, lanesAfter<Skip>(p1, whole));
  if (k > 2) sum = f32x4.add(sum, lanesAfter<Skip>(p2, whole));
  if (k > 3) sum = f32x4.add(sum, lanesAfter<Skip>(p3, whole));
  if (k > 4) sum = f32x4.add(sum, lanesAfter<Skip>(p4, whole));
  if (k > 5) sum = f32x4.add(sum, lanesAfter<Skip>(p5, whole));
  if (k > 6) sum = f32x4.add(sum, lanesAfter<Skip>(p6, whole));
  if (k > 7) sum = f32x4.add(sum, lanesAfter<Skip>(p7, whole));
  if (mean) sum = f32x4.div(sum, divisor);
  setLanesAfter<Skip>(target, sum, whole);
}

// @ts-ignore: decorator
@inline
function sumLoop(
  k: i32, mean: bool, divisor: f32, target: usize,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  n: usize,
): void {
  const d = f32x4.splat(divisor);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 64 <= bytes; i += 64) {
    const t = target + i;
    const a = p0 + i;
    const b = p1 + i;
    const c = p2 + i;
    const e = p3 + i;
    const f = p4 + i;
    const g = p5 + i;
    const h = p6 + i;
    const j = p7 + i;
    sumAt<Skip0>(k, mean, d, t, a, b, c, e, f, g, h, j, true);
    sumAt<Skip16>(k, mean, d, t, a, b, c, e, f, g, h, j, true);
    sumAt<Skip32>(k, mean, d, t, a, b, c, e, f, g, h, j, true);
    sumAt<Skip48>(k, mean, d, t, a, b, c, e, f, g, h, j, true);
  }
  for (; i < bytes; i += 4) {
    sumAt<Skip0>(k, mean, d, target + i, p0 + i, p1 + i, p2 + i, p3 + i, p4 + i, p5 + i, p6 + i, p7 + i, false);
  }
}

/** target = p0 + ... + p(k-1), added in that order, k from 1 to 8. */
export function sumFloat32(
  k: i32, target: usize,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  n: usize,
): void {
  if (k == 1) sumLoop(1, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 2) sumLoop(2, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 3) sumLoop(3, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 4) sumLoop(4, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 5) sumLoop(5, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 6) sumLoop(6, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 7) sumLoop(7, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else sumLoop(8, false, 1, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
}

/** target = (p0 + ... + p(k-1)) / divisor; the divisor differs from k in the last pass of a longer sum. */
export function meanFloat32(
  k: i32, divisor: f32, target: usize,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  n: usize,
): void {
  if (k == 1) sumLoop(1, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 2) sumLoop(2, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 3) sumLoop(3, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 4) sumLoop(4, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 5) sumLoop(5, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 6) sumLoop(6, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 7) sumLoop(7, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else sumLoop(8, true, divisor, target, p0, p1, p2, p3, p4, p5, p6, p7, n);
}

// One cache line of every vector: all loads of a source before those of the next, all stores last.
// @ts-ignore: decorator
@inline
function sumLineToAll(
  k: i32, mean: bool, divisor: v128,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
): void {
  let a = f32x4.add(v128.load(p0), v128.load(p1));
  let b = f32x4.add(v128.load(p0, 16), v128.load(p1, 16));
  let c = f32x4.add(v128.load(p0, 32), v128.load(p1, 32));
  let d = f32x4.add(v128.load(p0, 48), v128.load(p1, 48));
  if (k > 2) { a = plus(a, p2, 0); b = plus(b, p2, 16); c = plus(c, p2, 32); d = plus(d, p2, 48); }
  if (k > 3) { a = plus(a, p3, 0); b = plus(b, p3, 16); c = plus(c, p3, 32); d = plus(d, p3, 48); }
  if (k > 4) { a = plus(a, p4, 0); b = plus(b, p4, 16); c = plus(c, p4, 32); d = plus(d, p4, 48); }
  if (k > 5) { a = plus(a, p5, 0); b = plus(b, p5, 16); c = plus(c, p5, 32); d = plus(d, p5, 48); }
  if (k > 6) { a = plus(a, p6, 0); b = plus(b, p6, 16); c = plus(c, p6, 32); d = plus(d, p6, 48); }
  if (k > 7) { a = plus(a, p7, 0); b = plus(b, p7, 16); c = plus(c, p7, 32); d = plus(d, p7, 48); }
  if (mean) {
    a = f32x4.div(a, divisor);
    b = f32x4.div(b, divisor);
    c = f32x4.div(c, divisor);
    d = f32x4.div(d, divisor);
  }
  setLine(p0, a, b, c, d);
  setLine(p1, a, b, c, d);
  if (k > 2) setLine(p2, a, b, c, d);
  if (k > 3) setLine(p3, a, b, c, d);
  if (k > 4) setLine(p4, a, b, c, d);
  if (k > 5) setLine(p5, a, b, c, d);
  if (k > 6) setLine(p6, a, b, c, d);
  if (k > 7) setLine(p7, a, b, c, d);
}

// @ts-ignore: decorator
@inline
function plus(sum: v128, source: usize, skip: usize): v128 {
  return f32x4.add(sum, v128.load(source + skip));
}

// @ts-ignore: decorator
@inline
function setLine(target: usize, a: v128, b: v128, c: v128, d: v128): void {
  v128.store(target, a);
  v128.store(target, b, 16);
  v128.store(target, c, 32);
  v128.store(target, d, 48);
}

// Vectors that no cache holds are read as four streams at a time, a page apart: one stream alone leaves a quarter of
// the memory's bandwidth unused. In a cache the single stream is quicker.
const STREAM_BYTES: usize = 4096;

// @ts-ignore: decorator
@inline
function sumToAllLoop(
  k: i32, mean: bool, streams: bool, divisor: f32,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  n: usize,
): void {
  const v = f32x4.splat(divisor);
  const bytes = n << 2;
  let i: usize = 0;
  if (streams) {
    for (; i + 4 * STREAM_BYTES <= bytes; i += 4 * STREAM_BYTES) {
      for (let j = i; j < i + STREAM_BYTES; j += 64) {
        for (let s: usize = 0; s < 4 * STREAM_BYTES; s += STREAM_BYTES) {
          const o = j + s;
          sumLineToAll(k, mean, v, p0 + o, p1 + o, p2 + o, p3 + o, p4 + o, p5 + o, p6 + o, p7 + o);
        }
      }
    }
  }
  for (; i + 64 <= bytes; i += 64) {
    sumLineToAll(k, mean, v, p0 + i, p1 + i, p2 + i, p3 + i, p4 + i, p5 + i, p6 + i, p7 + i);
  }
  for (; i < bytes; i += 4) {
    let sum = load<f32>(p0 + i) + load<f32>(p1 + i);
    if (k > 2) sum += load<f32>(p2 + i);
    if (k > 3) sum += load<f32>(p3 + i);
    if (k > 4) sum += load<f32>(p4 + i);
    if (k > 5) sum += load<f32>(p5 + i);
    if (k > 6) sum += load<f32>(p6 + i);
    if (k > 7) sum += load<f32>(p7 + i);
    if (mean) sum /= divisor;
    store<f32>(p0 + i, sum);
    store<f32>(p1 + i, sum);
    if (k > 2) store<f32>(p2 + i, sum);
    if (k > 3) store<f32>(p3 + i, sum);
    if (k > 4) store<f32>(p4 + i, sum);
    if (k > 5) store<f32>(p5 + i, sum);
    if (k > 6) store<f32>(p6 + i, sum);
    if (k > 7) store<f32>(p7 + i, sum);
  }
}

// @ts-ignore: decorator
@inline
function sumToAllBy(
  mean: bool, k: i32, streams: bool, divisor: f32,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  n: usize,
): void {
  // With five vectors and more there are streams enough.
  if (streams && k == 2) sumToAllLoop(2, mean, true, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (streams && k == 3) sumToAllLoop(3, mean, true, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (streams && k == 4) sumToAllLoop(4, mean, true, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 2) sumToAllLoop(2, mean, false, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 3) sumToAllLoop(3, mean, false, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 4) sumToAllLoop(4, mean, false, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 5) sumToAllLoop(5, mean, false, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 6) sumToAllLoop(6, mean, false, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else if (k == 7) sumToAllLoop(7, mean, false, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else sumToAllLoop(8, mean, false, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
}

/** Every one of p0 ... p(k-1) = their sum, added in that order, k from 2 to 8; divided if the divisor is not 0. */
export function sumToAllFloat32(
  k: i32, streams: bool, divisor: f32,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  n: usize,
): void {
  if (divisor == 0) sumToAllBy(false, k, streams, 1, p0, p1, p2, p3, p4, p5, p6, p7, n);
  else sumToAllBy(true, k, streams, divisor, p0, p1, p2, p3, p4, p5, p6, p7, n);
}

// Operations of `combine`; the wrappers hold the same numbers.
const SUM: i32 = 0;
const MIN: i32 = 1;
const MAX: i32 = 2;

// @ts-ignore: decorator
@inline
function combineVectors<T>(op: i32, a: v128, b: v128): v128 {
  if (op == SUM) return v128.add<T>(a, b);
  if (op == MIN) return v128.min<T>(a, b);
  if (op == MAX) return v128.max<T>(a, b);
  return v128.mul<T>(a, b);
}

// @ts-ignore: decorator
@inline
function combineAt<T, Skip>(op: i32, target: usize, a: usize, b: usize): void {
  const value = combineVectors<T>(op, lanesAfter<Skip>(a, true), lanesAfter<Skip>(b, true));
  setLanesAfter<Skip>(target, value, true);
}

// @ts-ignore: decorator
@inline
function combineLoop<T>(op: i32, target: usize, a: usize, b: usize, n: usize): void {
  const bytes = n * sizeof<T>();
  let i: usize = 0;
  for (; i + 64 <= bytes; i += 64) {
    const t = target + i;
    const x = a + i;
    const y = b + i;
    combineAt<T, Skip0>(op, t, x, y);
    combineAt<T, Skip16>(op, t, x, y);
    combineAt<T, Skip32>(op, t, x, y);
    combineAt<T, Skip48>(op, t, x, y);
  }
  for (; i < bytes; i += sizeof<T>()) {
    if (sizeof<T>() == 4) {
      const value = combineVectors<T>(op, v128.load_zero<u32>(a + i), v128.load_zero<u32>(b + i));
      v128.store_lane<u32>(target + i, value, 0);
    } else {
      const value = combineVectors<T>(op, v128.load_zero<u64>(a + i), v128.load_zero<u64>(b + i));
      v128.store_lane<u64>(target + i, value, 0);
    }
  }
}

// @ts-ignore: decorator
@inline
function combine<T>(op: i32, target: usize, a: usize, b: usize, n: usize): void {
  if (op == 0) combineLoop<T>(0, target, a, b, n);
  else if (op == 1) combineLoop<T>(1, target, a, b, n);
  else if (op == 2) combineLoop<T>(2, target, a, b, n);
  else combineLoop<T>(3, target, a, b, n);
}

/** target = a op b; minimum and maximum give NaN if either is NaN. */
export function combineFloat32(op: i32, target: usize, a: usize, b: usize, n: usize): void {
  combine<f32>(op, target, a, b, n);
}

export function combineFloat64(op: i32, target: usize, a: usize, b: usize, n: usize): void {
  combine<f64>(op, target, a, b, n);
}

/** Integers wrap. */
export function combineInt32(op: i32, target: usize, a: usize, b: usize, n: usize): void {
  combine<i32>(op, target, a, b, n);
}

/** target *= factor */
export function scaleFloat32(target: usize, factor: f32, n: usize): void {
  const f = f32x4.splat(factor);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 64 <= bytes; i += 64) {
    v128.store(target + i, f32x4.mul(v128.load(target + i), f));
    v128.store(target + i, f32x4.mul(v128.load(target + i, 16), f), 16);
    v128.store(target + i, f32x4.mul(v128.load(target + i, 32), f), 32);
    v128.store(target + i, f32x4.mul(v128.load(target + i, 48), f), 48);
  }
  for (; i < bytes; i += 4) setLanes(target + i, f32x4.mul(lanes(target + i, false), f), false);
}

// @ts-ignore: decorator
@inline
function scaleDoubles(divide: bool, target: usize, factor: f64, n: usize): void {
  const f = f64x2.splat(factor);
  const bytes = n << 3;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) {
    const v = v128.load(target + i);
    v128.store(target + i, divide ? f64x2.div(v, f) : f64x2.mul(v, f));
  }
  if (i < bytes) {
    const v = v128.load_zero<u64>(target + i);
    v128.store_lane<u64>(target + i, divide ? f64x2.div(v, f) : f64x2.mul(v, f), 0);
  }
}

/** target *= factor */
export function scaleFloat64(target: usize, factor: f64, n: usize): void {
  scaleDoubles(false, target, factor, n);
}

/** target /= divisor */
export function divideFloat64(target: usize, divisor: f64, n: usize): void {
  scaleDoubles(true, target, divisor, n);
}

/** target += a * x */
export function axpyFloat32(target: usize, a: f32, x: usize, n: usize): void {
  const f = f32x4.splat(a);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 32 <= bytes; i += 32) {
    const t = target + i;
    v128.store(t, f32x4.add(v128.load(t), f32x4.mul(v128.load(x + i), f)));
    v128.store(t, f32x4.add(v128.load(t, 16), f32x4.mul(v128.load(x + i, 16), f)), 16);
  }
  for (; i < bytes; i += 4) {
    setLanes(target + i, f32x4.add(lanes(target + i, false), f32x4.mul(lanes(x + i, false), f)), false);
  }
}

/** target = keep * target + share * x, in one pass: whoever reads meanwhile finds every element old or new, never in between. */
export function blendFloat32(target: usize, keep: f32, x: usize, share: f32, n: usize): void {
  const k = f32x4.splat(keep);
  const s = f32x4.splat(share);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) {
    const t = target + i;
    v128.store(t, f32x4.add(f32x4.mul(v128.load(t), k), f32x4.mul(v128.load(x + i), s)));
  }
  for (; i < bytes; i += 4) {
    const sum = f32x4.add(f32x4.mul(lanes(target + i, false), k), f32x4.mul(lanes(x + i, false), s));
    setLanes(target + i, sum, false);
  }
}

export function fillFloat32(target: usize, value: f32, n: usize): void {
  const v = f32x4.splat(value);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) v128.store(target + i, v);
  for (; i < bytes; i += 4) setLanes(target + i, v, false);
}

export function copyBytes(target: usize, source: usize, bytes: usize): void {
  memory.copy(target, source, bytes);
}

/** target = min(max(target, -limit), limit); NaN stays NaN. */
export function clipFloat32(target: usize, limit: f32, n: usize): void {
  const high = f32x4.splat(limit);
  const low = f32x4.splat(-limit);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) {
    v128.store(target + i, f32x4.min(f32x4.max(v128.load(target + i), low), high));
  }
  for (; i < bytes; i += 4) {
    setLanes(target + i, f32x4.min(f32x4.max(lanes(target + i, false), low), high), false);
  }
}
