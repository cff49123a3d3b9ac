/** Rows that are exact: whatever rows are touched when, the table is that of dense updates. */
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Kernels } from '../../src/kernels/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { Region, Segment } from '../../src/memory/index.ts';
import { optimizerRule, ServerCore } from '../../src/server/index.ts';
import type { RowsMode } from '../../src/server/index.ts';

const ROWS = 6;
const ROW_LENGTH = 3;
const space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
const kernels = Kernels.create(space);
let segment: Segment;
beforeEach(() => {
  segment = space.allocate(2 ** 20);
});
afterEach(() => segment.close());

const floats = (values: readonly number[]): Region<'float32'> => {
  const region = segment.allocate('float32', values.length);
  region.view.set(values);
  return region;
};

function open(rows: RowsMode, spec: OptimizerSpec): { core: ServerCore; value: Region<'float32'> } {
  const slots = new Map<string, Region<'float32'>>();
  const core = new ServerCore({
    kernels,
    rows,
    slotRegion: (_, slot, length) => {
      const known = slots.get(slot) ?? floats(new Array<number>(length).fill(0));
      slots.set(slot, known);
      return known;
    },
  });
  core.admit(0);
  const value = floats(Array.from({ length: ROWS * ROW_LENGTH }, (_, i) => i / 10));
  core.open({
    name: 't',
    value,
    chunks: [{ start: 0, length: ROWS * ROW_LENGTH }],
    rowLength: ROW_LENGTH,
  });
  core.setRule(optimizerRule(kernels, spec));
  return { core, value };
}

const specs: readonly OptimizerSpec[] = [
  { name: 'sgd', lr: 0.1 },
  { name: 'sgd', lr: 0.1, momentum: 0.9 },
  { name: 'sgd', lr: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.01 },
  { name: 'adam', lr: 0.01 },
];
/** The rows of a step, and a learning rate that counts from it on. */
const touched = fc.record({
  rows: fc.uniqueArray(fc.nat(ROWS - 1), { maxLength: ROWS }),
  lr: fc.option(fc.constantFrom(0.5, 0.03125), { nil: undefined }),
});

describe.each(specs)('exact rows with %o', (spec) => {
  it('give the bits of dense updates', () => {
    fc.assert(
      fc.property(fc.array(touched, { minLength: 1, maxLength: 12 }), (steps) => {
        const [byRows, dense] = [open('exact', spec), open('lazy', spec)];
        steps.forEach(({ rows, lr }, i) => {
          if (lr !== undefined) for (const { core } of [byRows, dense]) core.setLearningRate(lr);
          const gradient = new Float32Array(ROWS * ROW_LENGTH);
          for (const row of rows) gradient.fill(row + i + 1, row * ROW_LENGTH, (row + 1) * ROW_LENGTH);
          const indices = segment.allocate('int32', rows.length);
          indices.view.set(rows);
          const own = floats(rows.flatMap((row) => new Array<number>(ROW_LENGTH).fill(row + i + 1)));
          const push = { worker: 0, key: 't', step: i + 1 };
          byRows.core.pushRows({ ...push, indices, rows: own }, () => undefined);
          dense.core.push({ ...push, gradient: floats([...gradient]) }, () => undefined);
        });
        byRows.core.pull(0, 't');
        expect([...byRows.value.view]).toEqual([...dense.value.view]);
        byRows.core.close();
        dense.core.close();
        segment.close();
        segment = space.allocate(2 ** 20);
      }),
      { numRuns: 30 },
    );
  });
});

it('lazy rows leave alone what nobody touched', () => {
  const { core, value } = open('lazy', { name: 'sgd', lr: 0.1, momentum: 0.9 });
  const before = [...value.view];
  const indices = segment.allocate('int32', 1);
  const push = { worker: 0, key: 't', rows: floats([1, 1, 1]), indices };
  core.pushRows({ ...push, step: 1 }, () => undefined);
  const after = [...value.view];
  indices.view[0] = 1;
  core.pushRows({ ...push, step: 2 }, () => undefined);
  expect([...value.view].slice(0, 3)).toEqual(after.slice(0, 3));
  expect([...value.view].slice(6)).toEqual(before.slice(6));
});
