// Sparse gradients of embedding tables: from one row for each token to one row for each distinct token.
// The plan depends on the indices alone and costs no work by the size of the table: an LSD radix sort of
// (index, position), stable, so that rows are always added in the order of their positions.
import { lanes, setLanes } from './vector';

const RADIX: usize = 256;

/**
 * indices [n] -> unique ascending indices, their starts [unique + 1] in `order`, positions by index.
 * `scratch` holds 3 n + 256 words. Indices equal to `padding` are dropped (none is with padding -1).
 * Returns the number of unique indices, or -1 - position of the first index outside the table.
 */
export function planRows(
  indices: usize, n: i32, tableRows: i32, padding: i32, unique: usize, starts: usize, order: usize, scratch: usize,
): i32 {
  const counts = scratch;
  let keys = scratch + (RADIX << 2);
  let otherKeys = keys + ((<usize>n) << 2);
  let places = order;
  let otherPlaces = otherKeys + ((<usize>n) << 2);

  let kept: usize = 0;
  let bits: i32 = 0;
  for (let j: i32 = 0; j < n; j++) {
    const key = load<i32>(indices + ((<usize>j) << 2));
    if (<u32>key >= <u32>tableRows) return -1 - j;
    if (key == padding) continue;
    store<i32>(keys + (kept << 2), key);
    store<i32>(places + (kept << 2), j);
    bits |= key;
    kept++;
  }

  for (let shift: i32 = 0; shift < 32 && bits >>> shift; shift += 8) {
    memory.fill(counts, 0, RADIX << 2);
    for (let j: usize = 0; j < kept; j++) {
      const at = counts + (((load<i32>(keys + (j << 2)) >>> shift) & 255) << 2);
      store<i32>(at, load<i32>(at) + 1);
    }
    let before: i32 = 0;
    for (let digit: usize = 0; digit < RADIX; digit++) {
      const count = load<i32>(counts + (digit << 2));
      store<i32>(counts + (digit << 2), before);
      before += count;
    }
    for (let j: usize = 0; j < kept; j++) {
      const key = load<i32>(keys + (j << 2));
      const at = counts + (((key >>> shift) & 255) << 2);
      const to = <usize>load<i32>(at) << 2;
      store<i32>(at, load<i32>(at) + 1);
      store<i32>(otherKeys + to, key);
      store<i32>(otherPlaces + to, load<i32>(places + (j << 2)));
    }
    const heldKeys = keys;
    keys = otherKeys;
    otherKeys = heldKeys;
    const heldPlaces = places;
    places = otherPlaces;
    otherPlaces = heldPlaces;
  }
  if (places != order) memory.copy(order, places, kept << 2);

  let found: usize = 0;
  let last: i32 = -1;
  for (let j: usize = 0; j < kept; j++) {
    const key = load<i32>(keys + (j << 2));
    if (key == last) continue;
    store<i32>(unique + (found << 2), key);
    store<i32>(starts + (found << 2), <i32>j);
    last = key;
    found++;
  }
  store<i32>(starts + (found << 2), <i32>kept);
  return <i32>found;
}

/**
 * For each of n positions the number of its row among the unique ones, by what `planRows` made of them
 * without padding. Writes nothing and returns false if that is of other positions.
 */
export function numberRows(unique: i32, starts: usize, order: usize, numbers: usize, n: i32): bool {
  if (load<i32>(starts + ((<usize>unique) << 2)) != n) return false;
  let from: i32 = 0;
  for (let row: i32 = 0; row < unique; row++) {
    const to = load<i32>(starts + ((<usize>(row + 1)) << 2));
    if (load<i32>(starts + ((<usize>row) << 2)) != from || to < from || to > n) return false;
    from = to;
  }
  for (let j: i32 = 0; j < n; j++) {
    if (<u32>load<i32>(order + ((<usize>j) << 2)) >= <u32>n) return false;
  }
  let j: i32 = 0;
  for (let row: i32 = 0; row < unique; row++) {
    const to = load<i32>(starts + ((<usize>(row + 1)) << 2));
    for (; j < to; j++) {
      store<i32>(numbers + ((<usize>load<i32>(order + ((<usize>j) << 2))) << 2), row);
    }
  }
  return true;
}

// @ts-ignore: decorator
@inline
function sumColumn(order: usize, from: i32, to: i32, source: usize, rowBytes: usize, target: usize, whole: bool): void {
  let sum = lanes(source + <usize>load<i32>(order + ((<usize>from) << 2)) * rowBytes, whole);
  for (let j = from + 1; j < to; j++) {
    sum = f32x4.add(sum, lanes(source + <usize>load<i32>(order + ((<usize>j) << 2)) * rowBytes, whole));
  }
  setLanes(target, sum, whole);
}

/** Whether starts ascend within `order` and every position in it is one of `rowCount` rows. */
export function planFits(unique: i32, starts: usize, order: usize, orderLength: i32, rowCount: i32): bool {
  let before: i32 = 0;
  if (load<i32>(starts) != 0) return false;
  for (let u: i32 = 1; u <= unique; u++) {
    const start = load<i32>(starts + ((<usize>u) << 2));
    if (start <= before || start > orderLength) return false;
    before = start;
  }
  for (let j: i32 = 0; j < before; j++) {
    if (load<u32>(order + ((<usize>j) << 2)) >= <u32>rowCount) return false;
  }
  return true;
}

/** rowsOut [unique, rowLength] from rows [rowCount, rowLength], by the plan; 0 if the plan does not fit. */
export function sumRows(
  rows: usize, rowCount: i32, rowLength: usize, unique: i32, starts: usize, order: usize, orderLength: i32,
  rowsOut: usize,
): i32 {
  if (!planFits(unique, starts, order, orderLength, rowCount)) return 0;
  const rowBytes = rowLength << 2;
  for (let u: i32 = 0; u < unique; u++) {
    const from = load<i32>(starts + ((<usize>u) << 2));
    const to = load<i32>(starts + ((<usize>u) << 2), 4);
    const target = rowsOut + <usize>u * rowBytes;
    if (to - from == 1) {
      memory.copy(target, rows + <usize>load<i32>(order + ((<usize>from) << 2)) * rowBytes, rowBytes);
      continue;
    }
    let i: usize = 0;
    for (; i + 64 <= rowBytes; i += 64) {
      const first = rows + i + <usize>load<i32>(order + ((<usize>from) << 2)) * rowBytes;
      let a = v128.load(first);
      let b = v128.load(first, 16);
      let c = v128.load(first, 32);
      let d = v128.load(first, 48);
      for (let j = from + 1; j < to; j++) {
        const at = rows + i + <usize>load<i32>(order + ((<usize>j) << 2)) * rowBytes;
        a = f32x4.add(a, v128.load(at));
        b = f32x4.add(b, v128.load(at, 16));
        c = f32x4.add(c, v128.load(at, 32));
        d = f32x4.add(d, v128.load(at, 48));
      }
      v128.store(target + i, a);
      v128.store(target + i, b, 16);
      v128.store(target + i, c, 32);
      v128.store(target + i, d, 48);
    }
    for (; i + 16 <= rowBytes; i += 16) sumColumn(order, from, to, rows + i, rowBytes, target + i, true);
    for (; i < rowBytes; i += 4) sumColumn(order, from, to, rows + i, rowBytes, target + i, false);
  }
  return 1;
}

/** target[indices[j]] += rows[j]; returns the position of the first index outside the table, or -1. */
export function addRows(
  target: usize, tableRows: i32, rowLength: usize, indices: usize, count: i32, rows: usize,
): i32 {
  const rowBytes = rowLength << 2;
  const bad = firstBadIndex(indices, count, tableRows);
  if (bad >= 0) return bad;
  for (let j: i32 = 0; j < count; j++) {
    const to = target + <usize>load<i32>(indices + ((<usize>j) << 2)) * rowBytes;
    const from = rows + <usize>j * rowBytes;
    let i: usize = 0;
    for (; i + 16 <= rowBytes; i += 16) {
      v128.store(to + i, f32x4.add(v128.load(to + i), v128.load(from + i)));
    }
    for (; i < rowBytes; i += 4) setLanes(to + i, f32x4.add(lanes(to + i, false), lanes(from + i, false)), false);
  }
  return -1;
}

// @ts-ignore: decorator
@inline
function blendAt(target: usize, x: usize, keep: v128, share: v128, times: i32, whole: bool): void {
  const own = f32x4.mul(lanes(x, whole), share);
  let value = lanes(target, whole);
  for (let k: i32 = 0; k < times; k++) {
    const next = f32x4.add(f32x4.mul(value, keep), own);
    // What does not change once changes no more.
    const isSame = !v128.any_true(v128.xor(next, value));
    value = next;
    if (isSame) break;
  }
  setLanes(target, value, whole);
}

/** So many times: target[row] = keep * target[row] + share * x[row] for the rows of these indices, which are right. */
export function blendRows(
  target: usize, keep: f32, x: usize, share: f32, indices: usize, count: i32, rowLength: usize, times: i32,
): void {
  const rowBytes = rowLength << 2;
  const k = f32x4.splat(keep);
  const s = f32x4.splat(share);
  for (let j: i32 = 0; j < count; j++) {
    const at = indexAt(indices, j) * rowBytes;
    let i: usize = 0;
    for (; i + 16 <= rowBytes; i += 16) blendAt(target + at + i, x + at + i, k, s, times, true);
    for (; i < rowBytes; i += 4) blendAt(target + at + i, x + at + i, k, s, times, false);
  }
}

/** Position of the first of `count` indices that is not below `rows`, or -1; without indices (0) they are 0, 1, 2 ... */
export function firstBadIndex(indices: usize, count: i32, rows: i32): i32 {
  if (!indices) return count > rows ? rows : -1;
  for (let j: i32 = 0; j < count; j++) {
    if (load<u32>(indices + ((<usize>j) << 2)) >= <u32>rows) return j;
  }
  return -1;
}

// @ts-ignore: decorator
@inline
function indexAt(indices: usize, j: i32): usize {
  return indices ? <usize>load<i32>(indices + ((<usize>j) << 2)) : <usize>j;
}

// Not memory.copy, which copies shared memory word by word.
// @ts-ignore: decorator
@inline
export function copyRow(target: usize, source: usize, bytes: usize): void {
  let i: usize = 0;
  for (; i + 64 <= bytes; i += 64) {
    v128.store(target + i, v128.load(source + i));
    v128.store(target + i, v128.load(source + i, 16), 16);
    v128.store(target + i, v128.load(source + i, 32), 32);
    v128.store(target + i, v128.load(source + i, 48), 48);
  }
  for (; i + 16 <= bytes; i += 16) v128.store(target + i, v128.load(source + i));
  for (; i < bytes; i += 4) store<u32>(target + i, load<u32>(source + i));
}

/** target[into[j]] = source[from[j]]; without indices (0) rows are taken one after the other. Indices are right. */
export function copyRows(target: usize, into: usize, source: usize, from: usize, count: i32, rowLength: usize): void {
  const rowBytes = rowLength << 2;
  for (let j: i32 = 0; j < count; j++) {
    copyRow(target + indexAt(into, j) * rowBytes, source + indexAt(from, j) * rowBytes, rowBytes);
  }
}

/** target[i] = the sum of the rows at these addresses, in the order of the plan from one place to another. */
export function sumRowsAt(
  addresses: usize, order: usize, from: i32, to: i32, target: usize, rowBytes: usize,
): void {
  const first = <usize>load<u32>(addresses + (<usize>load<i32>(order + ((<usize>from) << 2)) << 2));
  copyRow(target, first, rowBytes);
  for (let j = from + 1; j < to; j++) {
    const row = <usize>load<u32>(addresses + (<usize>load<i32>(order + ((<usize>j) << 2)) << 2));
    let i: usize = 0;
    for (; i + 16 <= rowBytes; i += 16) {
      v128.store(target + i, f32x4.add(v128.load(target + i), v128.load(row + i)));
    }
    for (; i < rowBytes; i += 4) {
      setLanes(target + i, f32x4.add(lanes(target + i, false), lanes(row + i, false)), false);
    }
  }
}
