/** Rows that are exact: whatever rows are touched when, the table is that of dense updates. */
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { Kernels } from '../../src/kernels/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { Region, Segment } from '../../src/memory/index.ts';
import { optimizerRule, ServerCore } from '../../src/server/index.ts';
import type { Consistency, RowsMode, ServerCoreOptions, Updater } from '../../src/server/index.ts';

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

/** What a core takes for itself, by its bytes. */
class Counted {
  readonly taken: number[] = [];
  allocate(bytes: number): Segment {
    this.taken.push(bytes);
    return space.allocate(bytes);
  }
}

function openTable(
  [rows, rowLength]: readonly [number, number],
  spec: OptimizerSpec | undefined,
  options: Partial<ServerCoreOptions> = {},
): { core: ServerCore; value: Region<'float32'>; own: Segment } {
  const own = space.allocate(4 * 4 * rows * rowLength + 1024);
  const core = new ServerCore({
    ...{ kernels, rows: 'exact', ...options },
    slotRegion: (_, _slot, length) => own.allocate('float32', length),
  });
  core.admit(0);
  const value = own.allocate('float32', rows * rowLength);
  value.view.forEach((_, i) => (value.view[i] = (i % 13) / 10));
  core.open({ name: 't', value, chunks: [{ start: 0, length: value.length }], rowLength });
  if (spec) core.setRule(optimizerRule(kernels, spec));
  return { core, value, own };
}

/** Rows more than go together, short ones and one longer than fits. */
const tables = [[10_000, 1], [700, 100], [3, 20_000]] as const; // prettier-ignore

describe.each(tables)('a table of %i rows of %i', (rows, rowLength) => {
  it.each(specs)('has the bits of dense updates wherever the catching up is cut, by %o', (spec) => {
    const seed = 31;
    const random = new Random(seed);
    const [byRows, dense] = [openTable([rows, rowLength], spec), openTable([rows, rowLength], spec, { rows: 'lazy' })]; // prettier-ignore
    for (let step = 1; step <= 8; step++) {
      const from = random.below(rows);
      const touched = [...Array(rows).keys()].filter((row) => row >= from && random.below(3) === 0);
      const scratch = space.allocate(4 * (rows * rowLength + touched.length * (1 + rowLength)) + 256);
      const gradient = scratch.allocate('float32', rows * rowLength);
      const indices = scratch.allocate('int32', touched.length);
      indices.view.set(touched);
      const own = scratch.allocate('float32', touched.length * rowLength);
      own.view.fill(step);
      for (const row of touched) gradient.view.fill(step, row * rowLength, (row + 1) * rowLength);
      // Some parts now, the rest at another time.
      const parts = byRows.core.catchUp('t');
      for (let i = random.below(4); i > 0; i--) parts?.next();
      byRows.core.pushRows({ worker: 0, key: 't', step, indices, rows: own }, () => undefined);
      dense.core.push({ worker: 0, key: 't', step, gradient }, () => undefined);
      scratch.close();
    }
    byRows.core.pull(0, 't');
    const at = byRows.value.view.findIndex((one, i) => !Object.is(one, dense.value.view[i]));
    expect(at, `seed ${seed}`).toBe(-1);
    for (const { core, own } of [byRows, dense]) {
      core.close();
      own.close();
    }
  });
});

function pushRow(core: ServerCore, step: number, row: number, rowLength: number): void {
  const own = space.allocate(4 * (1 + rowLength) + 128);
  const indices = own.allocate('int32', 1);
  indices.view[0] = row;
  const rows = own.allocate('float32', rowLength);
  core.pushRows({ worker: 0, key: 't', step, indices, rows }, () => undefined);
  own.close();
}

describe('what exact rows take', () => {
  const MOMENTUM: OptimizerSpec = { name: 'sgd', lr: 0.1, momentum: 0.9 };
  const ROOM_BYTES = 128 * 1024;

  it('is memory for every row of the core, and nothing more for rows that are behind', () => {
    const scratch = new Counted();
    const { core, own } = openTable([100_000, 1], MOMENTUM, { scratch });
    expect(scratch.taken.filter((bytes) => bytes >= 4 * 100_000)).toHaveLength(1);
    pushRow(core, 1, 7, 1);
    const before = scratch.taken.length;
    core.pull(0, 't');
    expect(scratch.taken.slice(before)).toEqual([]);
    expect(Math.max(...scratch.taken)).toBeLessThan(4 * 100_000 + ROOM_BYTES);
    core.close();
    own.close();
  });

  it('goes by the rows of which a core has something', () => {
    const scratch = new Counted();
    const core = new ServerCore({ kernels, rows: 'exact', scratch, slotRegion: () => floats([]) });
    core.admit(0);
    const value = space.allocate(2 ** 20);
    const region = value.allocate('float32', 200_000);
    core.open({ name: 't', value: region, chunks: [{ start: 0, length: 10 }], rowLength: 1 });
    core.open({ name: 'u', value: region, chunks: [], rowLength: 1 });
    expect(Math.max(...scratch.taken)).toBeLessThan(ROOM_BYTES);
    core.close();
    value.close();
  });

  it('is nothing that stays if there is no memory for it', () => {
    const scratch = {
      allocate: (bytes: number) => {
        if (bytes > 2 * ROOM_BYTES) throw new Error('no memory');
        return space.allocate(bytes);
      },
    };
    expect(() => openTable([100_000, 1], MOMENTUM, { scratch })).toThrow('no memory');
  });
});

/** Steps that it takes until rows have what they missed. */
function partsOf(core: ServerCore): number {
  const parts = core.catchUp('t');
  let count = 0;
  while (parts && !parts.next().done) count++;
  return count;
}

describe('a row that missed many updates', () => {
  const MISSED = 500;
  const SHAPE = [1000, 64] as const;
  const parts = (spec: OptimizerSpec | undefined, updater?: Updater): number => {
    const { core, own } = openTable(SHAPE, spec, { updater });
    for (let step = 1; step <= MISSED; step++) pushRow(core, step, 7, SHAPE[1]);
    const count = partsOf(core);
    expect(core.catchUp('t')).toBeUndefined();
    core.close();
    own.close();
    return count;
  };

  it('gets them in parts of about one update of a chunk', () => {
    const count = parts({ name: 'sgd', lr: 0.1, momentum: 0.9 });
    expect(count).toBeGreaterThan((MISSED * SHAPE[0] * SHAPE[1]) / 2 / 65_536);
    expect(count).toBeLessThan((MISSED * SHAPE[0] * SHAPE[1] * 2) / 65_536);
  });

  it('needs only the last one if that leaves nothing of those before', () => {
    expect(parts(undefined, 'assign')).toBeLessThan(10);
  });

  it('needs none by a rule that moves nothing without a gradient', () => {
    expect(parts(undefined, 'accumulate')).toBe(0);
    expect(parts({ name: 'sgd', lr: 0.1 })).toBe(0);
  });

  it('that many have missed at different times does not take the square of their number at once', () => {
    const shape = [512, 1] as const;
    const { core, own } = openTable(shape, { name: 'sgd', lr: 0.1, momentum: 0.9 });
    for (let row = 0; row < shape[0]; row++) pushRow(core, row + 1, row, 1);
    expect(partsOf(core)).toBeGreaterThan(3);
    core.close();
    own.close();
  });
});

it('averages of whole tables stay as they are, whatever becomes of rows', () => {
  const consistency: Consistency = { kind: 'elastic', alpha: 0.5 };
  const { core, value, own } = openTable([2, 2], undefined, { consistency });
  core.push({ worker: 0, key: 't', step: 1, gradient: floats([2, 2, 2, 2]) }, () => undefined);
  const after = [...value.view];
  core.pull(0, 't');
  expect([...value.view]).toEqual(after);
  expect(after[0]).toBe(1);
  core.close();
  own.close();
});
