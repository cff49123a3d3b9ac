import { beforeEach, describe, expect, it } from 'vitest';
import { clipByGlobalNorm, clipFactor, combineNorms, partialNorm } from '../../src/kernels/index.ts';
import type { NormType } from '../../src/kernels/index.ts';
import { readVectors } from '../support/shared.ts';
import { Arena, mismatch, numbers } from './arena.ts';
import type { Tolerance, Written } from './arena.ts';

interface ClipCase {
  readonly name: string;
  readonly kind: 'global_norm' | 'value';
  readonly norm_type?: number | 'inf';
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
      const type: NormType = c.norm_type === 'inf' ? 'inf' : c.norm_type === 1 ? 'l1' : 'l2';
      const norm = clipByGlobalNorm(kernels, regions, c.max_norm!, type);
      expect(mismatch([norm], [c.total_norm!], { rtol: 1e-9, atol: 0 })).toBe(undefined);
      expect(mismatch([clipFactor(norm, c.max_norm!)], [c.scale!], { rtol: 1e-9, atol: 0 })).toBe(undefined);
    }
    for (const [i, want] of c.clipped.entries()) {
      expect(mismatch(regions[i]!.view, numbers(want.data), c.tolerance)).toBe(undefined);
    }
  });
});

describe('a global norm', () => {
  it('is the same when partial norms of parts are combined', () => {
    const values = Float32Array.from({ length: 101 }, (_, i) => Math.sin(i) * 10 ** ((i % 9) - 4));
    const whole = arena.floats(values);
    const parts = [whole.slice(0, 33), whole.slice(33, 7), whole.slice(40, 61)];
    for (const type of ['l1', 'l2', 'inf'] as const) {
      const one = combineNorms([partialNorm(kernels, [whole], type)], type);
      const many = combineNorms(
        parts.map((part) => partialNorm(kernels, [part], type)),
        type,
      );
      expect(Math.abs(one - many)).toBeLessThanOrEqual(1e-12 * one);
    }
    expect(combineNorms([], 'inf')).toBe(0);
  });

  it('refuses a limit that is not positive', () => {
    for (const limit of [0, -1, NaN]) expect(() => clipFactor(1, limit)).toThrow(/positive/);
  });
});
