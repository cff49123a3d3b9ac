/** First values by a seed: whoever fills a part of a parameter makes the bits that filling it at once makes. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { fillElements, Random } from '../../src/base/index.ts';
import type { Initialiser } from '../../src/base/index.ts';

const LENGTH = 300;
const data = Float32Array.from({ length: LENGTH }, (_, i) => i / 7);
const plain = fc.constantFrom<Initialiser>(
  { kind: 'constant', value: 0.1 },
  { kind: 'uniform', limit: 0.3 },
  { kind: 'normal', deviation: 1 },
  { kind: 'data', data },
);
const initialisers = fc.oneof(
  plain,
  fc
    .record({ base: plain, start: fc.nat(LENGTH), length: fc.nat(20) })
    .map((one): Initialiser => ({ kind: 'zeroed', ...one })),
);

it('a parameter filled in parts, in any order, has the bits of one filled at once', () => {
  fc.assert(
    fc.property(
      initialisers,
      fc.integer({ min: 0, max: 2 ** 32 - 1 }),
      fc.uniqueArray(fc.nat(LENGTH), { maxLength: 6 }),
      (initialiser, seed, inner) => {
        const whole = new Float32Array(LENGTH);
        fillElements(whole, initialiser, seed, 0);
        const borders = [0, ...[...inner].sort((a, b) => a - b), LENGTH];
        const parts = new Float32Array(LENGTH).fill(NaN);
        borders
          .slice(1)
          .map((end, i) => [borders[i]!, end] as const)
          .reverse()
          .forEach(([from, to]) => fillElements(parts.subarray(from, to), initialiser, seed, from));
        expect(new Uint32Array(parts.buffer)).toEqual(new Uint32Array(whole.buffer));
      },
    ),
  );
});

it('a sequence can begin behind more draws than an integer of 32 bits counts', () => {
  const draws = 2 ** 32 + 3;
  const random = new Random(5);
  for (let i = 0; i < 3; i++) random.uint32();
  expect(Random.after(5, draws).uint32()).toBe(random.uint32());
  expect(Random.after(2 ** 32 - 1, 1).state).toBe((2 ** 32 - 1 + 0x9e3779b9) % 2 ** 32);
});
