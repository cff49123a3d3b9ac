/**
 * Workers that look at combined gradients which servers hold: they see the sums computed by hand, whole and by rows, and what
 * is held takes effect afterwards as if nobody had looked.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import type { RemoteStore, RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { each, Servers } from './servers.ts';

const LENGTH = 1001;
const ROWS = 37;
const ROW = 5;
const ALL_ROWS = Int32Array.from({ length: ROWS }, (_, row) => row);
const LR = 0.5;

/** Multiples of 1/8, whose sums and halves are exact in any order. */
const eighths = (random: Random, length: number): Float32Array =>
  Float32Array.from({ length }, () => (random.below(65) - 32) / 8);

let ground: Servers;
afterEach(() => ground.closeStores());

async function pair(options: Partial<RemoteStoreOptions> = {}): Promise<[RemoteStore, RemoteStore]> {
  const access = ground.createService();
  const stores = await ground.connect(2, { held: true, chunkBytes: 512, ...options, access });
  const inits = [
    { key: 'w', value: new Float32Array(LENGTH) },
    { key: 'table', value: new Float32Array(ROWS * ROW), rowLength: ROW },
  ];
  await each(stores, (store) => store.init(inits));
  return stores as [RemoteStore, RemoteStore];
}

/** The table whose rows are the sums of all workers', times a factor; by hand. */
function summed(indices: readonly Int32Array[], rows: readonly Float32Array[], factor: number): Float32Array {
  const table = new Float32Array(ROWS * ROW);
  indices.forEach((own, worker) =>
    own.forEach((row, i) => {
      for (let j = 0; j < ROW; j++) table[row * ROW + j]! += factor * rows[worker]![i * ROW + j]!;
    }),
  );
  return table;
}

const rowsOf = (table: Float32Array, indices: Int32Array): number[] =>
  [...indices].flatMap((row) => [...table.subarray(row * ROW, (row + 1) * ROW)]);

async function held(store: RemoteStore, key: string, length: number): Promise<number[]> {
  const into = new Float32Array(length);
  await store.pullHeld({ key, into });
  return [...into];
}

async function heldRows(store: RemoteStore, indices: Int32Array): Promise<number[]> {
  const into = store.allocate(indices.length * ROW);
  into.view.fill(NaN);
  await store.pullHeldRows('table', indices, into);
  return [...into.view];
}

async function valueOf(store: RemoteStore, key: string, length: number): Promise<number[]> {
  const into = new Float32Array(length);
  await store.pull({ key, into });
  return [...into];
}

describe.skipIf(!hasSharedMemory()).each([
  { servers: 1, cores: 2, sharedMemory: true },
  { servers: 2, cores: 1, sharedMemory: false },
])('held gradients, $servers servers, shared memory: $sharedMemory', ({ servers, cores, sharedMemory }) => {
  beforeAll(async () => {
    ground = await Servers.start(servers, { cores });
  });
  afterAll(() => ground.close());

  describe.each(['sum', 'mean'] as const)('combined by %s', (combine) => {
    const factor = combine === 'sum' ? 1 : 0.5;

    it('are what was pushed, whole and by rows, and are applied as if nobody had looked', async () => {
      const seed = 41;
      const random = new Random(seed);
      const stores = await pair({ sharedMemory, combine });
      await each(stores, (store) => store.setOptimizer({ name: 'sgd', lr: LR }));
      const expected = { w: new Float32Array(LENGTH), table: new Float32Array(ROWS * ROW) };
      for (let step = 1; step <= 3; step++) {
        const gradients = stores.map(() => eighths(random, LENGTH));
        // Rows repeat within a worker and between workers; row 0 is nobody's.
        const indices = stores.map(() => Int32Array.from({ length: 9 }, () => 1 + random.below(ROWS - 1)));
        const rows = indices.map(({ length }) => eighths(random, length * ROW));
        const w = gradients[0]!.map((one, i) => factor * (one + gradients[1]![i]!));
        const table = summed(indices, rows, factor);
        const scale = 1 / step;
        await each(stores, async (store, i) => {
          const pushed = [
            store.push({ key: 'w', gradient: gradients[i]! }),
            store.pushRows('table', indices[i]!, rows[i]!),
          ];
          // Not awaited: a look waits until all have pushed. Workers apply when they like.
          const looks = [held(store, 'w', LENGTH), held(store, 'table', ROWS * ROW)];
          const some = Int32Array.from([0, 5, 5, ROWS - 1, ...indices[1 - i]!, 0]);
          const byRows = [
            heldRows(store, some),
            heldRows(store, ALL_ROWS),
            heldRows(store, new Int32Array()),
          ];
          await store.apply({ scale });
          await Promise.all(pushed);
          expect(await Promise.all(looks), `seed ${seed}`).toEqual([[...w], [...table]]);
          expect(await Promise.all(byRows), `seed ${seed}`).toEqual([rowsOf(table, some), [...table], []]);
        });
        for (const [key, gradient] of [
          ['w', w],
          ['table', table],
        ] as const) {
          // prettier-ignore
          gradient.forEach((one, i) => (expected[key][i]! -= LR * Math.fround(scale) * one));
          const value = await valueOf(stores[step % 2]!, key, gradient.length);
          const distances = value.map((one, i) => Math.abs(one - expected[key][i]!));
          expect(Math.max(...distances), `seed ${seed}, step ${step}, ${key}`).toBeLessThan(1e-4);
        }
      }
    });

    it('are there for a slow worker after a fast one has applied them, without an optimizer too', async () => {
      const [fast, slow] = await pair({ sharedMemory, combine });
      const indices = [Int32Array.of(3, 7), Int32Array.of(7, 30, 3)];
      const rows = indices.map(({ length }, i) => new Float32Array(length * ROW).fill(i + 1));
      const table = summed(indices, rows, factor);
      await each([fast, slow], (store, i) => store.pushRows('table', indices[i]!, rows[i]!));
      await fast.apply({ scale: 0.25 });
      expect(await heldRows(slow, ALL_ROWS)).toEqual([...table]);
      expect(await held(slow, 'table', ROWS * ROW)).toEqual([...table]);
      await expect(heldRows(fast, ALL_ROWS)).rejects.toThrow(/worker 0 .* not pushed since its last apply/);
      await slow.apply({ scale: 0.25 });
      expect(await valueOf(slow, 'table', ROWS * ROW)).toEqual([...table.map((one) => 0.25 * one)]);
    });

    it('have rows also if the table was pushed whole', async () => {
      const stores = await pair({ sharedMemory, combine });
      const gradients = stores.map((_, i) => eighths(new Random(7 + i), ROWS * ROW));
      const table = gradients[0]!.map((one, i) => factor * (one + gradients[1]![i]!));
      await each(stores, (store, i) => store.push({ key: 'table', gradient: gradients[i]! }));
      const some = Int32Array.of(36, 0, 17, 17, 18, 19, 1);
      expect(await heldRows(stores[0], some)).toEqual(rowsOf(table, some));
      expect(await held(stores[1], 'table', ROWS * ROW)).toEqual([...table]);
    });
  });

  it('are zeros where everybody pushed no rows, or had no samples', async () => {
    const stores = await pair({ sharedMemory, combine: 'mean' });
    await each(stores, (store) => store.pushRows('table', new Int32Array(), new Float32Array()));
    await each(stores, (store) =>
      store.push({ key: 'w', gradient: new Float32Array(LENGTH).fill(3) }, { samples: 0 }),
    );
    expect(new Set(await heldRows(stores[0], ALL_ROWS))).toEqual(new Set([0]));
    expect(new Set(await held(stores[1], 'w', LENGTH))).toEqual(new Set([0]));
  });

  it('are refused where there is nothing to look at, and where they would do harm', async () => {
    const [store, other] = await pair({ sharedMemory });
    const into = new Float32Array(ROWS * ROW);
    const [w, table] = [
      { key: 'w', into: new Float32Array(LENGTH) },
      { key: 'table', into },
    ];
    await expect(store.pullHeld([w, table])).rejects.toThrow(/worker 0 .* key 'w', which it has not pushed/);
    await expect(store.pullHeldRows('table', ALL_ROWS, into)).rejects.toThrow(
      /key 'table', which it has not/,
    );
    await expect(store.pullHeldRows('w', ALL_ROWS, into)).rejects.toThrow(/no table/);
    await each([store, other], (one) =>
      one.pushRows('table', Int32Array.of(1), new Float32Array(ROW).fill(1)),
    );
    await expect(store.pullHeldRows('table', Int32Array.of(ROWS), into.subarray(0, ROW))).rejects.toThrow(
      /row 37/,
    );
    await expect(store.pullHeldRows('table', ALL_ROWS, into.subarray(1))).rejects.toThrow(/184 elements/);
    await expect(store.pullHeld([table, w])).rejects.toThrow(/key 'w', which it has not pushed/);
    const value = store.value('table');
    if (value) {
      await expect(store.pullHeld({ key: 'table', into: value })).rejects.toThrow(/the place of its value/);
      await expect(store.pullHeldRows('table', ALL_ROWS, value)).rejects.toThrow(/the place of its value/);
    }
    await each([store, other], (one) => one.apply());
    await expect(other.pullHeldRows('table', ALL_ROWS, into)).rejects.toThrow(/worker 1 .* since its last/);
    const [plain] = await pair({ sharedMemory, held: false });
    await expect(plain.pullHeld(w)).rejects.toThrow(/not held/);
    await expect(plain.pullHeldRows('table', ALL_ROWS, into)).rejects.toThrow(/not held/);
  });
});
