/**
 * Stores whose updates are held, on real servers: every worker is told the norm of the combined gradients before anything
 * changes, and values after `apply` are those of one device that has the combined gradient, times the scale.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { RemoteStore, RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { Combine, RowsMode } from '../../src/server/index.ts';
import { OneDevice } from './one-device.ts';
import { each, Servers } from './servers.ts';

const LENGTH = 3001;
const ROWS = 37;
const ROW = 5;
const STEPS = 6;
const MAX_NORM = 0.5;
const CHUNK_BYTES = 512;

const layouts = [
  { servers: 1, cores: 1, sharedMemory: true },
  { servers: 2, cores: 2, sharedMemory: true },
  { servers: 1, cores: 2, sharedMemory: false },
  { servers: 2, cores: 1, sharedMemory: false },
];
const optimizers: readonly OptimizerSpec[] = [
  { name: 'adam', lr: 0.01 },
  { name: 'sgd', lr: 0.1, momentum: 0.9 },
];

const noise = (random: Random, length: number): Float32Array =>
  Float32Array.from({ length }, () => random.uniform() - 0.5);

let ground: Servers;

async function connect(workers: number, options: Partial<RemoteStoreOptions> = {}): Promise<RemoteStore[]> {
  const access = options.access ?? ground.createService();
  return ground.connect(workers, { held: true, chunkBytes: CHUNK_BYTES, ...options, access });
}

afterEach(() => ground.closeStores());

describe.skipIf(!hasSharedMemory()).each(layouts)(
  'held updates on $servers servers of $cores cores, shared memory: $sharedMemory',
  ({ servers, cores, sharedMemory }) => {
    beforeAll(async () => {
      ground = await Servers.start(servers, { cores });
    });
    afterAll(() => ground.close());

    const cases = optimizers.flatMap((spec) =>
      [1, 2, 3].flatMap((workers) =>
        (['sum', 'mean'] as const).map((combine) => ({ spec, workers, combine, title: spec.name })),
      ),
    );

    it.each(cases)(
      'are those of one device: $title, $workers workers, $combine',
      async ({ spec, workers, combine }) => {
        const seed = 31 * workers + servers;
        const random = new Random(seed);
        const rowsMode: RowsMode = workers === 2 ? 'exact' : 'lazy';
        const stores = await connect(workers, { combine, sharedMemory, rows: rowsMode });
        const [w, table] = [noise(random, LENGTH), noise(random, ROWS * ROW)];
        const device = new OneDevice(spec, { w, table }, { rowLength: ROW, rowsMode });
        const inits = [{ key: 'w', value: w }, { key: 'table', value: table, rowLength: ROW }]; // prettier-ignore
        await each(stores, (store) => store.init(inits));
        await each(stores, (store) => store.setOptimizer(spec));
        for (let step = 1; step <= STEPS; step++) {
          // One worker has none in every second step; in step 4 nobody pushes the table.
          const samples = stores.map((_, i) => (i === 1 && step % 2 === 0 ? 0 : 1 + i * (step % 3)));
          const hasTable = step !== 4;
          const gradients = stores.map(() => noise(random, LENGTH));
          const indices = stores.map(() => Int32Array.from({ length: 8 }, () => random.below(ROWS)));
          const rows = indices.map(({ length }) => noise(random, length * ROW));
          const statuses = await each(stores, async (store, i) => {
            const own = { samples: samples[i]! };
            const pushed = [store.push({ key: 'w', gradient: gradients[i]! }, own).then(([one]) => one!)];
            if (hasTable) pushed.push(store.pushRows('table', indices[i]!, rows[i]!, own));
            return Promise.all(pushed);
          });
          const combined = {
            w: combinedOf(combine, samples, gradients),
            table: combinedRows(combine, samples, indices, rows),
          };
          const norms = statuses.map((own) => own.map(({ sumOfSquares }) => sumOfSquares!));
          for (const own of norms) expect(own).toEqual(norms[0]);
          const expected = [combined.w, ...(hasTable ? [combined.table] : [])].map(squares);
          norms[0]!.forEach((one, i) => expect(Math.abs(one / expected[i]! - 1)).toBeLessThan(1e-6));
          const norm = Math.sqrt(norms[0]!.reduce((sum, one) => sum + one));
          const [scale, lr] = [Math.min(1, MAX_NORM / norm), 0.02 / step];
          await each(stores, (store) => store.apply({ scale, lr }));
          device.step('w', combined.w, scale, lr);
          if (hasTable) device.stepRows('table', touchedOf(samples, indices), combined.table, scale, lr);
          else if (rowsMode === 'exact') device.step('table', new Float64Array(ROWS * ROW), scale, lr);
          const into = { w: new Float32Array(LENGTH), table: new Float32Array(ROWS * ROW) };
          const puller = stores[step % workers]!;
          await puller.pull(Object.entries(into).map(([key, target]) => ({ key, into: target })));
          for (const key of ['w', 'table'] as const) {
            expect(device.distance(key, into[key]), `seed ${seed}, step ${step}, ${key}`).toBeLessThan(1e-6);
          }
        }
      },
    );

    it('are known to whoever pulls after apply, sent without waiting', async () => {
      const stores = await connect(2, { sharedMemory });
      await each(stores, (store) => store.init({ key: 'w', value: new Float32Array(LENGTH) }));
      const results = await each(stores, async (store) => {
        const into = new Float32Array(LENGTH);
        const gradient = new Float32Array(LENGTH).fill(2);
        const calls = [store.push({ key: 'w', gradient }), store.apply({ scale: 0.5 }), store.pull({ key: 'w', into })]; // prettier-ignore
        await Promise.all(calls);
        return into;
      });
      for (const into of results) expect(new Set(into)).toEqual(new Set([2]));
    });
  },
);

describe.skipIf(!hasSharedMemory())('a store whose updates are held', () => {
  let folder: string;
  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'held-'));
    ground = await Servers.start(1, { cores: 2 });
  });
  afterAll(async () => {
    await ground.close();
    rmSync(folder, { recursive: true, force: true });
  });

  const gradient = (value = 1) => new Float32Array(LENGTH).fill(value);
  const push = (store: RemoteStore, value = 1) => store.push({ key: 'w', gradient: gradient(value) });
  const first = async (store: RemoteStore): Promise<number> => {
    const into = new Float32Array(LENGTH);
    await store.pull({ key: 'w', into });
    expect(new Set(into).size).toBe(1);
    return into[0]!;
  };
  const pair = async (options: Partial<RemoteStoreOptions> = {}) => {
    const stores = await connect(2, options);
    await each(stores, (store) => store.init({ key: 'w', value: gradient(0) }));
    return stores as [RemoteStore, RemoteStore];
  };

  it('refuses a second push of a key before apply, and goes on after it', async () => {
    const stores = await pair();
    await each(stores, (store) => push(store));
    await expect(push(stores[0])).rejects.toThrow(/worker 0 pushed key 'w' twice .* call apply/);
    await each(stores, (store) => store.apply());
    await each(stores, (store) => push(store));
    await each(stores, (store) => store.apply({ lr: 10 }));
    expect(await first(stores[1])).toBe(2 + 20);
  });

  it('lets a worker that applied too early push what is missing and apply again', async () => {
    const stores = await pair({ chunkBytes: 64 });
    await each(stores, (store) => store.init({ key: 'v', value: gradient(0) }));
    const pushes = [push(stores[0]), push(stores[1]), stores[1].push({ key: 'v', gradient: gradient(1) })];
    await Promise.all(pushes.slice(0, 2));
    // Its answer is behind the push on every line.
    await stores[1].checkpointsWritten();
    await expect(stores[0].apply()).rejects.toThrow(/key 'v' waits for the push of worker 0/);
    await expect(push(stores[0])).rejects.toThrow(/worker 0 pushed key 'w' twice .* call apply/);
    await stores[0].push({ key: 'v', gradient: gradient(1) });
    await Promise.all(pushes);
    await each(stores, (store) => store.apply());
    await each(stores, (store) => push(store));
    await each(stores, (store) => store.apply({ lr: 10 }));
    expect(await first(stores[1])).toBe(2 + 20);
  });

  it('tells a worker that applies otherwise who did what', async () => {
    const stores = await pair();
    await each(stores, (store) => push(store));
    await stores[1].apply({ scale: 0.5, lr: 3 });
    await expect(stores[0].apply({ scale: 0.25, lr: 3 })).rejects.toThrow(
      /worker 0 asked to apply step 1 with scale 0.25 and learning rate 3, worker 1 with scale 0.5/,
    );
    expect(await first(stores[0])).toBe(3);
  });

  it('refuses calls and numbers that do not fit', async () => {
    const [store] = await pair();
    const into = gradient();
    await expect(store.pushpull({ key: 'w', gradient: gradient(), into })).rejects.toThrow(
      /push, apply and pull/,
    );
    await expect(store.pushpullRows('w', new Int32Array(1), gradient(), into)).rejects.toThrow(/apply/);
    await expect(store.apply({ scale: NaN })).rejects.toThrow(/finite/);
    await expect(store.apply({ lr: Infinity })).rejects.toThrow(/finite/);
    await expect(store.push({ key: 'w', gradient: into }, { samples: -1 })).rejects.toThrow(/-1 samples/);
    const [plain] = await connect(1, { held: false });
    await plain!.init({ key: 'w', value: gradient() });
    await expect(plain!.apply()).rejects.toThrow(/not held/);
    await expect(plain!.push({ key: 'w', gradient: into }, { samples: 0 })).rejects.toThrow(/0 samples/);
    const asynchronous = { consistency: { kind: 'asynchronous' } } as const;
    await expect(connect(1, asynchronous)).rejects.toThrow(/held in asynchronous training/);
  });

  it('is refused by servers where others do not hold updates', async () => {
    const access = ground.createService();
    await connect(1, { access, held: false, workers: 2 });
    await expect(connect(1, { access, workers: 2 })).rejects.toThrow(/held is true here, but/);
  });

  it('sees no change before apply, and one of nothing by an apply of nothing', async () => {
    const stores = await pair();
    await each(stores, (store) => store.apply());
    await each(stores, (store) => push(store));
    expect(await first(stores[0])).toBe(0);
    await each(stores, (store) => store.apply());
    expect(await first(stores[0])).toBe(2);
  });

  it('answers NaN where a gradient is not finite and nobody looked', async () => {
    const stores = await pair({ nonFinite: 'accept' });
    const all = await each(stores, (store, i) => push(store, i === 0 ? Infinity : 1));
    for (const [status] of all) expect(status!.sumOfSquares).toBeNaN();
  });

  it('lets one that comes later go on from the step that the others are at', async () => {
    const access = ground.createService({ graceMs: 0 });
    const stores = await pair({ access });
    for (const value of [1, 2]) {
      await each(stores, (store) => push(store, value));
      await each(stores, (store) => store.apply());
    }
    await stores[1].close();
    const [again] = await connect(1, { access, worker: 1, workers: 2 });
    await again!.init({ key: 'w', value: gradient(0) });
    await each([stores[0], again!], (store) => push(store));
    await each([stores[0], again!], (store) => store.apply());
    expect(await first(again!)).toBe(2 + 4 + 2);
  });

  it('goes back to a checkpoint, forgets what was held, and counts steps anew', async () => {
    const access = ground.createService({ folder, lostWorkers: 'wait' });
    const stores = await pair({ access, rows: 'exact' });
    await each(stores, (store) => store.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 }));
    const step = async (value: number) => {
      await each(stores, (store) => push(store, value));
      await each(stores, (store) => store.apply({ scale: 0.5 }));
    };
    await step(1);
    await each(stores, (store) => store.checkpoint(1, { isDurable: true }));
    await step(2);
    await each(stores, (store) => push(store, 100));
    expect(await each(stores, (store) => store.resume())).toEqual([1, 1]);
    expect(await first(stores[0])).toBe(-1);
    await step(1);
    expect(await first(stores[1])).toBe(-1 - 1.5);
  });
});

function squares(values: Float64Array): number {
  return values.reduce((sum, value) => sum + value * value, 0);
}

function weights(combine: Combine, samples: readonly number[]): number[] {
  const total = samples.reduce((sum, one) => sum + one, 0);
  return samples.map((one) => (one === 0 ? 0 : combine === 'sum' ? 1 : one / total));
}

function combinedOf(
  combine: Combine,
  samples: readonly number[],
  all: readonly Float32Array[],
): Float64Array {
  const by = weights(combine, samples);
  return Float64Array.from(all[0]!, (_, i) =>
    all.reduce((sum, one, worker) => sum + by[worker]! * one[i]!, 0),
  );
}

function combinedRows(
  combine: Combine,
  samples: readonly number[],
  indices: readonly Int32Array[],
  rows: readonly Float32Array[],
): Float64Array {
  const by = weights(combine, samples);
  const table = new Float64Array(ROWS * ROW);
  indices.forEach((own, worker) =>
    own.forEach((row, i) => {
      for (let j = 0; j < ROW; j++) table[row * ROW + j]! += by[worker]! * rows[worker]![i * ROW + j]!;
    }),
  );
  return table;
}

/** Rows that somebody with samples has named. */
function touchedOf(samples: readonly number[], indices: readonly Int32Array[]): Set<number> {
  return new Set(indices.flatMap((own, worker) => (samples[worker]! > 0 ? [...own] : [])));
}
