// Sums over one or two vectors, in float64, so that neither huge nor tiny values are lost. `n` counts elements.

// @ts-ignore: decorator
@inline
function lowHalf(v: v128): v128 {
  return f64x2.promote_low_f32x4(v);
}

// @ts-ignore: decorator
@inline
function highHalf(v: v128): v128 {
  return f64x2.promote_low_f32x4(v128.shuffle<f32>(v, v, 2, 3, 2, 3));
}

// @ts-ignore: decorator
@inline
function total(a: v128, b: v128): f64 {
  const sum = f64x2.add(a, b);
  return f64x2.extract_lane(sum, 0) + f64x2.extract_lane(sum, 1);
}

export function dotFloat32(x: usize, y: usize, n: usize): f64 {
  const bytes = n << 2;
  let a0 = f64x2.splat(0);
  let a1 = f64x2.splat(0);
  let b0 = f64x2.splat(0);
  let b1 = f64x2.splat(0);
  let i: usize = 0;
  for (; i + 32 <= bytes; i += 32) {
    const x0 = v128.load(x + i);
    const y0 = v128.load(y + i);
    const x1 = v128.load(x + i, 16);
    const y1 = v128.load(y + i, 16);
    a0 = f64x2.add(a0, f64x2.mul(lowHalf(x0), lowHalf(y0)));
    a1 = f64x2.add(a1, f64x2.mul(highHalf(x0), highHalf(y0)));
    b0 = f64x2.add(b0, f64x2.mul(lowHalf(x1), lowHalf(y1)));
    b1 = f64x2.add(b1, f64x2.mul(highHalf(x1), highHalf(y1)));
  }
  let rest: f64 = 0;
  for (; i < bytes; i += 4) rest += <f64>load<f32>(x + i) * <f64>load<f32>(y + i);
  return total(f64x2.add(a0, b0), f64x2.add(a1, b1)) + rest;
}

// @ts-ignore: decorator
@inline
function squares(pair: v128): v128 {
  const v = f64x2.promote_low_f32x4(pair);
  return f64x2.mul(v, v);
}

export function sumOfSquaresFloat32(x: usize, n: usize): f64 {
  const bytes = n << 2;
  let a0 = f64x2.splat(0);
  let a1 = f64x2.splat(0);
  let b0 = f64x2.splat(0);
  let b1 = f64x2.splat(0);
  let i: usize = 0;
  for (; i + 32 <= bytes; i += 32) {
    a0 = f64x2.add(a0, squares(v128.load_zero<u64>(x + i)));
    a1 = f64x2.add(a1, squares(v128.load_zero<u64>(x + i, 8)));
    b0 = f64x2.add(b0, squares(v128.load_zero<u64>(x + i, 16)));
    b1 = f64x2.add(b1, squares(v128.load_zero<u64>(x + i, 24)));
  }
  let rest: f64 = 0;
  for (; i < bytes; i += 4) rest += <f64>load<f32>(x + i) * <f64>load<f32>(x + i);
  return total(f64x2.add(a0, b0), f64x2.add(a1, b1)) + rest;
}

export function absSumFloat32(x: usize, n: usize): f64 {
  const bytes = n << 2;
  let a0 = f64x2.splat(0);
  let a1 = f64x2.splat(0);
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) {
    const v = f32x4.abs(v128.load(x + i));
    a0 = f64x2.add(a0, lowHalf(v));
    a1 = f64x2.add(a1, highHalf(v));
  }
  let rest: f64 = 0;
  for (; i < bytes; i += 4) rest += <f64>abs<f32>(load<f32>(x + i));
  return total(a0, a1) + rest;
}

// By the binary digits of the order: whole ones by squaring, those behind the point by square roots. Math.pow
// needs tables in memory, which kernels do not have.
// @ts-ignore: decorator
@inline
function power(x: f64, order: f64): f64 {
  let whole = floor(order);
  let fraction = order - whole;
  let result: f64 = 1;
  for (let square = x; whole > 0; square *= square) {
    const half = floor(whole * 0.5);
    if (half * 2 != whole) result *= square;
    whole = half;
  }
  for (let root = x; fraction > 0; ) {
    root = sqrt(root);
    fraction *= 2;
    if (fraction >= 1) {
      result *= root;
      fraction -= 1;
    }
  }
  return result;
}

/** The sum of (|x| * factor)^order. */
export function sumOfPowersFloat32(x: usize, factor: f64, order: f64, n: usize): f64 {
  const bytes = n << 2;
  let sum: f64 = 0;
  for (let i: usize = 0; i < bytes; i += 4) sum += power(abs<f64>(<f64>load<f32>(x + i)) * factor, order);
  return sum;
}

/** NaN if any element is NaN. */
export function absMaxFloat32(x: usize, n: usize): f32 {
  const bytes = n << 2;
  let m = f32x4.splat(0);
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) m = f32x4.max(m, f32x4.abs(v128.load(x + i)));
  let result = max<f32>(
    max<f32>(f32x4.extract_lane(m, 0), f32x4.extract_lane(m, 1)),
    max<f32>(f32x4.extract_lane(m, 2), f32x4.extract_lane(m, 3)),
  );
  for (; i < bytes; i += 4) result = max<f32>(result, abs<f32>(load<f32>(x + i)));
  return result;
}
