import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import {
  addRows,
  allocateRowPlan,
  blendRows,
  planRows,
  rowPlanBytes,
  sumRows,
} from '../../src/kernels/index.ts';
import { Arena } from './arena.ts';

const arena = new Arena();
const { kernels } = arena;
beforeEach(() => arena.reset());

const outOfBounds = expect.objectContaining({ code: 'OUT_OF_BOUNDS' }) as Error;

describe('sparse rows', () => {
  it('become ascending unique indices with rows added in the order of their positions', () => {
    fc.assert(
      fc.property(
        fc.array(fc.oneof(fc.nat(9), fc.nat(70_000), fc.nat(0x7ffffffd)), { maxLength: 60 }),
        fc.integer({ min: 1, max: 37 }),
        fc.nat(3),
        fc.option(fc.nat(9), { nil: undefined }),
        (tokens, rowLength, offset, paddingIndex) => {
          arena.reset();
          const n = tokens.length;
          const values = Float32Array.from({ length: n * rowLength }, (_, i) => Math.sin(i) * 1e3);
          const rows = arena.floats(values, offset);
          const rowsOut = arena.floats(new Float32Array(n * rowLength), offset);
          const plan = allocateRowPlan(arena.segment, n);
          const indices = arena.region('int32', tokens, offset);
          const unique = planRows(kernels, { indices, tableRows: 0x7fffffff, paddingIndex, plan });
          sumRows(kernels, { plan, unique, rows, rowLength, rowsOut });

          const sums = new Map<number, Float32Array>();
          for (const [position, token] of tokens.entries()) {
            if (token === paddingIndex) continue;
            const row = values.subarray(position * rowLength, (position + 1) * rowLength);
            const sum = sums.get(token);
            if (sum === undefined) sums.set(token, row.slice());
            else for (let i = 0; i < rowLength; i++) sum[i] = sum[i]! + row[i]!;
          }
          const keys = [...sums.keys()].sort((a, b) => a - b);
          expect(Array.from(plan.indices.view.subarray(0, unique))).toEqual(keys);
          const want = keys.flatMap((key) => Array.from(sums.get(key)!));
          expect(Array.from(rowsOut.view.subarray(0, unique * rowLength))).toEqual(want);
          expect(arena.guardsIntact()).toBe(true);
        },
      ),
    );
  });

  it('are blended several times with the bits of one time after the other', () => {
    for (const [rowLength, times] of [
      [1, 3],
      [7, 400],
      [32, 1],
    ] as const) {
      arena.reset();
      const values = (seed: number) =>
        Float32Array.from({ length: 5 * rowLength }, (_, i) => Math.sin(i + seed));
      const [target, x, expected] = [1, 2, 1].map((seed) => arena.floats(values(seed), 1));
      const indices = arena.region('int32', [4, 1]);
      const given = { target: target!, keep: 0.9, x: x!, share: 1 - 0.9, rowLength, indices };
      blendRows(kernels, { ...given, rowCount: 2, times });
      for (const row of [1, 4]) {
        const part = [expected!, x!].map((region) => region.slice(row * rowLength, rowLength));
        for (let i = 0; i < times; i++) kernels.blend(part[0]!, 0.9, part[1]!, 1 - 0.9);
      }
      expect([...target!.view]).toEqual([...expected!.view]);
      expect(arena.guardsIntact()).toBe(true);
    }
    const region = arena.floats(new Float32Array(4), 0);
    const wrong = {
      target: region,
      x: region,
      rowLength: 2,
      indices: arena.region('int32', [2]),
      rowCount: 1,
    };
    expect(() => blendRows(kernels, { ...wrong, keep: 1, share: 0 })).toThrow(outOfBounds);
  });

  it('can be planned for the first positions only, with indices written where the caller wants them', () => {
    const indicesOut = arena.region('int32', [0, 0, 0, 0]);
    const plan = allocateRowPlan(arena.segment, 4, indicesOut);
    const indices = arena.region('int32', [5, 3, 5, 1]);
    expect(planRows(kernels, { indices, count: 3, tableRows: 6, plan })).toBe(2);
    expect(Array.from(indicesOut.view.subarray(0, 2))).toEqual([3, 5]);
  });

  it('refuse an index outside the table and name its position', () => {
    const plan = allocateRowPlan(arena.segment, 3);
    for (const [tokens, position] of [
      [[1, 6, 2], 1],
      [[1, 2, -1], 2],
    ] as const) {
      const indices = arena.region('int32', tokens);
      expect(() => planRows(kernels, { indices, tableRows: 6, plan })).toThrow(
        new RegExp(`at position ${position}`),
      );
    }
  });

  it('refuse a plan that does not fit the rows, and regions that are too small', () => {
    const plan = allocateRowPlan(arena.segment, 3);
    const indices = arena.region('int32', [2, 0, 2]);
    const unique = planRows(kernels, { indices, tableRows: 3, plan });
    const rows = arena.floats([1, 2, 3, 4, 5, 6]);
    const rowsOut = arena.floats([0, 0, 0, 0]);
    sumRows(kernels, { plan, unique, rows, rowLength: 2, rowsOut });
    expect(Array.from(rowsOut.view)).toEqual([3, 4, 6, 8]);
    const step = { plan, unique, rows, rowLength: 2, rowsOut };
    expect(() => sumRows(kernels, { ...step, rows: rows.slice(0, 4) })).toThrow(outOfBounds);
    expect(() => sumRows(kernels, { ...step, rowsOut: rowsOut.slice(0, 3) })).toThrow(outOfBounds);
    expect(() => sumRows(kernels, { ...step, unique: 3 })).toThrow(outOfBounds);
    plan.starts.view[1] = 1000;
    expect(() => sumRows(kernels, step)).toThrow(outOfBounds);
    const long = arena.region('int32', [0, 0, 0, 0]);
    expect(() => planRows(kernels, { indices: long, tableRows: 3, plan })).toThrow(outOfBounds);
  });

  it('can be added to a dense table, whole or not at all', () => {
    const target = arena.floats([1, 1, 1, 1, 1, 1]);
    const rows = arena.floats([1, 2, 3, 4, 5, 6]);
    addRows(kernels, { target, rowLength: 2, indices: arena.region('int32', [2, 0, 2]), rows });
    expect(Array.from(target.view)).toEqual([4, 5, 1, 1, 7, 9]);
    const indices = arena.region('int32', [1, 3]);
    expect(() => addRows(kernels, { target, rowLength: 2, indices, rows })).toThrow(outOfBounds);
    expect(Array.from(target.view)).toEqual([4, 5, 1, 1, 7, 9]);
  });

  it('fit their plan into the bytes that are stated', () => {
    for (const capacity of [0, 1, 17, 1280]) {
      allocateRowPlan(arena.space.allocate(rowPlanBytes(capacity)), capacity);
    }
  });
});
