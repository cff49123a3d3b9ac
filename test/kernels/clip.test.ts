import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { clipByGlobalNorm, clipFactor, combineNorms, globalNorm } from '../../src/kernels/index.ts';
import { readVectors } from '../support/shared.ts';
import { Arena, mismatch, numbers } from './arena.ts';
import type { Tolerance, Written } from './arena.ts';

interface ClipCase {
  readonly name: string;
  readonly kind: 'global_norm' | 'value';
  readonly norm_type?: Written;
  readonly max_norm?: number;
  readonly clip_value?: number;
  readonly total_norm?: number;
  readonly scale?: number;
  readonly grads: readonly { readonly data: readonly Written[] }[];
  readonly clipped: readonly { readonly data: readonly Written[] }[];
  readonly tolerance: Tolerance;
}

const arena = new Arena();
const { kernels } = arena;
beforeEach(() => arena.reset());

describe('clipping, by the oracle vectors', () => {
  it.each(readVectors<ClipCase>('clip.json'))('$name', (c) => {
    const regions = c.grads.map((grad, i) => arena.floats(numbers(grad.data), i % 4));
    if (c.kind === 'value') {
      for (const region of regions) kernels.clipByValue(region, c.clip_value!);
    } else {
      const order = c.norm_type === 'inf' ? Infinity : Number(c.norm_type);
      const norm = clipByGlobalNorm(kernels, regions, c.max_norm!, order);
      expect(mismatch([norm], [c.total_norm!], { rtol: 1e-9, atol: 0 })).toBe(undefined);
      expect(mismatch([clipFactor(norm, c.max_norm!)], [c.scale!], { rtol: 1e-9, atol: 0 })).toBe(undefined);
    }
    for (const [i, want] of c.clipped.entries()) {
      expect(mismatch(regions[i]!.view, numbers(want.data), c.tolerance)).toBe(undefined);
    }
  });
});

/** Orders that are whole, that end after some binary digits, and that never do; the last is beyond any loop by ones. */
const ORDERS = [1, 1.1, 1.5, 2, 2.25, 3, Math.PI, 7, 64, 1e9, Infinity];

function plainNorm(values: ArrayLike<number>, order: number): number {
  const magnitudes = Array.from(values, Math.abs);
  const largest = Math.max(0, ...magnitudes);
  if (largest === 0 || order === Infinity) return largest;
  return largest * magnitudes.reduce((sum, one) => sum + (one / largest) ** order, 0) ** (1 / order);
}

describe('a global norm', () => {
  it('is the same when norms of parts are combined', () => {
    const values = Float32Array.from({ length: 101 }, (_, i) => Math.sin(i) * 10 ** ((i % 9) - 4));
    const whole = arena.floats(values);
    const parts = [whole.slice(0, 33), whole.slice(33, 7), whole.slice(40, 61)];
    for (const order of ORDERS) {
      const one = globalNorm(kernels, [whole], order);
      const many = combineNorms(
        parts.map((part) => globalNorm(kernels, [part], order)),
        order,
      );
      expect(mismatch([many, globalNorm(kernels, parts, order)], [one, one], { rtol: 1e-12, atol: 0 })).toBe(
        undefined,
      );
    }
    for (const order of ORDERS) expect(combineNorms([], order)).toBe(0);
  });

  it('is what its definition gives, for any order', () => {
    fc.assert(
      fc.property(
        fc.array(fc.float({ noNaN: true, noDefaultInfinity: true }), { maxLength: 40 }),
        fc.oneof(fc.constantFrom(...ORDERS), fc.double({ min: 1, max: 100, noNaN: true })),
        fc.nat(3),
        (values, order, offset) => {
          arena.reset();
          const got = globalNorm(kernels, [arena.floats(values, offset)], order);
          expect(
            mismatch([got], [plainNorm(Float32Array.from(values), order)], { rtol: 1e-12, atol: 0 }),
          ).toBe(undefined);
        },
      ),
      { numRuns: 300 },
    );
  });

  it.each(ORDERS)('of order %d is not finite where an element is not, and 0 where all are', (order) => {
    expect(globalNorm(kernels, [arena.floats([1, Infinity])], order)).toBe(Infinity);
    expect(globalNorm(kernels, [arena.floats([1, NaN, 2])], order)).toBeNaN();
    expect(globalNorm(kernels, [arena.floats([0, -0]), arena.floats([])], order)).toBe(0);
    expect(combineNorms([1, Infinity], order)).toBe(Infinity);
    expect(combineNorms([1, NaN], order)).toBeNaN();
  });

  it('refuses an order below 1, which is no norm', () => {
    for (const order of [0.5, 0, -1, -Infinity, NaN]) {
      expect(() => globalNorm(kernels, [], order)).toThrow(
        expect.objectContaining({ code: 'INVALID_ARGUMENT' }),
      );
    }
  });

  it('refuses a limit that is not positive', () => {
    for (const limit of [0, -1, NaN]) expect(() => clipFactor(1, limit)).toThrow(/positive/);
  });
});
