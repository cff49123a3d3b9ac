/** Regions for kernel tests: any length at any element offset from a cache line, with guards around. */
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { DType, Region, Segment } from '../../src/memory/index.ts';

const ARENA_BYTES = 4 * 2 ** 20;

export class Arena {
  readonly space = SharedSpace.create({ maxBytes: 16 * 2 ** 20 });
  readonly kernels = Kernels.create(this.space);
  #segment: Segment = this.space.allocate(ARENA_BYTES);
  readonly #guards: Region<'uint8'>[] = [];

  get segment(): Segment {
    return this.#segment;
  }

  /** Forgets all regions. */
  reset(): void {
    this.#segment.close();
    this.#segment = this.space.allocate(ARENA_BYTES);
    this.#guards.length = 0;
  }

  region<T extends DType>(dtype: T, values: ArrayLike<number>, offset = 0): Region<T> {
    const before = this.#segment.allocate('uint8', 64);
    const whole = this.#segment.allocate(dtype, offset + values.length);
    const after = this.#segment.allocate('uint8', 64);
    // The guard behind starts at the next cache line; what lies between is covered by the kernels' own tails.
    for (const guard of [before, after]) {
      guard.view.fill(0xa5);
      this.#guards.push(guard);
    }
    const region = whole.slice(offset, values.length);
    (region.view as unknown as Float32Array).set(values);
    return region;
  }

  floats(values: ArrayLike<number>, offset = 0): Region<'float32'> {
    return this.region('float32', values, offset);
  }

  guardsIntact(): boolean {
    return this.#guards.every((guard) => guard.view.every((byte) => byte === 0xa5));
  }
}

/** Number as the vectors write it: not finite ones are strings. */
export type Written = number | string;

export function numbers(values: readonly Written[]): number[] {
  return values.map(Number);
}

export interface Tolerance {
  readonly rtol: number;
  readonly atol: number;
}

/** The first element outside the tolerance, in words, or undefined. */
export function mismatch(
  got: ArrayLike<number>,
  want: ArrayLike<number>,
  { rtol, atol }: Tolerance,
): string | undefined {
  if (got.length !== want.length) return `length ${got.length}, want ${want.length}`;
  for (let i = 0; i < want.length; i++) {
    const g = got[i]!;
    const w = want[i]!;
    if (Number.isNaN(w) ? Number.isNaN(g) : g === w || Math.abs(g - w) <= atol + rtol * Math.abs(w)) continue;
    return `element ${i}: got ${g}, want ${w}`;
  }
  return undefined;
}
