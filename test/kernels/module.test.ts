import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';

const IMPORTS = 2;
const GLOBALS = 6;
const DATA = 11;

function sections(bytes: Uint8Array): Map<number, number> {
  const found = new Map<number, number>();
  let at = 8;
  while (at < bytes.length) {
    const id = bytes[at++]!;
    let size = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++]!;
      size |= (byte & 127) << shift;
      if (byte < 128) break;
    }
    found.set(id, size);
    at += size;
  }
  return found;
}

describe('the compiled kernels', () => {
  it('keep nothing in the memory of the space: no data, no globals', () => {
    const found = sections(readFileSync(new URL('../../build/kernels.wasm', import.meta.url)));
    expect(found.has(IMPORTS)).toBe(true);
    expect(found.has(DATA)).toBe(false);
    expect(found.has(GLOBALS)).toBe(false);
  });

  it('reach the end of the largest space', () => {
    const space = SharedSpace.create();
    const kernels = Kernels.create(space);
    const segment = space.allocate(space.capacityBytes);
    const last = segment.region('float32', segment.byteLength - 4 * 37, 37);
    expect(last.byteOffset + last.byteLength).toBe(2 ** 32);
    last.view.fill(2);
    kernels.sum(last, [last, last, last]);
    kernels.scale(last, 0.5);
    kernels.fill(last.slice(36, 1), 4);
    expect(kernels.absSum(last)).toBe(36 * 3 + 4);
    segment.close();
  });
});
