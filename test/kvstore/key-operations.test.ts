/**
 * What servers do around the update of a key: transforms of the combined gradient before the rule
 * and moving averages behind it, on real servers, against one device written out in float64.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import type { KeyOperations, OptimizerSpec } from '../../src/kernels/index.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KVStore, RemoteStore, RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { RowsMode } from '../../src/server/index.ts';
import { OneDevice } from './one-device.ts';
import { each, Servers } from './servers.ts';

const [LENGTH, ROWS, ROW, WORKERS] = [1501, 29, 5, 2];
const [LIMIT, RATE, DECAY] = [0.2, 0.05, 0.9];
const optimizers: readonly OptimizerSpec[] = [
  { name: 'sgd', lr: 0.1 },
  { name: 'sgd', lr: 0.1, momentum: 0.9 },
  { name: 'adam', lr: 0.01 },
];
const orders: readonly KeyOperations['gradient'][] = [
  [{ kind: 'clip', limit: LIMIT }, { kind: 'decay', rate: RATE }, { kind: 'scale' }],
  [{ kind: 'scale' }, { kind: 'decay', rate: RATE }, { kind: 'clip', limit: LIMIT }],
  [{ kind: 'decay', rate: RATE }, { kind: 'scale' }, { kind: 'clip', limit: LIMIT }],
];
const averages = [{ name: 'slow', decay: DECAY }];
const noise = (random: Random, length: number): Float32Array =>
  Float32Array.from({ length }, () => random.uniform() - 0.5);

let ground: Servers;

function connect(options: Partial<RemoteStoreOptions> = {}): Promise<RemoteStore[]> {
  return ground.connect(WORKERS, {
    ...{ access: ground.createService(), held: true, combine: 'mean', chunkBytes: 512 },
    ...options,
  });
}

afterEach(() => ground.closeStores());

/** The combined gradient of rows, and which they are. */
interface Rows {
  readonly gradient: Float64Array;
  readonly touched: ReadonlySet<number>;
}

function meanOf(all: readonly Float32Array[]): Float64Array {
  return Float64Array.from(all[0]!, (_, i) => all.reduce((sum, one) => sum + one[i]!, 0) / all.length);
}

function meanOfRows(indices: readonly Int32Array[], rows: readonly Float32Array[]): Rows {
  const gradient = new Float64Array(ROWS * ROW);
  const touched = new Set(indices.flatMap((own) => [...own]));
  indices.forEach((own, worker) =>
    own.forEach((row, i) => {
      for (let at = 0; at < ROW; at++) gradient[row * ROW + at]! += rows[worker]![i * ROW + at]! / WORKERS;
    }),
  );
  return { gradient, touched };
}

/** One device with its transforms; only touched rows of a table see them. */
class Device {
  readonly one: OneDevice;
  readonly averages: Record<string, Float64Array>;
  readonly #gradient: KeyOperations['gradient'];

  constructor(
    spec: OptimizerSpec,
    values: Readonly<Record<string, Float32Array>>,
    gradient: KeyOperations['gradient'],
    rowsMode: RowsMode,
  ) {
    this.one = new OneDevice(spec, values, { rowLength: ROW, rowsMode });
    this.averages = Object.fromEntries(
      Object.entries(values).map(([key, value]) => [key, Float64Array.from(value)]),
    );
    this.#gradient = gradient;
  }

  /** What is done before or behind the scale, in place. */
  transform(key: string, gradient: Float64Array, part: 'before' | 'behind', touched?: Rows['touched']): void {
    const at = this.#gradient.findIndex(({ kind }) => kind === 'scale');
    const value = this.one.valueOf(key);
    for (const one of part === 'before' ? this.#gradient.slice(0, at) : this.#gradient.slice(at + 1)) {
      gradient.forEach((g, i) => {
        if (touched && !touched.has(Math.floor(i / ROW))) return;
        if (one.kind === 'clip') gradient[i] = Math.min(one.limit, Math.max(-one.limit, g));
        if (one.kind === 'decay') gradient[i] = g + one.rate * value[i]!;
      });
    }
  }

  follow(): void {
    for (const [key, average] of Object.entries(this.averages)) {
      const value = this.one.valueOf(key);
      average.forEach((own, i) => (average[i] = DECAY * own + (1 - DECAY) * value[i]!));
    }
  }
}

const far = (expected: ArrayLike<number>, actual: ArrayLike<number>): number =>
  Array.from(expected).reduce((most, one, i) => Math.max(most, Math.abs(one - actual[i]!)), 0);

const cases = optimizers.flatMap((spec) =>
  orders.flatMap((gradient) =>
    (['exact', 'lazy'] as const).map((rows) => ({
      ...{ spec, gradient, rows },
      title: `${spec.name}${'momentum' in spec ? ' with momentum' : ''}, ${gradient.map(({ kind }) => kind).join(' ')}`,
    })),
  ),
);

describe.skipIf(!hasSharedMemory()).each([
  { servers: 1, cores: 1, sharedMemory: true },
  { servers: 2, cores: 2, sharedMemory: false },
])(
  'operations of keys on $servers servers, shared memory: $sharedMemory',
  ({ servers, cores, sharedMemory }) => {
    beforeAll(async () => {
      ground = await Servers.start(servers, { cores });
    });
    afterAll(() => ground.close());

    it.each(cases)('are those of one device: $title, $rows rows', async ({ spec, gradient, rows }) => {
      const random = new Random(7);
      const stores = await connect({ sharedMemory, rows });
      const [w, table] = [noise(random, LENGTH), noise(random, ROWS * ROW)];
      const device = new Device(spec, { w, table }, gradient, rows);
      const operations = { gradient, averages };
      await each(stores, (store) =>
        store.init([
          { key: 'w', value: w, operations },
          { key: 'table', value: table, rowLength: ROW, operations },
        ]),
      );
      await each(stores, (store) => store.setOptimizer(spec));
      for (let step = 1; step <= 8; step++) {
        const pushed = stores.map(() => noise(random, LENGTH));
        // Most rows are touched by nobody for several steps; in step 5 nobody pushes the table.
        const hasTable = step !== 5;
        const indices = stores.map(() => Int32Array.from({ length: 3 }, () => random.below(ROWS)));
        const ownRows = indices.map(({ length }) => noise(random, length * ROW));
        const statuses = await each(stores, async (store, i) => [
          ...(await store.push({ key: 'w', gradient: pushed[i]! })),
          ...(hasTable ? [await store.pushRows('table', indices[i]!, ownRows[i]!)] : []),
        ]);
        const dense = meanOf(pushed);
        const sparse = meanOfRows(indices, ownRows);
        device.transform('w', dense, 'before');
        device.transform('table', sparse.gradient, 'before', sparse.touched);
        const expected = [dense, ...(hasTable ? [sparse.gradient] : [])].map((one) =>
          one.reduce((sum, value) => sum + value * value, 0),
        );
        statuses[0]!.forEach(({ sumOfSquares }, i) =>
          expect(Math.abs(sumOfSquares! / expected[i]! - 1), `norm in step ${step}`).toBeLessThan(1e-5),
        );
        const [scale, lr] = [0.7, 0.1 / step];
        await each(stores, (store) => store.apply({ scale, lr }));
        for (const one of [dense, sparse.gradient]) one.forEach((value, i) => (one[i] = scale * value));
        device.transform('w', dense, 'behind');
        device.transform('table', sparse.gradient, 'behind', sparse.touched);
        device.one.step('w', dense, 1, lr);
        if (hasTable) device.one.stepRows('table', sparse.touched, sparse.gradient, 1, lr);
        // It counts as an update, by which averages follow.
        else device.one.stepRows('table', new Set(), new Float64Array(ROWS * ROW), 1, lr);
        device.follow();
        if (step % 3 !== 0) continue;
        const store = stores[step % WORKERS]!;
        for (const key of ['w', 'table']) {
          const into = new Float32Array(key === 'w' ? LENGTH : ROWS * ROW);
          await store.pull({ key, into });
          expect(device.one.distance(key, into), `${key} in step ${step}`).toBeLessThan(1e-6);
          await store.pullSlot(key, 'average/slow', into);
          expect(far(device.averages[key]!, into), `average of ${key} in step ${step}`).toBeLessThan(1e-6);
        }
      }
      const [all, some] = [Int32Array.from([ROWS - 1, 3]), new Float32Array(2 * ROW)];
      await stores[0]!.pullRows('table', all, some, 'average/slow');
      const average = device.averages.table!;
      expect(far([...average.slice(-ROW), ...average.slice(3 * ROW, 4 * ROW)], some)).toBeLessThan(1e-6);
    });
  },
);

describe.skipIf(!hasSharedMemory())('operations of keys', () => {
  let folder: string;
  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'operations-'));
    ground = await Servers.start(1, { cores: 2 });
  });
  afterAll(async () => {
    await ground.close();
    rmSync(folder, { recursive: true, force: true });
  });

  const operations = { gradient: [{ kind: 'clip', limit: 1 }], averages } as const;
  const averageOf = async (store: RemoteStore): Promise<number> => {
    const into = new Float32Array(LENGTH);
    await store.pullSlot('w', 'average/slow', into);
    return into[LENGTH - 1]!;
  };

  it('are done at every push where pushes take effect at once, on a gradient that stays as it is', async () => {
    const stores = await connect({ held: false, consistency: { kind: 'asynchronous' } });
    const [store] = stores as [RemoteStore];
    await each(stores, (one) => one.init({ key: 'w', value: new Float32Array(LENGTH), operations }));
    await each(stores, (one) => one.setOptimizer({ name: 'sgd', lr: 1 }));
    const gradient = store.allocate(LENGTH);
    gradient.view.fill(-5);
    for (let i = 0; i < 2; i++) await store.push({ key: 'w', gradient });
    expect(gradient.view[0]).toBe(-5);
    const into = new Float32Array(LENGTH);
    await store.pull({ key: 'w', into });
    expect(into[0]).toBe(2);
    expect(await averageOf(store)).toBeCloseTo(0.1 + 0.9 * 0.1 + 0.1, 6);
  });

  it('go back with everything else to a checkpoint', async () => {
    const access = ground.createService({ folder: join(folder, 'rewound') });
    const stores = await connect({ access });
    await each(stores, (one) => one.init({ key: 'w', value: new Float32Array(LENGTH), operations }));
    await each(stores, (one) => one.setOptimizer({ name: 'sgd', lr: 1, momentum: 0.5 }));
    const step = (store: RemoteStore) =>
      store.push({ key: 'w', gradient: new Float32Array(LENGTH).fill(-5) }).then(() => store.apply());
    await each(stores, step);
    await each(stores, (one) => one.checkpoint(1, { isDurable: true }));
    const before = await averageOf(stores[0]!);
    await each(stores, step);
    const after = await averageOf(stores[0]!);
    await each(stores, (one) => one.resume());
    expect(await averageOf(stores[0]!)).toBe(before);
    await each(stores, step);
    expect(await averageOf(stores[0]!)).toBe(after);
    expect(after).toBeGreaterThan(before);
  });

  it('are given by initState and fetched by pullState under the names of their slots', async () => {
    const stores = await connect();
    await each(stores, (one) => one.init({ key: 'w', value: new Float32Array(LENGTH), operations }));
    const slots = { 'average/slow': new Float32Array(LENGTH).fill(3) };
    await each(stores, (one) => one.initState({ key: 'w', steps: 4, slots }));
    const state = await stores[1]!.pullState('w');
    expect(Object.keys(state.slots)).toEqual(['average/slow']);
    expect((state.slots['average/slow'] as Float32Array)[7]).toBe(3);
  });

  it('stay when the rule changes', async () => {
    const stores = await connect();
    await each(stores, (one) => one.init({ key: 'w', value: new Float32Array(LENGTH).fill(1), operations }));
    await each(stores, (one) => one.setOptimizer({ name: 'sgd', lr: 1 }));
    await each(stores, (one) =>
      one.push({ key: 'w', gradient: new Float32Array(LENGTH).fill(-1) }).then(() => one.apply()),
    );
    await each(stores, (one) => one.setOptimizer({ name: 'adam' }));
    expect(await averageOf(stores[0]!)).toBeCloseTo(1.1, 6);
  });

  it.each<[string, unknown, RegExp]>([
    ['no list', { gradient: 1, averages: [] }, /need the lists/],
    ['a limit of 0', { gradient: [{ kind: 'clip', limit: 0 }], averages: [] }, /"limit":0/],
    ['an unknown kind', { gradient: [{ kind: 'sign' }], averages: [] }, /"kind":"sign"/],
    [
      'two scales',
      { gradient: [{ kind: 'scale' }, { kind: 'scale' }], averages: [] },
      /scale more than once/,
    ],
    ['a decay of 1', { gradient: [], averages: [{ name: 'a', decay: 1 }] }, /"decay":1/],
    ['an average twice', { gradient: [], averages: [...averages, ...averages] }, /'slow' twice/],
  ])('are refused with %s', async (_, wrong, message) => {
    const stores = await connect();
    const init = { key: 'w', value: new Float32Array(8), operations: wrong as KeyOperations };
    const results = await Promise.allSettled(stores.map((one) => one.init(init)));
    for (const result of results) {
      expect(result).toMatchObject({ status: 'rejected', reason: { code: 'INVALID_ARGUMENT' } });
      expect((result as PromiseRejectedResult).reason).toHaveProperty(
        'message',
        expect.stringMatching(message),
      );
    }
  });

  it('are refused in elastic mode, which makes no updates', async () => {
    const stores = await connect({ held: false, consistency: { kind: 'elastic', alpha: 0.5 } });
    const [first] = stores as [RemoteStore];
    await expect(first.init({ key: 'w', value: new Float32Array(8), operations })).rejects.toThrow(/elastic/);
  });

  it('are the same in a store of one process', async () => {
    const stores: KVStore[] = createLocalStores({ workers: 1 });
    const [store] = stores as [KVStore];
    await store.init({ key: 'w', value: new Float32Array(8), operations });
    await store.setOptimizer({ name: 'sgd', lr: 1 });
    await store.push({ key: 'w', gradient: new Float32Array(8).fill(-5) });
    const into = new Float32Array(8);
    await store.pull({ key: 'w', into });
    expect(into[0]).toBe(1);
    await store.close();
  });
});
