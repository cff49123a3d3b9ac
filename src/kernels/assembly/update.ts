// Update rules, each one pass over parameter, gradient and slots. Formulas are PyTorch's: lr outside the
// buffers, eps outside the root except in adadelta. `zero` means a gradient of zeros that is not in memory,
// for the rows of a table that a sparse gradient does not name; the arithmetic is the same.
//
// Every rule has one signature, so that rows and ranges are driven by one loop:
// h0 the step's learning rate, h1 factor of the gradient, h2 weight decay added to the gradient, others by rule.
import { sumFloat32 } from './reduce';
import { copyRow, planFits, sumRowsAt } from './rows';
import { lanes, setLanes } from './vector';

const NESTEROV: i32 = 1;
const FIRST: i32 = 2;
const CENTERED: i32 = 1;
const BUFFERED: i32 = 2;
const AMSGRAD: i32 = 1;

// @ts-ignore: decorator
@inline
function gradient(p: v128, g: usize, i: usize, zero: bool, factor: v128, decay: v128, whole: bool): v128 {
  const own = zero ? f32x4.splat(0) : f32x4.mul(lanes(g + i, whole), factor);
  return f32x4.add(own, f32x4.mul(p, decay));
}

// @ts-ignore: decorator
@inline
function sgdAt(p: usize, g: usize, i: usize, zero: bool, lr: v128, factor: v128, decay: v128, whole: bool): void {
  const value = lanes(p + i, whole);
  const d = gradient(value, g, i, zero, factor, decay, whole);
  setLanes(p + i, f32x4.sub(value, f32x4.mul(lr, d)), whole);
}

// @ts-ignore: decorator
@inline
function sgd(p: usize, g: usize, n: usize, zero: bool, h0: f32, h1: f32, h2: f32): void {
  const lr = f32x4.splat(h0);
  const factor = f32x4.splat(h1);
  const decay = f32x4.splat(h2);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 32 <= bytes; i += 32) {
    sgdAt(p, g, i, zero, lr, factor, decay, true);
    sgdAt(p, g, i + 16, zero, lr, factor, decay, true);
  }
  for (; i < bytes; i += 4) sgdAt(p, g, i, zero, lr, factor, decay, false);
}

// @ts-ignore: decorator
@inline
function momentumAt(
  p: usize, g: usize, s: usize, i: usize, zero: bool, flags: i32,
  lr: v128, factor: v128, decay: v128, momentum: v128, share: v128, whole: bool,
): void {
  const value = lanes(p + i, whole);
  const d = gradient(value, g, i, zero, factor, decay, whole);
  const buffer = flags & FIRST ? d : f32x4.add(f32x4.mul(momentum, lanes(s + i, whole)), f32x4.mul(share, d));
  setLanes(s + i, buffer, whole);
  const step = flags & NESTEROV ? f32x4.add(d, f32x4.mul(momentum, buffer)) : buffer;
  setLanes(p + i, f32x4.sub(value, f32x4.mul(lr, step)), whole);
}

/** h3 momentum, h4 1 - dampening. */
// @ts-ignore: decorator
@inline
function momentum(
  p: usize, g: usize, s: usize, n: usize, zero: bool, flags: i32, h0: f32, h1: f32, h2: f32, h3: f32, h4: f32,
): void {
  const lr = f32x4.splat(h0);
  const factor = f32x4.splat(h1);
  const decay = f32x4.splat(h2);
  const keep = f32x4.splat(h3);
  const share = f32x4.splat(h4);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) momentumAt(p, g, s, i, zero, flags, lr, factor, decay, keep, share, true);
  for (; i < bytes; i += 4) momentumAt(p, g, s, i, zero, flags, lr, factor, decay, keep, share, false);
}

// @ts-ignore: decorator
@inline
function adagradAt(
  p: usize, g: usize, s: usize, i: usize, zero: bool,
  lr: v128, factor: v128, decay: v128, eps: v128, whole: bool,
): void {
  const value = lanes(p + i, whole);
  const d = gradient(value, g, i, zero, factor, decay, whole);
  const sum = f32x4.add(lanes(s + i, whole), f32x4.mul(d, d));
  setLanes(s + i, sum, whole);
  const step = f32x4.div(d, f32x4.add(f32x4.sqrt(sum), eps));
  setLanes(p + i, f32x4.sub(value, f32x4.mul(lr, step)), whole);
}

/** h3 eps. */
// @ts-ignore: decorator
@inline
function adagrad(p: usize, g: usize, s: usize, n: usize, zero: bool, h0: f32, h1: f32, h2: f32, h3: f32): void {
  const lr = f32x4.splat(h0);
  const factor = f32x4.splat(h1);
  const decay = f32x4.splat(h2);
  const eps = f32x4.splat(h3);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) adagradAt(p, g, s, i, zero, lr, factor, decay, eps, true);
  for (; i < bytes; i += 4) adagradAt(p, g, s, i, zero, lr, factor, decay, eps, false);
}

// @ts-ignore: decorator
@inline
function rmspropAt(
  p: usize, g: usize, squares: usize, buffer: usize, average: usize, i: usize, zero: bool, flags: i32,
  lr: v128, factor: v128, decay: v128, alpha: v128, share: v128, eps: v128, keep: v128, whole: bool,
): void {
  const value = lanes(p + i, whole);
  const d = gradient(value, g, i, zero, factor, decay, whole);
  const v = f32x4.add(f32x4.mul(alpha, lanes(squares + i, whole)), f32x4.mul(share, f32x4.mul(d, d)));
  setLanes(squares + i, v, whole);
  let spread = v;
  if (flags & CENTERED) {
    const mean = f32x4.add(f32x4.mul(alpha, lanes(average + i, whole)), f32x4.mul(share, d));
    setLanes(average + i, mean, whole);
    // Rounding can take the variance of a constant gradient below zero.
    spread = f32x4.max(f32x4.sub(v, f32x4.mul(mean, mean)), f32x4.splat(0));
  }
  let step = f32x4.div(d, f32x4.add(f32x4.sqrt(spread), eps));
  if (flags & BUFFERED) {
    step = f32x4.add(f32x4.mul(keep, lanes(buffer + i, whole)), step);
    setLanes(buffer + i, step, whole);
  }
  setLanes(p + i, f32x4.sub(value, f32x4.mul(lr, step)), whole);
}

/** h3 alpha, h4 1 - alpha, h5 eps, h6 momentum. */
// @ts-ignore: decorator
@inline
function rmsprop(
  p: usize, g: usize, s0: usize, s1: usize, s2: usize, n: usize, zero: bool, flags: i32,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32,
): void {
  const lr = f32x4.splat(h0);
  const factor = f32x4.splat(h1);
  const decay = f32x4.splat(h2);
  const alpha = f32x4.splat(h3);
  const share = f32x4.splat(h4);
  const eps = f32x4.splat(h5);
  const keep = f32x4.splat(h6);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) {
    rmspropAt(p, g, s0, s1, s2, i, zero, flags, lr, factor, decay, alpha, share, eps, keep, true);
  }
  for (; i < bytes; i += 4) {
    rmspropAt(p, g, s0, s1, s2, i, zero, flags, lr, factor, decay, alpha, share, eps, keep, false);
  }
}

// @ts-ignore: decorator
@inline
function adamAt(
  p: usize, g: usize, first: usize, second: usize, largest: usize, i: usize, zero: bool, flags: i32,
  lr: v128, factor: v128, decay: v128, b1: v128, c1: v128, b2: v128, c2: v128, correction: v128, eps: v128,
  shrink: v128, whole: bool,
): void {
  const value = lanes(p + i, whole);
  const d = gradient(value, g, i, zero, factor, decay, whole);
  const m = f32x4.add(f32x4.mul(b1, lanes(first + i, whole)), f32x4.mul(c1, d));
  setLanes(first + i, m, whole);
  let v = f32x4.add(f32x4.mul(b2, lanes(second + i, whole)), f32x4.mul(c2, f32x4.mul(d, d)));
  setLanes(second + i, v, whole);
  if (flags & AMSGRAD) {
    v = f32x4.max(lanes(largest + i, whole), v);
    setLanes(largest + i, v, whole);
  }
  const step = f32x4.div(m, f32x4.add(f32x4.mul(f32x4.sqrt(v), correction), eps));
  setLanes(p + i, f32x4.sub(f32x4.mul(value, shrink), f32x4.mul(lr, step)), whole);
}

/** h0 lr / (1 - b1^t), h3 b1, h4 1 - b1, h5 b2, h6 1 - b2, h7 1 / sqrt(1 - b2^t), h8 eps, h9 1 - lr * decoupled decay. */
// @ts-ignore: decorator
@inline
function adam(
  p: usize, g: usize, s0: usize, s1: usize, s2: usize, n: usize, zero: bool, flags: i32,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32, h7: f32, h8: f32, h9: f32,
): void {
  const lr = f32x4.splat(h0);
  const factor = f32x4.splat(h1);
  const decay = f32x4.splat(h2);
  const b1 = f32x4.splat(h3);
  const c1 = f32x4.splat(h4);
  const b2 = f32x4.splat(h5);
  const c2 = f32x4.splat(h6);
  const correction = f32x4.splat(h7);
  const eps = f32x4.splat(h8);
  const shrink = f32x4.splat(h9);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) {
    adamAt(p, g, s0, s1, s2, i, zero, flags, lr, factor, decay, b1, c1, b2, c2, correction, eps, shrink, true);
  }
  for (; i < bytes; i += 4) {
    adamAt(p, g, s0, s1, s2, i, zero, flags, lr, factor, decay, b1, c1, b2, c2, correction, eps, shrink, false);
  }
}

// @ts-ignore: decorator
@inline
function adadeltaAt(
  p: usize, g: usize, squares: usize, deltas: usize, i: usize, zero: bool,
  lr: v128, factor: v128, decay: v128, rho: v128, share: v128, eps: v128, whole: bool,
): void {
  const value = lanes(p + i, whole);
  const d = gradient(value, g, i, zero, factor, decay, whole);
  const v = f32x4.add(f32x4.mul(rho, lanes(squares + i, whole)), f32x4.mul(share, f32x4.mul(d, d)));
  setLanes(squares + i, v, whole);
  const before = lanes(deltas + i, whole);
  const ratio = f32x4.div(f32x4.sqrt(f32x4.add(before, eps)), f32x4.sqrt(f32x4.add(v, eps)));
  const step = f32x4.mul(ratio, d);
  setLanes(deltas + i, f32x4.add(f32x4.mul(rho, before), f32x4.mul(share, f32x4.mul(step, step))), whole);
  setLanes(p + i, f32x4.sub(value, f32x4.mul(lr, step)), whole);
}

/** h3 rho, h4 1 - rho, h5 eps. */
// @ts-ignore: decorator
@inline
function adadelta(
  p: usize, g: usize, s0: usize, s1: usize, n: usize, zero: bool,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32,
): void {
  const lr = f32x4.splat(h0);
  const factor = f32x4.splat(h1);
  const decay = f32x4.splat(h2);
  const rho = f32x4.splat(h3);
  const share = f32x4.splat(h4);
  const eps = f32x4.splat(h5);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) {
    adadeltaAt(p, g, s0, s1, i, zero, lr, factor, decay, rho, share, eps, true);
  }
  for (; i < bytes; i += 4) {
    adadeltaAt(p, g, s0, s1, i, zero, lr, factor, decay, rho, share, eps, false);
  }
}

// @ts-ignore: decorator
@inline
function apply(
  rule: i32, flags: i32, p: usize, g: usize, s0: usize, s1: usize, s2: usize, n: usize, zero: bool,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32, h7: f32, h8: f32, h9: f32,
): void {
  if (rule == 0) sgd(p, g, n, zero, h0, h1, h2);
  else if (rule == 1) {
    if (flags == 0) momentum(p, g, s0, n, zero, 0, h0, h1, h2, h3, h4);
    else if (flags == 1) momentum(p, g, s0, n, zero, 1, h0, h1, h2, h3, h4);
    else if (flags == 2) momentum(p, g, s0, n, zero, 2, h0, h1, h2, h3, h4);
    else momentum(p, g, s0, n, zero, 3, h0, h1, h2, h3, h4);
  } else if (rule == 2) adagrad(p, g, s0, n, zero, h0, h1, h2, h3);
  else if (rule == 3) {
    if (flags == 0) rmsprop(p, g, s0, s1, s2, n, zero, 0, h0, h1, h2, h3, h4, h5, h6);
    else if (flags == 1) rmsprop(p, g, s0, s1, s2, n, zero, 1, h0, h1, h2, h3, h4, h5, h6);
    else if (flags == 2) rmsprop(p, g, s0, s1, s2, n, zero, 2, h0, h1, h2, h3, h4, h5, h6);
    else rmsprop(p, g, s0, s1, s2, n, zero, 3, h0, h1, h2, h3, h4, h5, h6);
  } else if (rule == 4) {
    if (flags == 0) adam(p, g, s0, s1, s2, n, zero, 0, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9);
    else adam(p, g, s0, s1, s2, n, zero, 1, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9);
  } else adadelta(p, g, s0, s1, n, zero, h0, h1, h2, h3, h4, h5);
}

/** One rule on `n` elements. */
export function update(
  rule: i32, flags: i32, p: usize, g: usize, s0: usize, s1: usize, s2: usize, n: usize,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32, h7: f32, h8: f32, h9: f32,
): void {
  apply(rule, flags, p, g, s0, s1, s2, n, false, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9);
}

// So few that the sum stays in the nearest cache, and that all vectors are read side by side: memory then has more to do
// at a time than if the gradients came first and the parameters afterwards.
const SUMMED_AT_ONCE: usize = 512;

/** One rule on `n` elements whose gradient is the sum of k vectors; `scratch` holds one block of it. */
export function sumAndUpdate(
  k: i32, scratch: usize,
  p0: usize, p1: usize, p2: usize, p3: usize, p4: usize, p5: usize, p6: usize, p7: usize,
  rule: i32, flags: i32, p: usize, s0: usize, s1: usize, s2: usize, n: usize,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32, h7: f32, h8: f32, h9: f32,
): void {
  for (let done: usize = 0; done < n; done += SUMMED_AT_ONCE) {
    const count = n - done < SUMMED_AT_ONCE ? n - done : SUMMED_AT_ONCE;
    const a = done << 2;
    sumFloat32(k, scratch, p0 + a, p1 + a, p2 + a, p3 + a, p4 + a, p5 + a, p6 + a, p7 + a, count);
    update(
      rule, flags, p + a, scratch, s0 + a, s1 + a, s2 + a, count, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9,
    );
  }
}

/** One rule on `n` elements whose gradient is zero. */
function updateWithoutGradient(
  rule: i32, flags: i32, p: usize, s0: usize, s1: usize, s2: usize, n: usize,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32, h7: f32, h8: f32, h9: f32,
): void {
  apply(rule, flags, p, 0, s0, s1, s2, n, true, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9);
}

/** Position of the first index that is not in the table or not above the one before; -1 if all are right. */
function firstBadRow(indices: usize, count: i32, tableRows: i32): i32 {
  let before: i32 = -1;
  for (let j: i32 = 0; j < count; j++) {
    const row = load<i32>(indices + ((<usize>j) << 2));
    if (row <= before || row >= tableRows) return j;
    before = row;
  }
  return -1;
}

/**
 * One rule on the rows that `indices` names, and with `exact` on all others with a gradient of zero.
 * Returns the position of the first bad index, with nothing changed, or -1.
 */
export function updateRows(
  exact: i32, indices: usize, count: i32, rows: usize, rowLength: usize, tableRows: i32,
  rule: i32, flags: i32, p: usize, s0: usize, s1: usize, s2: usize,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32, h7: f32, h8: f32, h9: f32,
): i32 {
  const bad = firstBadRow(indices, count, tableRows);
  if (bad >= 0) return bad;
  const rowBytes = rowLength << 2;
  let next: usize = 0;
  for (let j: i32 = 0; j < count; j++) {
    const row = <usize>load<i32>(indices + ((<usize>j) << 2));
    if (exact && row > next) {
      const at = next * rowBytes;
      const gap = (row - next) * rowLength;
      updateWithoutGradient(
        rule, flags, p + at, s0 + at, s1 + at, s2 + at, gap, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9,
      );
    }
    const at = row * rowBytes;
    update(
      rule, flags, p + at, rows + <usize>j * rowBytes, s0 + at, s1 + at, s2 + at, rowLength,
      h0, h1, h2, h3, h4, h5, h6, h7, h8, h9,
    );
    next = row + 1;
  }
  if (exact && next < <usize>tableRows) {
    const at = next * rowBytes;
    const gap = (<usize>tableRows - next) * rowLength;
    updateWithoutGradient(
      rule, flags, p + at, s0 + at, s1 + at, s2 + at, gap, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9,
    );
  }
  return -1;
}

// As many bytes as stay in the nearest cache from the moment they are touched until they are used.
const TOUCHED_AT_ONCE: usize = 16384;
const LINE: usize = 64;

// @ts-ignore: decorator
@inline
function touch(row: usize, rowBytes: usize): i32 {
  let seen: i32 = 0;
  for (let i: usize = 0; i < rowBytes; i += LINE) seen |= load<i32>(row + i);
  return seen;
}

// @ts-ignore: decorator
@inline
function rowAt(addresses: usize, order: usize, j: i32): usize {
  return <usize>load<u32>(addresses + (<usize>load<i32>(order + ((<usize>j) << 2)) << 2));
}

/**
 * One rule on the rows of a plan; the gradient of each is the sum of the rows at `addresses` that the plan puts together.
 * With `answers`, the new row is written to the address there of each row that was added, unless it is 0.
 * Rows lie anywhere, so a processor cannot see what comes next: some are touched together first, which waits for memory
 * once and not once for each. `scratch` holds one row. Returns the position of the first bad index, or -2 if the plan does
 * not fit, with nothing changed, or else -1.
 */
export function sumAndUpdateRows(
  indices: usize, count: i32, starts: usize, order: usize, addresses: usize, answers: usize, scratch: usize,
  addressCount: i32, rowLength: usize, tableRows: i32,
  rule: i32, flags: i32, p: usize, s0: usize, s1: usize, s2: usize,
  h0: f32, h1: f32, h2: f32, h3: f32, h4: f32, h5: f32, h6: f32, h7: f32, h8: f32, h9: f32,
): i32 {
  if (!planFits(count, starts, order, addressCount, addressCount)) return -2;
  const bad = firstBadRow(indices, count, tableRows);
  if (bad >= 0) return bad;
  const rowBytes = rowLength << 2;
  const together = <i32>max<usize>(1, TOUCHED_AT_ONCE / (4 * rowBytes));
  for (let first: i32 = 0; first < count; first += together) {
    const end = min(count, first + together);
    let seen: i32 = 0;
    for (let u = first; u < end; u++) {
      const at = <usize>load<i32>(indices + ((<usize>u) << 2)) * rowBytes;
      const from = load<i32>(starts + ((<usize>u) << 2));
      seen |= touch(p + at, rowBytes) | touch(rowAt(addresses, order, from), rowBytes);
      if (s0) seen |= touch(s0 + at, rowBytes);
      if (s1) seen |= touch(s1 + at, rowBytes);
      if (s2) seen |= touch(s2 + at, rowBytes);
      const answer = answers ? rowAt(answers, order, from) : 0;
      if (answer) seen |= touch(answer, rowBytes);
    }
    // So that nothing of it is left out.
    store<i32>(scratch, seen);
    for (let u = first; u < end; u++) {
      const at = <usize>load<i32>(indices + ((<usize>u) << 2)) * rowBytes;
      const from = load<i32>(starts + ((<usize>u) << 2));
      const to = load<i32>(starts + ((<usize>u) << 2), 4);
      let gradient = rowAt(addresses, order, from);
      if (to - from > 1) {
        sumRowsAt(addresses, order, from, to, scratch, rowBytes);
        gradient = scratch;
      }
      update(
        rule, flags, p + at, gradient, s0 + at, s1 + at, s2 + at, rowLength, h0, h1, h2, h3, h4, h5, h6, h7, h8, h9,
      );
      if (!answers) continue;
      for (let j = from; j < to; j++) {
        const answer = rowAt(answers, order, j);
        if (answer) copyRow(answer, p + at, rowBytes);
      }
    }
  }
  return -1;
}

// @ts-ignore: decorator
@inline
function elasticAt(worker: usize, centre: usize, i: usize, alpha: v128, whole: bool): void {
  const w = lanes(worker + i, whole);
  const c = lanes(centre + i, whole);
  const pull = f32x4.mul(alpha, f32x4.sub(w, c));
  setLanes(centre + i, f32x4.add(c, pull), whole);
  setLanes(worker + i, f32x4.sub(w, pull), whole);
}

/** d = w - c; c += alpha d; w -= alpha d. */
export function elastic(worker: usize, centre: usize, alpha: f32, n: usize): void {
  const a = f32x4.splat(alpha);
  const bytes = n << 2;
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) elasticAt(worker, centre, i, a, true);
  for (; i < bytes; i += 4) elasticAt(worker, centre, i, a, false);
}
