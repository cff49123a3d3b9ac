/**
 * The shared space as plain bytes, for the parts of the engine that copy and hand out addresses. Offsets are those of the
 * WebAssembly memory. Invariant: `base + offset` is the native address of the byte at `offset`.
 */
import type { SharedSpace } from '../memory/index.ts';
import { libc } from './libc.ts';
import type { Libc } from './libc.ts';

/** Below this a copy in JavaScript is quicker than a call. */
const NATIVE_COPY_BYTES = 2048;

/** A range of the space, for staging or for bytes that nobody wants. */
export interface ByteRange {
  readonly byteOffset: number;
  readonly byteLength: number;
}

export class SpaceBytes {
  readonly base: number;
  readonly bytes: Uint8Array;
  readonly #libc: Libc = libc();

  constructor(space: SharedSpace) {
    this.base = Number(space.baseAddress);
    this.bytes = new Uint8Array(space.buffer);
  }

  copy(to: number, from: number, bytes: number): void {
    if (bytes > NATIVE_COPY_BYTES) this.#libc.copy(this.base + to, this.base + from, bytes);
    else this.bytes.copyWithin(to, from, from + bytes);
  }
}
