import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import type { Reducible } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { Arena, mismatch } from './arena.ts';

const arena = new Arena();
const { kernels } = arena;
beforeEach(() => arena.reset());

const float = fc.float({ noNaN: true, min: Math.fround(-1e6), max: Math.fround(1e6) });
const offset = fc.nat(3);
const length = fc.nat(70);

const vectors = (maxCount: number, element: fc.Arbitrary<number> = float) =>
  length.chain((n) =>
    fc.array(fc.tuple(fc.array(element, { minLength: n, maxLength: n }), offset), {
      minLength: 1,
      maxLength: maxCount,
    }),
  );

function expected(
  sources: readonly (readonly number[])[],
  op: (a: number, b: number) => number,
  round: (x: number) => number,
): number[] {
  return sources[0]!.map((_, i) => sources.map((s) => s[i]!).reduce((a, b) => round(op(a, b))));
}

const OPERATIONS = {
  sum: (a: number, b: number) => a + b,
  min: Math.min,
  max: Math.max,
  product: (a: number, b: number) => a * b,
} as const;

describe('reductions', () => {
  for (const op of ['sum', 'min', 'max', 'product'] as const) {
    it(`${op} of float32 equals a loop in the order of the sources, at any length and alignment`, () => {
      fc.assert(
        fc.property(vectors(20), offset, (sources, at) => {
          arena.reset();
          const regions = sources.map(([values, o]) => arena.floats(values, o));
          const target = arena.floats(new Array<number>(sources[0]![0].length).fill(7), at);
          kernels[op](target, regions);
          const want = expected(
            sources.map(([values]) => values),
            OPERATIONS[op],
            Math.fround,
          );
          expect(Array.from(target.view)).toEqual(want);
          expect(arena.guardsIntact()).toBe(true);
        }),
      );
    });

    it(`${op} of float64 and int32 equals a loop`, () => {
      fc.assert(
        fc.property(vectors(5, fc.double({ noNaN: true, min: -1e9, max: 1e9 })), fc.nat(1), (sources, at) => {
          arena.reset();
          const regions = sources.map(([values, o]) => arena.region('float64', values, o));
          const target = arena.region('float64', new Array<number>(sources[0]![0].length).fill(7), at);
          kernels[op](target, regions);
          const want = expected(
            sources.map(([values]) => values),
            OPERATIONS[op],
            (x) => x,
          );
          expect(Array.from(target.view)).toEqual(want);
        }),
      );
      fc.assert(
        fc.property(vectors(5, fc.integer()), offset, (sources, at) => {
          arena.reset();
          const regions = sources.map(([values, o]) => arena.region('int32', values, o));
          const target = arena.region('int32', new Array<number>(sources[0]![0].length).fill(7), at);
          kernels[op](target, regions);
          const rule = op === 'product' ? Math.imul : OPERATIONS[op];
          const want = expected(
            sources.map(([values]) => values),
            rule,
            (x) => x | 0,
          );
          expect(Array.from(target.view)).toEqual(want);
        }),
      );
    });
  }

  it('mean divides the sum by the number of sources', () => {
    fc.assert(
      fc.property(vectors(20), offset, (sources, at) => {
        arena.reset();
        const values = sources.map(([v]) => v);
        const n = values[0]!.length;
        const target = arena.floats(new Array<number>(n).fill(7), at);
        kernels.mean(
          target,
          sources.map(([v, o]) => arena.floats(v, o)),
        );
        const sum = expected(values, OPERATIONS.sum, Math.fround);
        expect(Array.from(target.view)).toEqual(sum.map((x) => Math.fround(x / values.length)));
        const doubles = arena.region('float64', new Array<number>(n).fill(7));
        kernels.mean(
          doubles,
          values.map((v) => arena.region('float64', v)),
        );
        const exact = expected(values, OPERATIONS.sum, (x) => x);
        expect(Array.from(doubles.view)).toEqual(exact.map((x) => x / values.length));
      }),
    );
  });

  it('sums long vectors of many sources, block by block', () => {
    const n = 10_001;
    const sources = Array.from({ length: 19 }, (_, k) => Array.from({ length: n }, (_, i) => (i % 17) + k));
    const target = arena.floats(new Float32Array(n));
    kernels.sum(
      target,
      sources.map((values) => arena.floats(values)),
    );
    expect(mismatch(target.view, expected(sources, OPERATIONS.sum, Math.fround), { rtol: 0, atol: 0 })).toBe(
      undefined,
    );
  });

  it('works in place where the target is an early source, and refuses where that would be wrong', () => {
    const a = arena.floats([1, 2, 3, 4, 5]);
    const b = arena.floats([10, 20, 30, 40, 50]);
    kernels.sum(a, [b, a]);
    expect(Array.from(a.view)).toEqual([11, 22, 33, 44, 55]);
    kernels.max(a, [a, b]);
    const ten = new Array<Region<'float32'>>(9).fill(b);
    expect(() => kernels.sum(a, [...ten, a])).toThrow(/put it among the first 8/);
    expect(() => kernels.min(a, [b, b, a])).toThrow(/put it among the first 2/);
    const long = arena.floats(new Float32Array(8));
    expect(() => kernels.sum(long.slice(0, 4), [long.slice(1, 4), b.slice(0, 4)])).toThrow(/overlaps/);
  });

  it('propagates NaN through minimum and maximum', () => {
    const a = arena.floats([NaN, 1, 2, 3, NaN]);
    const b = arena.floats([0, NaN, 1, 5, 0]);
    const target = arena.floats([0, 0, 0, 0, 0]);
    kernels.min(target, [a, b]);
    expect(Array.from(target.view)).toEqual([NaN, NaN, 1, 3, NaN]);
    kernels.max(target, [a, b]);
    expect(Array.from(target.view)).toEqual([NaN, NaN, 2, 5, NaN]);
  });

  it('refuses wrong types, lengths, spaces and no sources', () => {
    const a = arena.floats([1, 2, 3]);
    const other = SharedSpace.create({ maxBytes: 2 ** 20 })
      .allocate(64)
      .allocate('float32', 3);
    const invalid = expect.objectContaining({ code: 'INVALID_ARGUMENT' }) as Error;
    expect(() => kernels.sum(a, [])).toThrow(invalid);
    expect(() => kernels.sum(a, [arena.floats([1])])).toThrow(invalid);
    expect(() => kernels.sum(a, [other])).toThrow(invalid);
    expect(() => kernels.sum<Reducible>(a, [arena.region('int32', [1, 2, 3])])).toThrow(invalid);
    const bytes = arena.region('uint8', [1]) as unknown as Region<'int32'>;
    expect(() => kernels.sum(bytes, [bytes])).toThrow(invalid);
    expect(() => kernels.axpy(a, 1, arena.floats([1]))).toThrow(invalid);
  });
});

describe('elementwise kernels', () => {
  const vector = fc.tuple(
    length.chain((n) => fc.array(float, { minLength: n, maxLength: n })),
    offset,
    float,
  );

  it('scale, axpy, blend, fill, copy and clip equal plain loops', () => {
    fc.assert(
      fc.property(vector, offset, ([values, at, a], at2) => {
        arena.reset();
        const x = arena.floats(values, at2);
        const target = arena.floats(values, at);
        kernels.axpy(target, a, x);
        let want = values.map((v) => Math.fround(v + Math.fround(v * a)));
        expect(Array.from(target.view)).toEqual(want);
        kernels.copy(target, x);
        kernels.scale(target, a);
        want = values.map((v) => Math.fround(v * a));
        expect(Array.from(target.view)).toEqual(want);
        // As a scale and an axpy would round, in one pass.
        kernels.blend(target, 0.75, x, 0.25);
        want = want.map((v, i) => Math.fround(Math.fround(v * 0.75) + Math.fround(values[i]! * 0.25)));
        expect(Array.from(target.view)).toEqual(want);
        const limit = Math.abs(a);
        kernels.clipByValue(target, limit);
        expect(Array.from(target.view)).toEqual(want.map((v) => Math.max(-limit, Math.min(limit, v))));
        kernels.fill(target, a);
        expect(Array.from(target.view)).toEqual(values.map(() => a));
        const doubles = arena.region('float64', values);
        kernels.scale(doubles, a);
        expect(Array.from(doubles.view)).toEqual(values.map((v) => v * a));
        expect(arena.guardsIntact()).toBe(true);
      }),
    );
  });

  it('dot, sums and maxima of magnitudes equal float64 loops', () => {
    fc.assert(
      fc.property(vector, offset, ([values, at], at2) => {
        arena.reset();
        const x = arena.floats(values, at);
        const y = arena.floats(
          values.map((v) => Math.fround(v / 3)),
          at2,
        );
        const dot = values.reduce((s, v, i) => s + v * y.view[i]!, 0);
        expect(kernels.dot(x, y)).toBeCloseTo(dot, -5);
        expect(Math.abs(kernels.dot(x, y) - dot)).toBeLessThanOrEqual(1e-12 * Math.abs(dot));
        const absSum = values.reduce((s, v) => s + Math.abs(v), 0);
        expect(Math.abs(kernels.absSum(x) - absSum)).toBeLessThanOrEqual(1e-12 * absSum);
        expect(kernels.absMax(x)).toBe(Math.max(0, ...values.map(Math.abs)));
        const norm = Math.sqrt(values.reduce((s, v) => s + v * v, 0));
        expect(Math.abs(kernels.l2Norm(x) - norm)).toBeLessThanOrEqual(1e-12 * norm);
      }),
    );
  });

  it('finds a NaN wherever it is', () => {
    for (let n = 1; n < 12; n++) {
      for (let at = 0; at < n; at++) {
        const values = new Array<number>(n).fill(1);
        values[at] = NaN;
        expect(kernels.absMax(arena.floats(values))).toBeNaN();
        expect(kernels.sumOfSquares(arena.floats(values))).toBeNaN();
      }
    }
  });
});
