// One vector or one element: every kernel states its arithmetic once, on vectors, and runs its tail through
// the same lines with one lane filled. So a result never depends on where a range starts or ends.
// Offsets count up from 0 and are compared with lengths, never with an end pointer, which could wrap at 4 GiB.

// @ts-ignore: decorator
@inline
export function lanes(at: usize, whole: bool): v128 {
  return whole ? v128.load(at) : v128.load_zero<u32>(at);
}

// @ts-ignore: decorator
@inline
export function setLanes(at: usize, value: v128, whole: bool): void {
  if (whole) v128.store(at, value);
  else v128.store_lane<u32>(at, value, 0);
}

// The offset in an instruction must be a compile-time constant, and the only constants that an inlined
// function can take are its type arguments: so these types stand for their size.
@unmanaged export class Skip0 {}
@unmanaged export class Skip16 { a: v128; }
@unmanaged export class Skip32 { a: v128; b: v128; }
@unmanaged export class Skip48 { a: v128; b: v128; c: v128; }

/** A vector some bytes after `at`, or one element at it. */
// @ts-ignore: decorator
@inline
export function lanesAfter<Skip>(at: usize, whole: bool): v128 {
  return whole ? v128.load(at, offsetof<Skip>()) : v128.load_zero<u32>(at);
}

// @ts-ignore: decorator
@inline
export function setLanesAfter<Skip>(at: usize, value: v128, whole: bool): void {
  if (whole) v128.store(at, value, offsetof<Skip>());
  else v128.store_lane<u32>(at, value, 0);
}
