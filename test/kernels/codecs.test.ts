import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import {
  decodeBf16,
  decodeFp16,
  decodeOneBit,
  decodeTopK,
  decodeTwoBit,
  encodeBf16,
  encodeFp16,
  encodeOneBit,
  encodeTopK,
  encodeTwoBit,
  oneBitWords,
  TOP_K_SCRATCH_WORDS,
  twoBitWords,
} from '../../src/kernels/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { readVectors } from '../support/shared.ts';
import { Arena, mismatch, numbers } from './arena.ts';
import type { Tolerance, Written } from './arena.ts';

interface ShortCase {
  readonly name: string;
  readonly kind: 'fp16' | 'bf16';
  readonly input_bits: readonly number[];
  readonly codes: readonly number[];
  readonly decoded: readonly Written[];
}

interface RoundsCase {
  readonly name: string;
  readonly kind: '2bit' | '1bit' | 'topk';
  readonly threshold?: number;
  readonly k?: number;
  readonly length: number;
  readonly tolerance: Tolerance;
  readonly rounds: readonly {
    readonly grad: readonly Written[];
    readonly packed?: readonly number[];
    readonly decoded?: readonly Written[];
    readonly residual: readonly Written[];
    readonly indices?: readonly number[];
    readonly values?: readonly Written[];
  }[];
}

const arena = new Arena();
const { kernels } = arena;
beforeEach(() => arena.reset());

const CODECS = {
  fp16: { encode: encodeFp16, decode: decodeFp16 },
  bf16: { encode: encodeBf16, decode: decodeBf16 },
} as const;

const FILE = 'compression.json';
const shortCases = readVectors<ShortCase>(FILE, ({ kind }) => kind === 'fp16' || kind === 'bf16');
const bitCases = readVectors<RoundsCase>(FILE, ({ kind }) => kind === '2bit' || kind === '1bit');
const topKCases = readVectors<RoundsCase>(FILE, ({ kind }) => kind === 'topk');
const exact = { rtol: 0, atol: 0 };

function fromBits(bits: readonly number[], offset = 0): Region<'float32'> {
  const region = arena.floats(new Float32Array(bits.length), offset);
  new Uint32Array(arena.space.buffer, region.byteOffset, bits.length).set(bits);
  return region;
}

function isShortNaN(kind: 'fp16' | 'bf16', code: number): boolean {
  return kind === 'fp16' ? (code & 0x7fff) > 0x7c00 : (code & 0x7fff) > 0x7f80;
}

describe('codecs, by the oracle vectors', () => {
  it.each(shortCases)('$name', (c) => {
    for (const offset of [0, 1, 2, 3]) {
      const source = fromBits(c.input_bits, offset);
      const codes = arena.region('uint16', new Uint16Array(c.codes.length), offset);
      CODECS[c.kind].encode(kernels, codes, source);
      for (const [i, want] of c.codes.entries()) {
        const got = codes.view[i]!;
        if (isShortNaN(c.kind, want)) expect(isShortNaN(c.kind, got), `element ${i}`).toBe(true);
        else expect(got, `element ${i}`).toBe(want);
      }
      CODECS[c.kind].decode(kernels, source, codes);
      const want = numbers(c.decoded);
      for (const [i, value] of want.entries()) {
        expect(Object.is(source.view[i], Math.fround(value)), `element ${i}`).toBe(true);
      }
    }
    expect(arena.guardsIntact()).toBe(true);
  });

  it.each(bitCases)('$name', (c) => {
    const two = c.kind === '2bit';
    const words = two ? twoBitWords(c.length) : oneBitWords(c.length);
    const residual = arena.floats(new Float32Array(c.length), 1);
    const packed = arena.region('uint32', new Uint32Array(words).fill(0xffffffff), 2);
    const decoded = arena.floats(new Float32Array(c.length), 3);
    for (const round of c.rounds) {
      const gradient = arena.floats(numbers(round.grad), 2);
      const threshold = c.threshold!;
      (two ? encodeTwoBit : encodeOneBit)(kernels, { packed, residual, gradient, threshold });
      expect(Array.from(packed.view)).toEqual(round.packed);
      if (two) decodeTwoBit(kernels, decoded, packed, threshold);
      else decodeOneBit(kernels, decoded, packed);
      expect(mismatch(decoded.view, Float32Array.from(numbers(round.decoded!)), exact)).toBe(undefined);
      expect(mismatch(residual.view, numbers(round.residual), c.tolerance)).toBe(undefined);
    }
    expect(arena.guardsIntact()).toBe(true);
  });

  it.each(topKCases)('$name', (c) => {
    const residual = arena.floats(new Float32Array(c.length));
    const scratch = arena.region('int32', new Int32Array(TOP_K_SCRATCH_WORDS));
    const indices = arena.region('int32', new Int32Array(c.k!));
    const values = arena.floats(new Float32Array(c.k!));
    for (const round of c.rounds) {
      const gradient = arena.floats(numbers(round.grad));
      const sent = encodeTopK(kernels, { k: c.k!, indices, values, residual, gradient, scratch });
      expect(Array.from(indices.view.subarray(0, sent))).toEqual(round.indices);
      expect(mismatch(values.view.subarray(0, sent), numbers(round.values!), c.tolerance)).toBe(undefined);
      expect(mismatch(residual.view, numbers(round.residual), c.tolerance)).toBe(undefined);
    }
  });
});

const anyFloat = fc.float({ noDefaultInfinity: true, noNaN: true });

describe('fp16 and bf16', () => {
  it.each(['fp16', 'bf16'] as const)('%s: every code survives decoding and encoding', (kind) => {
    const every = Uint16Array.from({ length: 65536 }, (_, i) => i);
    const codes = arena.region('uint16', every);
    const floats = arena.floats(new Float32Array(65536));
    const back = arena.region('uint16', new Uint16Array(65536));
    CODECS[kind].decode(kernels, floats, codes);
    CODECS[kind].encode(kernels, back, floats);
    for (let code = 0; code < 65536; code++) {
      if (isShortNaN(kind, code)) {
        if (!Number.isNaN(floats.view[code]) || !isShortNaN(kind, back.view[code]!))
          throw new Error(`NaN ${code}`);
      } else if (back.view[code] !== code) throw new Error(`code ${code} became ${back.view[code]}`);
    }
  });

  it.each(['fp16', 'bf16'] as const)('%s: the nearest code is taken, the even one of two', (kind) => {
    fc.assert(
      fc.property(fc.array(anyFloat, { maxLength: 40 }), fc.nat(3), (values, offset) => {
        arena.reset();
        const every = arena.floats(new Float32Array(65536));
        CODECS[kind].decode(
          kernels,
          every,
          arena.region(
            'uint16',
            Uint16Array.from({ length: 65536 }, (_, i) => i),
          ),
        );
        const codes = arena.region('uint16', new Uint16Array(values.length), offset);
        CODECS[kind].encode(kernels, codes, arena.floats(values, offset));
        for (const [i, value] of values.entries()) {
          const code = codes.view[i]!;
          const got = every.view[code]!;
          if (!Number.isFinite(got)) continue;
          // Neighbours in magnitude have neighbouring codes.
          for (const other of [code - 1, code + 1]) {
            const near = every.view[other];
            if (near === undefined || !Number.isFinite(near) || (other ^ code) & 0x8000) continue;
            const better = Math.abs(near - value) - Math.abs(got - value);
            expect(better > 0 || (better === 0 && code % 2 === 0)).toBe(true);
          }
        }
      }),
      { numRuns: 30 },
    );
  });
});

describe('codecs with a residual', () => {
  const gradients = fc.nat(70).chain((n) =>
    fc.array(fc.array(fc.float({ noNaN: true, min: -4, max: 4 }), { minLength: n, maxLength: n }), {
      minLength: 1,
      maxLength: 4,
    }),
  );

  it('follow the stated rule at any length', () => {
    fc.assert(
      fc.property(gradients, fc.constantFrom(0.25, 0.5, 1.5), (rounds, threshold) => {
        arena.reset();
        const n = rounds[0]!.length;
        const regions = [0, 1].map(() => arena.floats(new Float32Array(n), 1));
        const plain = [0, 1].map(() => new Float32Array(n));
        const decoded = arena.floats(new Float32Array(n), 3);
        for (const round of rounds) {
          const gradient = arena.floats(round, 2);
          const two = arena.region('uint32', new Uint32Array(twoBitWords(n)).fill(0xffffffff));
          const one = arena.region('uint32', new Uint32Array(oneBitWords(n)).fill(0xffffffff));
          const sent = plain.map((residual, codec) =>
            round.map((g, i) => {
              const r = Math.fround(residual[i]! + g);
              const value =
                codec === 1
                  ? r > threshold
                    ? 1
                    : -1
                  : r >= threshold
                    ? threshold
                    : r <= -threshold
                      ? -threshold
                      : 0;
              residual[i] = r - value;
              return value;
            }),
          );
          encodeTwoBit(kernels, { packed: two, residual: regions[0]!, gradient, threshold });
          decodeTwoBit(kernels, decoded, two, threshold);
          expect(Array.from(decoded.view)).toEqual(sent[0]);
          encodeOneBit(kernels, { packed: one, residual: regions[1]!, gradient, threshold });
          decodeOneBit(kernels, decoded, one);
          expect(Array.from(decoded.view)).toEqual(sent[1]);
          for (const [codec, region] of regions.entries()) {
            expect(Array.from(region.view)).toEqual(Array.from(plain[codec]!));
          }
        }
        expect(arena.guardsIntact()).toBe(true);
      }),
    );
  });

  it('top-k sends the largest magnitudes, lowest position first among equals, and loses nothing', () => {
    fc.assert(
      fc.property(gradients, fc.nat(80), (rounds, k) => {
        arena.reset();
        const n = rounds[0]!.length;
        const residual = arena.floats(new Float32Array(n), 1);
        const scratch = arena.region('int32', new Int32Array(TOP_K_SCRATCH_WORDS));
        const indices = arena.region('int32', new Int32Array(k), 1);
        const values = arena.floats(new Float32Array(k), 3);
        const decoded = arena.floats(new Float32Array(n));
        for (const round of rounds) {
          const before = round.map((g, i) => Math.fround(residual.view[i]! + g));
          const gradient = arena.floats(round);
          const sent = encodeTopK(kernels, { k, indices, values, residual, gradient, scratch });
          const order = before
            .map((_, i) => i)
            .sort((a, b) => Math.abs(before[b]!) - Math.abs(before[a]!) || a - b);
          const want = order.slice(0, k).sort((a, b) => a - b);
          expect(Array.from(indices.view.subarray(0, sent))).toEqual(want);
          decodeTopK(kernels, decoded, indices, values, sent);
          before.forEach((value, i) => expect(decoded.view[i]! + residual.view[i]!).toBe(value + 0));
        }
        expect(arena.guardsIntact()).toBe(true);
      }),
    );
  });

  it('refuse thresholds, sizes and positions that are not right', () => {
    const gradient = arena.floats(new Float32Array(17));
    const residual = arena.floats(new Float32Array(17));
    const packed = arena.region('uint32', [0, 0]);
    for (const threshold of [0, -1, NaN, Infinity, 1e-60]) {
      expect(() => encodeTwoBit(kernels, { packed, residual, gradient, threshold })).toThrow(/threshold/);
    }
    expect(() =>
      encodeTwoBit(kernels, { packed: packed.slice(0, 1), residual, gradient, threshold: 1 }),
    ).toThrow(/packed/);
    expect(() => decodeTwoBit(kernels, gradient, packed.slice(0, 1), 1)).toThrow(/packed/);
    expect(() => decodeOneBit(kernels, gradient, packed.slice(0, 0))).toThrow(/packed/);
    expect(() => encodeFp16(kernels, arena.region('uint16', [0]), gradient)).toThrow(/floats/);
    const indices = arena.region('int32', [17]);
    expect(() => decodeTopK(kernels, gradient, indices, arena.floats([1]), 1)).toThrow(/position 0/);
  });
});
