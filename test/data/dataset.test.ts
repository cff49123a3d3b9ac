import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Dataset } from '../../src/data/index.ts';
import { expectError } from './expect-error.ts';

function small(): Dataset {
  return new Dataset([
    { name: 'x', data: Float32Array.from([0, 1, 10, 11, 20, 21, 30, 31]), sampleShape: [2] },
    { name: 'image', data: Uint8Array.from([0, 1, 128, 255]), scale: { multiply: 2, add: -1 } },
    { name: 'labels', data: Int32Array.from([7, 8, 9, -1]) },
  ]);
}

function values(dataset: Dataset, column: string): number[] {
  return [...dataset.column(column).data];
}

describe('Dataset', () => {
  it('holds every column on shared memory and keeps memory that is shared already', () => {
    const data = new Int32Array(new SharedArrayBuffer(16));
    const dataset = new Dataset([{ name: 'a', data }]);
    expect(dataset.column('a').data).toBe(data);
    for (const column of small().columns) expect(column.data.buffer).toBeInstanceOf(SharedArrayBuffer);
  });

  it('gathers samples in the asked order, bytes scaled to float32', () => {
    const dataset = small();
    const x = new Float32Array(6);
    const image = new Float32Array(3);
    const labels = new Int32Array(4).fill(99);
    dataset.read([3, 0, 3], 'x', x);
    dataset.read(Uint32Array.of(2, 3, 0), 'image', image);
    dataset.read([1], 'labels', labels);
    expect([...x]).toEqual([30, 31, 0, 1, 30, 31]);
    expect([...image]).toEqual([255, 509, -1]);
    expect([...labels]).toEqual([8, 99, 99, 99]);
  });

  it('delivers a byte as the float32 nearest to the scaled value', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 255 }),
        fc.float({ noNaN: true, min: -8, max: 8 }),
        fc.float({ noNaN: true, min: -8, max: 8 }),
        (value, multiply, add) => {
          const data = Uint8Array.of(value);
          const dataset = new Dataset([{ name: 'x', data, scale: { multiply, add } }]);
          const target = new Float32Array(1);
          dataset.read([0], 'x', target);
          expect(target[0]).toBe(Math.fround(value * multiply + add));
        },
      ),
    );
  });

  it('shares its bytes with a dataset made of its columns', () => {
    const dataset = small();
    const other = new Dataset(dataset.columns);
    expect(other.column('x').data.buffer).toBe(dataset.column('x').data.buffer);
    expect(other.column('image').scale).toEqual({ multiply: 2, add: -1 });
  });

  it('slices in place and takes subsets as copies', () => {
    const dataset = small();
    const slice = dataset.slice(1, 3);
    expect(values(slice, 'x')).toEqual([10, 11, 20, 21]);
    expect(slice.column('x').data.buffer).toBe(dataset.column('x').data.buffer);
    const subset = dataset.subset([3, 1]);
    expect(subset.length).toBe(2);
    expect(values(subset, 'labels')).toEqual([-1, 8]);
    expect(subset.column('image').scale).toEqual(dataset.column('image').scale);
  });

  it('knows which samples of the whole its parts have, however often it was cut', () => {
    const whole = small();
    expect(whole.numberOf(2)).toBe(2);
    const part = whole.subset([3, 1, 2]);
    expect([0, 1, 2].map((sample) => part.numberOf(sample))).toEqual([3, 1, 2]);
    const again = part.slice(1, 3);
    expect([0, 1].map((sample) => again.numberOf(sample))).toEqual([1, 2]);
    expect(again.subset([1]).numberOf(0)).toBe(2);
    expect(whole.slice(2, 4).numberOf(1)).toBe(3);
    expect(part.withColumns(part.columns.slice(0, 1)).numberOf(0)).toBe(3);
  });

  it('splits into two parts that together are the whole, the same for the same seed', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 60 }),
        fc.double({ min: 0.01, max: 0.99, noNaN: true }),
        fc.nat(),
        (n, fraction, seed) => {
          const dataset = new Dataset([{ name: 'id', data: Int32Array.from({ length: n }, (_, i) => i) }]);
          const [a, b] = dataset.split(fraction, seed);
          const [again] = dataset.split(fraction, seed);
          const all = [...values(a, 'id'), ...values(b, 'id')].sort((p, q) => p - q);
          expect(all).toEqual(values(dataset, 'id'));
          expect(values(again, 'id')).toEqual(values(a, 'id'));
          expect(Math.abs(a.length - n * fraction)).toBeLessThanOrEqual(1);
        },
      ),
    );
  });

  it('refuses columns that do not fit', () => {
    const data = new Float32Array(4);
    expectError(() => new Dataset([]), 'INVALID_DATA');
    expectError(() => new Dataset([{ name: 'a', data: new Float32Array(0) }]), 'INVALID_DATA', '"a"');
    expectError(() => new Dataset([{ name: 'a', data, sampleShape: [3] }]), 'INVALID_DATA', '"a"', '4');
    expectError(() => new Dataset([{ name: 'a', data, sampleShape: [0] }]), 'INVALID_DATA', '[0]');
    expectError(() => new Dataset([{ name: 'a', data, sampleShape: [1.5] }]), 'INVALID_DATA', '[1.5]');
    expectError(
      () => new Dataset([{ name: 'a', data, scale: { multiply: 1, add: 0 } }]),
      'INVALID_DATA',
      'uint8',
    );
    expectError(
      () => new Dataset([{ name: 'a', data: Uint8Array.of(1), scale: { multiply: NaN, add: 0 } }]),
      'INVALID_DATA',
    );
    const twice = { name: 'a', data };
    expectError(() => new Dataset([twice, twice]), 'INVALID_DATA', 'same name');
    expectError(
      () => new Dataset([twice, { name: 'b', data: new Int32Array(3) }]),
      'INVALID_DATA',
      '"b"',
      '3',
      '4',
    );
  });

  it('refuses unknown columns, samples outside and targets that do not fit', () => {
    const dataset = small();
    expectError(() => dataset.column('y'), 'INVALID_ARGUMENT', '"y"', 'x, image, labels');
    expectError(() => dataset.read([4], 'labels', new Int32Array(1)), 'OUT_OF_BOUNDS', 'Sample 4');
    expectError(() => dataset.read([-1], 'labels', new Int32Array(1)), 'OUT_OF_BOUNDS');
    expectError(() => dataset.read([0.5], 'labels', new Int32Array(1)), 'OUT_OF_BOUNDS');
    expectError(() => dataset.read([0], 'labels', new Float32Array(1)), 'INVALID_ARGUMENT', 'Int32Array');
    expectError(() => dataset.read([0], 'image', new Int32Array(1)), 'INVALID_ARGUMENT', 'Float32Array');
    expectError(() => dataset.read([0, 1], 'x', new Float32Array(3)), 'INVALID_ARGUMENT', '4', '3');
    expectError(() => dataset.subset([9]), 'OUT_OF_BOUNDS');
    expectError(() => dataset.subset([]), 'INVALID_DATA');
    expectError(() => dataset.slice(2, 2), 'INVALID_ARGUMENT');
    expectError(() => dataset.slice(0, 5), 'INVALID_ARGUMENT');
    expectError(() => dataset.split(1, 0), 'INVALID_ARGUMENT');
  });
});
