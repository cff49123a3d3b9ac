import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { createOptimizer, resolveOptimizerSpec } from '../../src/kernels/index.ts';
import type { Optimizer, OptimizerSpec, Slots } from '../../src/kernels/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { Random } from '../../src/base/index.ts';
import { specOf } from '../support/optimizer-cases.ts';
import type { EasgdCase, OptimizerCase } from '../support/optimizer-cases.ts';
import { readVectors } from '../support/shared.ts';
import { Arena, mismatch, numbers } from './arena.ts';

const arena = new Arena();
const { kernels } = arena;
beforeEach(() => arena.reset());

function slotsFor(optimizer: Optimizer, length: number, offset = 0): Record<string, Region<'float32'>> {
  const garbage = new Array<number>(length).fill(9);
  const slots = Object.fromEntries(optimizer.slots.map((name) => [name, arena.floats(garbage, offset)]));
  optimizer.initialise(slots);
  return slots;
}

const cases = readVectors<OptimizerCase>('optimizers.json', ({ kind }) => kind === 'optimizer');
const easgd = readVectors<EasgdCase>('optimizers.json', ({ kind }) => kind === 'easgd');

describe('update rules, by the oracle vectors', () => {
  it.each(cases)('$name', (c) => {
    const optimizer = createOptimizer(kernels, specOf(c));
    for (const [p, { name, data }] of c.params.entries()) {
      const parameter = arena.floats(numbers(data), p % 4);
      const gradient = arena.floats(new Array<number>(data.length).fill(0), (p + 1) % 4);
      const slots = slotsFor(optimizer, data.length, (p + 2) % 4);
      for (const [step, grads] of c.grads.entries()) {
        gradient.view.set(numbers(grads[name]!));
        optimizer.update({ t: step + 1, lr: c.lr_per_step?.[step], parameter, gradient, slots });
        const want = numbers(c.params_after[step]![name]!);
        expect(mismatch(parameter.view, want, c.tolerance), `${name}, step ${step}`).toBe(undefined);
      }
      const wanted = c.state_end.slots[name]!;
      expect(Object.keys(slots).sort()).toEqual(Object.keys(wanted).sort());
      for (const [slot, values] of Object.entries(wanted)) {
        const found = mismatch(slots[slot]!.view, numbers(values), c.state_tolerance[slot]!);
        expect(found, `${name}, ${slot}`).toBe(undefined);
      }
    }
    expect(arena.guardsIntact()).toBe(true);
  });

  it.each(easgd)('$name', (c) => {
    const centre = arena.floats(numbers(c.centre), 1);
    const workers = c.workers.map((values, i) => arena.floats(numbers(values), i % 4));
    for (const exchange of c.exchanges) {
      const worker = workers[exchange.worker]!;
      kernels.axpy(worker, 1, arena.floats(numbers(exchange.local_update)));
      kernels.elasticAverage(worker, centre, c.alpha);
      expect(mismatch(worker.view, numbers(exchange.worker_after), c.tolerance)).toBe(undefined);
      expect(mismatch(centre.view, numbers(exchange.centre_after), c.tolerance)).toBe(undefined);
    }
  });
});

const SPECS: readonly OptimizerSpec[] = [
  { name: 'sgd', lr: 0.1 },
  { name: 'sgd', lr: 0.1, weightDecay: 0.01 },
  { name: 'sgd', lr: 0.1, momentum: 0.9, dampening: 0.2 },
  { name: 'sgd', lr: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.01 },
  { name: 'adagrad', lrDecay: 0.1, initialAccumulator: 0.1 },
  { name: 'adagrad', weightDecay: 0.01 },
  { name: 'rmsprop' },
  { name: 'rmsprop', momentum: 0.9 },
  { name: 'rmsprop', centered: true },
  { name: 'rmsprop', centered: true, momentum: 0.5, weightDecay: 0.01 },
  { name: 'adam' },
  { name: 'adam', amsgrad: true, weightDecay: 0.01 },
  { name: 'adamw' },
  { name: 'adamw', amsgrad: true },
  { name: 'adadelta' },
  { name: 'adadelta', weightDecay: 0.01 },
];

function normals(random: Random, length: number): number[] {
  return Array.from({ length }, () => Math.fround(random.normal()));
}

function snapshot(parameter: Region<'float32'>, slots: Slots): number[][] {
  return [parameter, ...Object.values(slots)].map((region) => Array.from(region.view));
}

describe.each(SPECS.map((spec) => ({ spec, title: JSON.stringify(spec) })))('$title', ({ spec }) => {
  const optimizer = createOptimizer(kernels, spec);

  it('updates a range as the same range of a whole update, bit by bit, whatever the alignment', () => {
    fc.assert(
      fc.property(fc.nat(70), fc.nat(3), fc.nat(70), fc.nat(), (length, offset, cut, seed) => {
        arena.reset();
        const random = new Random(seed);
        const initial = normals(random, length);
        const whole = arena.floats(initial);
        const parts = arena.floats(initial, offset);
        const wholeSlots = slotsFor(optimizer, length);
        const partSlots = slotsFor(optimizer, length, offset);
        const at = Math.min(cut, length);
        for (let t = 1; t <= 3; t++) {
          const values = normals(random, length);
          const gradient = arena.floats(values);
          const shifted = arena.floats(values, offset);
          optimizer.update({ t, parameter: whole, gradient, slots: wholeSlots });
          optimizer.update({ t, parameter: parts, gradient: shifted, slots: partSlots, length: at });
          optimizer.update({ t, parameter: parts, gradient: shifted, slots: partSlots, start: at });
        }
        expect(snapshot(parts, partSlots)).toEqual(snapshot(whole, wholeSlots));
        expect(arena.guardsIntact()).toBe(true);
      }),
      { numRuns: 40 },
    );
  });

  it('updates sparse rows exactly as the dense gradient would', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 12 }),
        fc.integer({ min: 1, max: 9 }),
        fc.array(fc.array(fc.nat(11), { maxLength: 8 }), { minLength: 1, maxLength: 4 }),
        fc.nat(),
        (tableRows, rowLength, steps, seed) => {
          arena.reset();
          const random = new Random(seed);
          const length = tableRows * rowLength;
          const initial = normals(random, length);
          const dense = arena.floats(initial);
          const sparse = arena.floats(initial, 1);
          const denseSlots = slotsFor(optimizer, length);
          const sparseSlots = slotsFor(optimizer, length, 3);
          for (const [step, chosen] of steps.entries()) {
            const rowIds = [...new Set(chosen.map((row) => row % tableRows))].sort((a, b) => a - b);
            const values = normals(random, rowIds.length * rowLength);
            const gradient = arena.floats(new Float32Array(length));
            for (const [j, row] of rowIds.entries()) {
              gradient.view.set(values.slice(j * rowLength, (j + 1) * rowLength), row * rowLength);
            }
            const t = step + 1;
            optimizer.update({ t, gradientScale: 0.5, parameter: dense, gradient, slots: denseSlots });
            optimizer.updateRows({
              t,
              gradientScale: 0.5,
              parameter: sparse,
              slots: sparseSlots,
              rowLength,
              indices: arena.region('int32', rowIds),
              rows: arena.floats(values, 2),
              rowCount: rowIds.length,
              mode: 'exact',
            });
          }
          expect(snapshot(sparse, sparseSlots)).toEqual(snapshot(dense, denseSlots));
          expect(arena.guardsIntact()).toBe(true);
        },
      ),
      { numRuns: 40 },
    );
  });

  it('leaves rows without a gradient alone in lazy mode and moves the others as a dense update', () => {
    const random = new Random(5);
    const initial = normals(random, 6 * 5);
    const rows = normals(random, 2 * 5);
    const parameter = arena.floats(initial);
    const slots = slotsFor(optimizer, 30);
    const before = snapshot(parameter, slots);
    optimizer.updateRows({
      t: 2,
      parameter,
      slots,
      rowLength: 5,
      indices: arena.region('int32', [1, 4, 99]),
      rows: arena.floats(rows),
      rowCount: 2,
      mode: 'lazy',
    });
    const dense = arena.floats([...initial.slice(5, 10), ...initial.slice(20, 25)]);
    const denseSlots = slotsFor(optimizer, 10);
    optimizer.update({ t: 2, parameter: dense, gradient: arena.floats(rows), slots: denseSlots });
    const moved = snapshot(dense, denseSlots);
    for (const [r, values] of snapshot(parameter, slots).entries()) {
      expect(values.slice(5, 10)).toEqual(moved[r]!.slice(0, 5));
      expect(values.slice(20, 25)).toEqual(moved[r]!.slice(5, 10));
      for (const [from, to] of [
        [0, 5],
        [10, 20],
        [25, 30],
      ] as const) {
        expect(values.slice(from, to)).toEqual(before[r]!.slice(from, to));
      }
    }
  });
});

describe('an optimizer', () => {
  it('stays finite where rounding makes a centered variance negative', () => {
    const optimizer = createOptimizer(kernels, { name: 'rmsprop', centered: true, alpha: 0.1 });
    const parameter = arena.floats([1, 1, 1, 1, 1]);
    const slots = slotsFor(optimizer, 5);
    const gradient = arena.floats([1.1, 3.3, 0.7, 1e-3, 123.456]);
    for (let t = 1; t <= 200; t++) optimizer.update({ t, parameter, gradient, slots });
    expect(parameter.view.every(Number.isFinite)).toBe(true);
  });

  it('changes nothing when an index is outside the table, twice there or out of order', () => {
    const optimizer = createOptimizer(kernels, { name: 'sgd', lr: 1 });
    const parameter = arena.floats(new Float32Array(12).fill(1));
    const rows = arena.floats(new Float32Array(9).fill(1));
    for (const indices of [
      [0, 1, 4],
      [0, 1, -1],
      [0, 2, 2],
      [0, 3, 1],
      [0, 1, 0x7fffffff],
    ]) {
      const step = { t: 1, parameter, slots: {}, rowLength: 3, rows, rowCount: 3, mode: 'exact' as const };
      expect(() => optimizer.updateRows({ ...step, indices: arena.region('int32', indices) })).toThrow(
        expect.objectContaining({ code: 'OUT_OF_BOUNDS' }),
      );
    }
    expect(Array.from(parameter.view)).toEqual(new Array(12).fill(1));
  });

  it('names a missing or wrong slot, a wrong length and a wrong step', () => {
    const optimizer = createOptimizer(kernels, { name: 'adam' });
    const parameter = arena.floats([1, 2]);
    const slots = slotsFor(optimizer, 2);
    const step = { t: 1, parameter, gradient: parameter, slots };
    expect(() => optimizer.update({ ...step, slots: {} })).toThrow(/exp_avg/);
    const short = { ...slots, exp_avg_sq: arena.floats([0]) };
    expect(() => optimizer.update({ ...step, slots: short })).toThrow(/exp_avg_sq/);
    expect(() => optimizer.update({ ...step, gradient: arena.floats([0]) })).toThrow(/gradient/);
    expect(() => optimizer.update({ ...step, t: 0 })).toThrow(/t of an update/);
    expect(() => optimizer.update({ ...step, start: 1, length: 2 })).toThrow(/outside/);
    expect(() =>
      optimizer.updateRows({
        ...step,
        rowLength: 3,
        indices: arena.region('int32', []),
        rows: arena.floats([]),
        rowCount: 0,
        mode: 'lazy',
      }),
    ).toThrow(/no rows of 3/);
  });

  it('refuses a specification with unknown fields or values outside their range', () => {
    const wrong: unknown[] = [
      { name: 'lion', lr: 1 },
      { name: 'sgd' },
      { name: 'sgd', lr: -1 },
      { name: 'sgd', lr: '0.1' },
      { name: 'sgd', lr: 0.1, nesterov: true },
      { name: 'sgd', lr: 0.1, momentum: 0.9, dampening: 0.1, nesterov: true },
      { name: 'sgd', lr: 0.1, weight_decay: 1 },
      { name: 'adam', betas: [0.9, 1] },
      { name: 'adam', betas: 0.9 },
      { name: 'adam', eps: NaN },
      { name: 'rmsprop', alpha: 1.5 },
    ];
    for (const spec of wrong) {
      expect(() => resolveOptimizerSpec(spec as OptimizerSpec), JSON.stringify(spec)).toThrow(
        expect.objectContaining({ code: 'INVALID_ARGUMENT' }),
      );
    }
    expect(() => resolveOptimizerSpec({ name: 'adm' } as unknown as OptimizerSpec)).toThrow(
      /^there is no optimizer 'adm'; give one of sgd, .*\. Did you mean "adam"\?$/,
    );
    expect(() => resolveOptimizerSpec({ name: 'sgd', lr: 1, momntum: 0 } as OptimizerSpec)).toThrow(
      /^optimizer 'sgd' has no momntum; it has lr, .*\. Did you mean "momentum"\?$/,
    );
    expect(resolveOptimizerSpec({ name: 'adamw' })).toEqual({
      name: 'adamw',
      lr: 0.001,
      betas: [0.9, 0.999],
      eps: 1e-8,
      weightDecay: 0.01,
      amsgrad: false,
    });
  });
});
