/**
 * Copying bytes inside the space by WebAssembly's `memory.copy`, which is a native memmove; `copyWithin` on shared
 * memory goes word by word and took 5 times as long for 16 KiB. Not a kernel: it knows no element types. Invariant:
 * an offset or length outside the memory traps (a RangeError) and copies nothing.
 */
import { webAssembly } from '../../memory/index.ts';
import type { SharedSpace } from '../../memory/index.ts';

export type CopyBytes = (targetOffset: number, sourceOffset: number, byteLength: number) => void;

/** One function, `c`, of three i32 and no result, on the shared memory imported as `m.m`. */
const MODULE = Uint8Array.of(
  ...[0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0], // magic and version
  ...[1, 7, 1, 0x60, 3, 0x7f, 0x7f, 0x7f, 0], // type 0: (i32, i32, i32) -> ()
  ...[2, 11, 1, 1, 0x6d, 1, 0x6d, 2, 3, 0, 0x80, 0x80, 4], // import m.m: shared memory of 0 to 65536 pages
  ...[3, 2, 1, 0], // function 0 has type 0
  ...[7, 5, 1, 1, 0x63, 0, 0], // export function 0 as c
  ...[10, 14, 1, 12, 0, 0x20, 0, 0x20, 1, 0x20, 2, 0xfc, 10, 0, 0, 0x0b], // local.get 0, 1, 2; memory.copy
);

export function copyBytesIn(space: SharedSpace): CopyBytes {
  const instance = new webAssembly.Instance(new webAssembly.Module(MODULE), { m: { m: space.memory } });
  return instance.exports.c as CopyBytes;
}
