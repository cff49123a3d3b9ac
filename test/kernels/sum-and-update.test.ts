/** Sum and update in one pass, and rows that are gathered and scattered: the bits of the plain forms. */
import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import {
  allocateRowPlan,
  copyRows,
  createOptimizer,
  planRows,
  SUM_SCRATCH_ELEMENTS,
  sumRows,
} from '../../src/kernels/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { Arena } from './arena.ts';

const arena = new Arena();
const { kernels } = arena;
beforeEach(() => arena.reset());

const specs: readonly OptimizerSpec[] = [
  { name: 'sgd', lr: 0.1 },
  { name: 'sgd', lr: 0.1, momentum: 0.9 },
  { name: 'adam', lr: 0.01 },
];

describe.each(specs)('sum and update by %o', (spec) => {
  it('equal the sum and then the update, bit by bit', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 8 }),
        fc.integer({ min: 1, max: 2 * SUM_SCRATCH_ELEMENTS + 5 }),
        fc.integer({ min: 1, max: 5 }),
        (count, length, t) => {
          arena.reset();
          const optimizer = createOptimizer(kernels, spec);
          const sources = Array.from({ length: count }, (_, k) =>
            arena.floats(Float32Array.from({ length }, (__, i) => Math.sin(i + k) * 10)),
          );
          const parameters = () => arena.floats(Float32Array.from({ length }, (_, i) => Math.cos(i)));
          const slots = () =>
            Object.fromEntries(
              optimizer.slots.map((name) => [name, arena.floats(new Float32Array(length).fill(0.5))]),
            );
          const [fused, plain] = [
            { parameter: parameters(), slots: slots() },
            { parameter: parameters(), slots: slots() },
          ];
          const scratch = arena.floats(new Float32Array(SUM_SCRATCH_ELEMENTS));
          optimizer.sumAndUpdate({ t, gradientScale: 0.5, sources, scratch, ...fused });
          const sum = arena.floats(new Float32Array(length));
          kernels.sum(sum, sources);
          optimizer.update({ t, gradientScale: 0.5, gradient: sum, ...plain });
          expect([...fused.parameter.view]).toEqual([...plain.parameter.view]);
          for (const name of optimizer.slots) {
            expect([...fused.slots[name]!.view]).toEqual([...plain.slots[name]!.view]);
          }
        },
      ),
      { numRuns: 40 },
    );
  });

  it('of rows that lie anywhere equal their sums and then the update', () => {
    fc.assert(
      fc.property(
        fc.array(fc.array(fc.integer({ min: 0, max: 9 }), { minLength: 1, maxLength: 12 }), {
          ...{ minLength: 1, maxLength: 4 },
        }),
        fc.integer({ min: 1, max: 9 }),
        (workers, rowLength) => {
          arena.reset();
          const optimizer = createOptimizer(kernels, spec);
          const count = workers.flat().length;

          const plan = allocateRowPlan(arena.segment, count);
          const indices = arena.region('int32', workers.flat());
          const unique = planRows(kernels, { indices, tableRows: 10, plan });
          // Each worker's rows lie the other way round, and one is nobody's.
          const sources = workers.map((own, worker) => ({
            rows: arena.floats(
              Float32Array.from({ length: (own.length + 1) * rowLength }, (_, i) => Math.sin(i + worker)),
            ),
            positions: arena.region(
              'int32',
              own.map((_, i) => own.length - i),
            ),
          }));
          const flat = sources.flatMap(({ rows, positions }) =>
            [...positions.view].flatMap((row) => [
              ...rows.view.subarray(row * rowLength, (row + 1) * rowLength),
            ]),
          );
          const state = () => ({
            parameter: arena.floats(Float32Array.from({ length: 10 * rowLength }, (_, i) => Math.cos(i))),
            slots: Object.fromEntries(
              optimizer.slots.map((name) => [name, arena.floats(new Float32Array(10 * rowLength).fill(0.5))]),
            ),
          });
          // The first wants its new rows elsewhere, the last in place of its gradients, others not at all.
          const elsewhere = arena.floats(new Float32Array(sources[0]!.rows.length));
          const asked = sources.map((source, worker) =>
            worker === 0
              ? { ...source, answer: elsewhere }
              : worker === sources.length - 1
                ? { ...source, answer: source.rows }
                : source,
          );
          const [fused, plain] = [state(), state()];
          const step = { t: 2, gradientScale: 0.5, rowLength };
          const addresses = arena.region('int32', new Array<number>(2 * count).fill(0));
          const scratch = arena.floats(new Float32Array(rowLength));
          optimizer.sumAndUpdateRows({
            ...step,
            plan,
            unique,
            sources: asked,
            addresses,
            scratch,
            ...fused,
          });
          const rowsOut = arena.floats(new Float32Array(count * rowLength));
          sumRows(kernels, { plan, unique, rows: arena.floats(flat), rowLength, rowsOut });
          const sums = { indices: plan.indices, rows: rowsOut, rowCount: unique, mode: 'lazy' as const };
          optimizer.updateRows({ ...step, ...sums, ...plain });
          expect([...fused.parameter.view]).toEqual([...plain.parameter.view]);
          for (const name of optimizer.slots) {
            expect([...fused.slots[name]!.view]).toEqual([...plain.slots[name]!.view]);
          }
          asked.forEach((source, worker) => {
            if (!('answer' in source)) return;
            const rowOf = (tensor: Region<'float32'>, row: number) => [
              ...tensor.view.subarray(row * rowLength, (row + 1) * rowLength),
            ];
            workers[worker]!.forEach((row, i) => {
              const answer = rowOf(source.answer, source.positions.view[i]!);
              expect(answer).toEqual(rowOf(plain.parameter, row));
            });
          });
        },
      ),
      { numRuns: 60 },
    );
  });

  it('of rows refuse places outside of their source, and plans of other rows', () => {
    const optimizer = createOptimizer(kernels, spec);
    const [parameter, rows] = [arena.floats(new Float32Array(8)), arena.floats(new Float32Array(4))];
    const slots = Object.fromEntries(
      optimizer.slots.map((name) => [name, arena.floats(new Float32Array(8))]),
    );
    const plan = allocateRowPlan(arena.segment, 3);
    const indices = arena.region('int32', [3, 0, 3]);
    const unique = planRows(kernels, { indices, tableRows: 4, plan });
    const step = {
      ...{ t: 1, rowLength: 2, parameter, slots, plan, unique },
      ...{ addresses: arena.region('int32', [0, 0, 0, 0, 0, 0]), scratch: arena.floats(new Float32Array(2)) },
    };
    for (const bad of [2, -1]) {
      const positions = arena.region('int32', [0, 1, bad]);
      expect(() => optimizer.sumAndUpdateRows({ ...step, sources: [{ rows, positions }] })).toThrow(
        /positions/,
      );
    }
    expect(() => optimizer.sumAndUpdateRows({ ...step, sources: [{ rows }] })).toThrow(/does not fit/);
    expect([...parameter.view]).toEqual(new Array(8).fill(0));
  });

  it('refuse more sources than a pass takes, and sources of another length', () => {
    const optimizer = createOptimizer(kernels, spec);
    const parameter = arena.floats(new Float32Array(8));
    const slots = Object.fromEntries(
      optimizer.slots.map((name) => [name, arena.floats(new Float32Array(8))]),
    );
    const scratch = arena.floats(new Float32Array(SUM_SCRATCH_ELEMENTS));
    const step = { t: 1, parameter, slots, scratch };
    const nine = Array.from({ length: 9 }, () => arena.floats(new Float32Array(8)));
    expect(() => optimizer.sumAndUpdate({ ...step, sources: nine })).toThrow(/9 sources/);
    const short = arena.floats(new Float32Array(7));
    expect(() => optimizer.sumAndUpdate({ ...step, sources: [short] })).toThrow(/source 0/);
  });
});

describe('rows', () => {
  it('are gathered and scattered by their indices, which may repeat and must be within', () => {
    const table = arena.floats(Float32Array.from({ length: 12 }, (_, i) => i));
    const indices = arena.region('int32', [3, 0, 3]);
    const rows = arena.floats(new Float32Array(9));
    copyRows(kernels, { target: rows, source: table, rowLength: 3, from: indices });
    expect([...rows.view]).toEqual([9, 10, 11, 0, 1, 2, 9, 10, 11]);
    const back = arena.floats(new Float32Array(12));
    copyRows(kernels, { target: back, source: rows, rowLength: 3, into: indices });
    expect([...back.view]).toEqual([0, 1, 2, 0, 0, 0, 0, 0, 0, 9, 10, 11]);
    indices.view[1] = 4;
    const outside = expect.objectContaining({ code: 'OUT_OF_BOUNDS' }) as Error;
    expect(() => copyRows(kernels, { target: rows, source: table, rowLength: 3, from: indices })).toThrow(
      outside,
    );
    indices.view[1] = -1;
    expect(() => copyRows(kernels, { target: back, source: rows, rowLength: 3, into: indices })).toThrow(
      outside,
    );
  });
});
