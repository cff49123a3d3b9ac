import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SampleOrder, batchPart } from '../../src/data/index.ts';
import { expectError } from './expect-error.ts';

const length = fc.integer({ min: 1, max: 40 });
const batch = fc.integer({ min: 1, max: 45 });
const seed = fc.integer();

function epoch(order: SampleOrder, size: number): number[] {
  const samples: number[] = [];
  for (;;) {
    const drawn = order.draw(size);
    samples.push(...drawn.samples);
    if (drawn.last) return samples;
  }
}

describe('SampleOrder', () => {
  it('visits every sample exactly once in each epoch', () => {
    fc.assert(
      fc.property(length, batch, seed, (n, size, s) => {
        const order = new SampleOrder(n, { seed: s });
        for (let e = 0; e < 3; e++) {
          expect(order.state).toEqual({ seed: s, epoch: e, position: 0 });
          expect(epoch(order, size).sort((a, b) => a - b)).toEqual(Array.from({ length: n }, (_, i) => i));
        }
      }),
    );
  });

  it('continues exactly from any stored state, in a new process or not', () => {
    fc.assert(
      fc.property(length, batch, seed, fc.nat(12), fc.boolean(), (n, wanted, s, before, dropLast) => {
        const size = dropLast ? Math.min(n, wanted) : wanted;
        const order = new SampleOrder(n, { seed: s, dropLast });
        for (let i = 0; i < before; i++) order.nextBatch(size);
        const state: unknown = JSON.parse(JSON.stringify(order.state));
        const resumed = SampleOrder.restore(n, state, { dropLast });
        for (let i = 0; i < 6; i++) expect(resumed.draw(size)).toEqual(order.draw(size));
      }),
    );
  });

  it('gives a smaller last batch, or leaves it out with dropLast', () => {
    const sizes = (order: SampleOrder): number[] =>
      Array.from({ length: 5 }, () => order.nextBatch(4).length);
    expect(sizes(new SampleOrder(10))).toEqual([4, 4, 2, 4, 4]);
    const dropping = new SampleOrder(10, { dropLast: true });
    expect(sizes(dropping)).toEqual([4, 4, 4, 4, 4]);
    expect(dropping.state).toMatchObject({ epoch: 2, position: 4 });
    const rest = SampleOrder.restore(10, { seed: 0, epoch: 0, position: 8 }, { dropLast: true });
    expect(rest.draw(4).epoch).toBe(1);
  });

  it('shuffles each epoch and seed differently, and not at all when told so', () => {
    const order = new SampleOrder(50, { seed: 1 });
    const first = epoch(order, 50);
    expect(epoch(order, 50)).not.toEqual(first);
    expect(epoch(new SampleOrder(50, { seed: 2 }), 50)).not.toEqual(first);
    expect(epoch(new SampleOrder(50, { seed: 1 }), 7)).toEqual(first);
    expect(epoch(new SampleOrder(4, { shuffle: false }), 3)).toEqual([0, 1, 2, 3]);
  });

  it('passes over what is behind already, whatever the size of a batch, and ends the epoch with the rest', () => {
    const whole = new SampleOrder(10, { seed: 4 }).draw(10).samples;
    const behind = [
      [2, 4],
      [4, 5],
      [8, 10],
    ] as const;
    const left = [1, 5, 6, 7].map((place) => whole[place]);
    for (const size of [1, 2, 3, 10]) {
      const order = SampleOrder.restore(10, { seed: 4, epoch: 0, position: 1, ahead: behind });
      const drawn: number[] = [];
      for (let last = false; !last;) {
        const draw = order.draw(size);
        expect(draw.epoch).toBe(0);
        drawn.push(...draw.samples);
        ({ last } = draw);
      }
      expect(drawn).toEqual(left);
      expect(order.state).toEqual({ seed: 4, epoch: 1, position: 0 });
    }
    const order = SampleOrder.restore(10, { seed: 4, epoch: 0, position: 1, ahead: behind });
    order.draw(1);
    expect(order.state).toEqual({ seed: 4, epoch: 0, position: 5, ahead: [[8, 10]] });
    expect([...SampleOrder.restore(10, order.state).draw(9).samples]).toEqual(left.slice(1));
    expect(order.seek(0, 1).state).toEqual({ seed: 4, epoch: 0, position: 1 });
  });

  it('refuses samples ahead that are not ranges behind its place', () => {
    for (const ahead of [
      'x',
      [3],
      [[4, 4]],
      [[0, 2]],
      [
        [2, 3],
        [1, 2],
      ],
      [[2, 11]],
      [[2, 3.5]],
    ]) {
      expectError(
        () => SampleOrder.restore(10, { seed: 4, epoch: 0, position: 1, ahead }),
        'INVALID_ARGUMENT',
        'samples ahead',
      );
    }
  });

  it('gives batches that later draws do not change', () => {
    const order = new SampleOrder(5, { seed: 3 });
    const first = order.nextBatch(5);
    const copy = [...first];
    order.nextBatch(5);
    expect([...first]).toEqual(copy);
  });

  it('refuses impossible lengths, seeds, sizes and states', () => {
    for (const n of [0, -1, 1.5, NaN, 2 ** 32])
      expectError(() => new SampleOrder(n), 'INVALID_ARGUMENT', String(n));
    expectError(() => new SampleOrder(3, { seed: 0.5 }), 'INVALID_ARGUMENT', '0.5');
    for (const size of [0, -1, 1.5])
      expectError(() => new SampleOrder(3).nextBatch(size), 'INVALID_ARGUMENT');
    expectError(() => new SampleOrder(3, { dropLast: true }).nextBatch(4), 'INVALID_ARGUMENT', 'dropLast');
    for (const state of [
      null,
      {},
      'x',
      { seed: 1, epoch: '0', position: 0 },
      { seed: 1, epoch: 0, position: NaN },
    ]) {
      expectError(() => SampleOrder.restore(3, state), 'INVALID_ARGUMENT', 'state');
    }
    for (const position of [-1, 3]) {
      expectError(
        () => SampleOrder.restore(3, { seed: 1, epoch: 0, position }),
        'INVALID_ARGUMENT',
        '3 samples',
      );
    }
  });
});

describe('batchPart', () => {
  it('cuts a batch into consecutive parts that differ by one at most, the longer ones first', () => {
    fc.assert(
      fc.property(fc.nat(50), fc.integer({ min: 1, max: 9 }), (n, count) => {
        const samples = Uint32Array.from({ length: n }, (_, i) => i * 3);
        const parts = Array.from({ length: count }, (_, i) => batchPart(samples, i, count));
        expect(parts.flatMap((part) => [...part])).toEqual([...samples]);
        const sizes = parts.map((part) => part.length);
        expect(sizes).toEqual([...sizes].sort((a, b) => b - a));
        expect(sizes[0]! - sizes.at(-1)!).toBeLessThanOrEqual(1);
      }),
    );
    expectError(() => batchPart(new Uint32Array(3), 2, 2), 'INVALID_ARGUMENT');
  });
});
