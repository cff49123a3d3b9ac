/**
 * What optimizers keep on servers, fetched and put there: after any number of steps it is that of one device, bit by bit, and
 * servers that are given it go on as if they had made those steps.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { createOptimizer, Kernels } from '../../src/kernels/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { KeyState, RemoteStore, RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import type { Region } from '../../src/memory/index.ts';
import type { RowsMode } from '../../src/server/index.ts';
import { each, Servers } from './servers.ts';

const LENGTH = 701;
const ROWS = 37;
const ROW = 5;
const STEPS = 3;
const WORKERS = 2;

const specs: readonly OptimizerSpec[] = [
  { name: 'sgd', lr: 0.1, weightDecay: 0.01 },
  { name: 'sgd', lr: 0.1, momentum: 0.9 },
  { name: 'sgd', lr: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.01 },
  { name: 'adagrad', lr: 0.1, lrDecay: 0.1, initialAccumulator: 0.5 },
  { name: 'rmsprop', lr: 0.01, momentum: 0.5, centered: true },
  { name: 'adam', lr: 0.01 },
  { name: 'adamw', lr: 0.01, weightDecay: 0.1, amsgrad: true },
  { name: 'adadelta', lr: 0.5 },
];

let ground: Servers;

async function connect(options: Partial<RemoteStoreOptions> = {}, workers = WORKERS): Promise<RemoteStore[]> {
  const access = ground.createService();
  return ground.connect(workers, { access, held: true, chunkBytes: 512, ...options });
}

afterEach(() => ground.closeStores());

const noise = (random: Random, length: number): Float32Array =>
  Float32Array.from({ length }, () => random.uniform() - 0.5);

/** What the workers push in one step. */
interface StepGradients {
  readonly dense: readonly Float32Array[];
  readonly indices: readonly Int32Array[];
  readonly rows: readonly Float32Array[];
  readonly lr: number;
}

function gradientsOf(random: Random, step: number): StepGradients {
  const all = Array.from({ length: ROWS }, (_, row) => row);
  // No row twice by the same worker, so that sums have two terms at most and one order.
  const indices = Array.from({ length: WORKERS }, () =>
    Int32Array.from(all.filter(() => random.below(4) === 0)),
  );
  return {
    dense: indices.map(() => noise(random, LENGTH)),
    indices,
    rows: indices.map(({ length }) => noise(random, ROW * length)),
    lr: 0.05 / step,
  };
}

/** The optimizer of one device on its own memory. */
class Device {
  readonly values: Readonly<Record<string, Region<'float32'>>>;
  readonly slots: Readonly<Record<string, Record<string, Region<'float32'>>>>;
  readonly #optimizer: ReturnType<typeof createOptimizer>;
  readonly #space = SharedSpace.create({ maxBytes: 16 * 2 ** 20 });
  readonly #segment = this.#space.allocate(4 * 2 ** 20);
  readonly #mode: RowsMode;
  t = 0;

  constructor(spec: OptimizerSpec, mode: RowsMode, values: Readonly<Record<string, Float32Array>>) {
    this.#optimizer = createOptimizer(Kernels.create(this.#space), spec);
    this.#mode = mode;
    this.values = mapped(values, (value) => this.#region(value));
    this.slots = mapped(values, ({ length }) => {
      const names = this.#optimizer.slots.map(
        (name) => [name, this.#region(new Float32Array(length))] as const,
      );
      return Object.fromEntries(names);
    });
    for (const slots of Object.values(this.slots)) this.#optimizer.initialise(slots);
  }

  step({ dense, indices, rows, lr }: StepGradients): void {
    const t = ++this.t;
    const part = (key: string) => ({ t, lr, parameter: this.values[key]!, slots: this.slots[key]! });
    const gradient = this.#region(dense[0]!.map((one, i) => one + dense[1]![i]!));
    this.#optimizer.update({ ...part('w'), gradient });
    const sums = new Map<number, Float32Array>();
    indices.forEach((own, worker) =>
      own.forEach((row, i) => {
        const one = rows[worker]!.subarray(i * ROW, (i + 1) * ROW);
        const sum = sums.get(row);
        sums.set(row, sum ? sum.map((value, j) => value + one[j]!) : one.slice());
      }),
    );
    const touched = [...sums.keys()].sort((a, b) => a - b);
    const ids = this.#segment.allocate('int32', touched.length);
    ids.view.set(touched);
    this.#optimizer.updateRows({
      ...{ ...part('table'), rowLength: ROW, indices: ids, rowCount: touched.length, mode: this.#mode },
      rows: this.#region(Float32Array.from(touched.flatMap((row) => [...sums.get(row)!]))),
    });
  }

  #region(values: Float32Array): Region<'float32'> {
    const region = this.#segment.allocate('float32', values.length);
    region.view.set(values);
    return region;
  }
}

function titleOf({ name, lr: _, ...others }: OptimizerSpec): string {
  return [name, ...Object.keys(others)].join(' ');
}

function mapped<A, B>(record: Readonly<Record<string, A>>, act: (one: A) => B): Record<string, B> {
  return Object.fromEntries(Object.entries(record).map(([name, one]) => [name, act(one)]));
}

async function init(stores: readonly RemoteStore[], spec: OptimizerSpec, device: Device): Promise<void> {
  const { w, table } = mapped(device.values, ({ view }) => view.slice());
  await each(stores, (store) => store.setOptimizer(spec));
  const inits = [{ key: 'w', value: w! }, { key: 'table', value: table!, rowLength: ROW }]; // prettier-ignore
  await each(stores, (store) => store.init(inits));
}

async function train(
  stores: readonly RemoteStore[],
  { dense, indices, rows, lr }: StepGradients,
): Promise<void> {
  await each(stores, async (store, i) => {
    await Promise.all([
      store.push({ key: 'w', gradient: dense[i]! }),
      store.pushRows('table', indices[i]!, rows[i]!),
    ]);
    await store.apply({ lr });
  });
}

const viewOf = (tensor: KeyState['slots'][string]) => ('view' in tensor ? tensor.view : tensor);

async function expectSame(store: RemoteStore, device: Device, seed: number): Promise<KeyState[]> {
  const states: KeyState[] = [];
  // That one row was looked at says nothing of the others.
  await store.pullRows('table', Int32Array.of(ROWS - 1), new Float32Array(ROW));
  for (const key of ['w', 'table']) {
    const state = await store.pullState(key);
    const value = new Float32Array(device.values[key]!.length);
    await store.pull({ key, into: value });
    const words = `seed ${seed}, key ${key}`;
    expect(state.steps, words).toBe(device.t);
    expect(mapped(state.slots, viewOf), words).toEqual(mapped(device.slots[key]!, ({ view }) => view));
    expect(value, words).toEqual(device.values[key]!.view);
    states.push(state);
  }
  return states;
}

// What an optimizer computes does not depend on where it is, nor on what becomes of rows that nobody names.
const layouts = [
  { servers: 1, cores: 2, sharedMemory: true, exact: specs, lazy: [specs[1]!, specs[3]!] },
  { servers: 2, cores: 1, sharedMemory: false, exact: [specs[5]!], lazy: [specs[5]!] },
];

describe.skipIf(!hasSharedMemory()).each(layouts)(
  'the state of optimizers on $servers servers of $cores cores, shared memory: $sharedMemory',
  ({ servers, cores, sharedMemory, exact, lazy }) => {
    beforeAll(async () => {
      ground = await Servers.start(servers, { cores });
    });
    afterAll(() => ground.close());

    const cases = Object.entries({ exact, lazy }).flatMap(([rows, some]) =>
      some.map((spec) => ({ spec, rows: rows as RowsMode, title: titleOf(spec) })),
    );

    it.each(cases)('is that of one device, before and after it was put there: $title, $rows', async (one) => {
      const { spec, rows } = one;
      const seed = 100 * specs.indexOf(spec) + servers;
      const random = new Random(seed);
      const device = new Device(spec, rows, { w: noise(random, LENGTH), table: noise(random, ROWS * ROW) });
      const first = await connect({ rows, sharedMemory });
      await init(first, spec, device);
      await expectSame(first[1]!, device, seed);
      for (let step = 1; step <= STEPS; step++) {
        const gradients = gradientsOf(random, step);
        await train(first, gradients);
        device.step(gradients);
      }
      const states = await expectSame(first[0]!, device, seed);
      const second = await connect({ rows, sharedMemory });
      await init(second, spec, device);
      await each(second, (store) => store.initState(states));
      for (let step = STEPS + 1; step <= 2 * STEPS; step++) {
        const gradients = gradientsOf(random, step);
        await train(second, gradients);
        device.step(gradients);
      }
      await expectSame(second[1]!, device, seed);
    });
  },
);

describe.skipIf(!hasSharedMemory())('the state of an optimizer on servers', () => {
  beforeAll(async () => {
    ground = await Servers.start(1, { cores: 2 });
  });
  afterAll(() => ground.close());

  const momentum: OptimizerSpec = { name: 'sgd', lr: 1, momentum: 0.5 };
  const filled = (value: number, length = 8) => new Float32Array(length).fill(value);
  const stateOf = (steps: number, value: number): KeyState => ({
    ...{ key: 'w', steps, slots: { momentum_buffer: filled(value) } },
  });
  const begin = async (options: Partial<RemoteStoreOptions> = {}, workers = WORKERS) => {
    const stores = await connect({ held: false, ...options }, workers);
    await each(stores, (store) => store.init({ key: 'w', value: filled(0) }));
    await each(stores, (store) => store.setOptimizer(momentum));
    return stores;
  };
  const valueOf = async (store: RemoteStore): Promise<Set<number>> => {
    const into = filled(NaN);
    await store.pull({ key: 'w', into });
    return new Set(into);
  };
  const push = (store: RemoteStore, value = 1) => store.push({ key: 'w', gradient: filled(value) });

  it('comes in many passes, to regions and to plain memory, and goes back so', async () => {
    const [rows, rowLength] = [33_000, 64];
    const length = rows * rowLength;
    const begun = async () => {
      const [store] = await connect({ rows: 'exact' }, 1);
      await store!.setOptimizer(momentum);
      await store!.init({ key: 'table', value: new Float32Array(length), rowLength });
      return store!;
    };
    const store = await begun();
    const gradient = Float32Array.from({ length }, (_, i) => i % 4093);
    await store.push({ key: 'table', gradient });
    await store.apply();
    const region = store.allocate(length);
    const into = { momentum_buffer: region };
    const state = await store.pullState('table', into);
    expect(state).toMatchObject({ key: 'table', steps: 1 });
    expect(state.slots).toBe(into);
    const plain = (await store.pullState('table')).slots.momentum_buffer as Float32Array;
    // Compared as bytes: a comparison by element takes seconds.
    const isSame = (one: Float32Array) => Buffer.from(one.buffer, one.byteOffset, one.byteLength).equals(Buffer.from(gradient.buffer)); // prettier-ignore
    expect([isSame(region.view), isSame(plain)]).toEqual([true, true]);
    for (const tensor of [plain, undefined]) {
      const next = await begun();
      const given = tensor ?? next.allocate(length);
      if (given !== plain) (given as Region<'float32'>).view.set(plain);
      await next.initState({ key: 'table', steps: 1, slots: { momentum_buffer: given } });
      const back = await next.pullState('table');
      expect(back.steps).toBe(1);
      expect(isSame(back.slots.momentum_buffer as Float32Array)).toBe(true);
    }
  });

  it('holds where pushes take effect by themselves, and counts steps from there', async () => {
    const stores = await begin();
    await each(stores, (store) => store.initState(stateOf(7, 4)));
    await each(stores, (store) => push(store));
    expect(await valueOf(stores[1]!)).toEqual(new Set([-4]));
    expect(await stores[1]!.pullState('w')).toEqual(stateOf(8, 4));
  });

  it('can be put there again, and another step is a first one again', async () => {
    const stores = await begin();
    for (const [steps, value] of [
      [5, 100],
      [0, 100],
    ] as const) {
      // prettier-ignore
      await each(stores, (store) => store.initState(stateOf(steps, value)));
    }
    await each(stores, (store) => push(store));
    expect(await valueOf(stores[0]!)).toEqual(new Set([-2]));
  });

  it('is refused with other slots, lengths or steps than there are, on all workers', async () => {
    const stores = await begin();
    const refused = async (state: KeyState, words: RegExp) => {
      for (const result of await Promise.allSettled(stores.map((store) => store.initState(state)))) {
        expect(String((result as PromiseRejectedResult).reason)).toMatch(words);
      }
    };
    await refused({ key: 'w', steps: 1, slots: {} }, /named nothing of key 'w', .* keeps momentum_buffer/);
    await refused({ key: 'w', steps: 1, slots: { exp_avg: filled(0) } }, /named exp_avg of key 'w'/);
    await refused({ key: 'w', steps: 1, slots: { momentum_buffer: filled(0, 7) } }, /7 elements, expected 8/);
    for (const steps of [-1, 0.5, NaN, 2 ** 31]) await refused(stateOf(steps, 0), /a whole number from 0/);
    await refused({ ...stateOf(1, 0), key: 'v' }, /key 'v', which is not there/);
    await expect(stores[0]!.pullState('w', {})).rejects.toThrow(/named nothing of key 'w'/);
    await each(stores, (store) => push(store));
    expect(await valueOf(stores[0]!)).toEqual(new Set([-2]));
  });

  it('is an error on those who say another step than the first worker', async () => {
    const stores = await begin();
    const results = await Promise.allSettled(stores.map((store, i) => store.initState(stateOf(3 + i, 1))));
    expect(results[0]!.status).toBe('fulfilled');
    expect(String((results[1] as PromiseRejectedResult).reason)).toMatch(
      /worker 1 gave key 'w' the state after 4 steps, the servers have it after 3/,
    );
    await each(stores, (store) => push(store));
    expect(await stores[0]!.pullState('w')).toEqual(stateOf(4, 2.5));
  });

  it('is neither fetched nor given in the middle of a step', async () => {
    const stores = await begin();
    const [one, other] = [stores[0]!, stores[1]!];
    const pushed = push(one);
    await expect(one.pullState('w')).rejects.toThrow(
      /worker 0 .* after step 1, a server has it after step 0/,
    );
    const results = await Promise.allSettled([one.initState(stateOf(5, 1)), other.initState(stateOf(5, 1))]);
    expect(results.map((result) => String((result as PromiseRejectedResult).reason))).toEqual([
      expect.stringMatching(/worker 0 sets .* of key 'w' while its step 1 is under way/),
      expect.stringMatching(/worker 1 .* see whether worker 0 has failed/),
    ]);
    await push(other);
    await pushed;
    expect((await one.pullState('w')).steps).toBe(1);
  });

  it('is given by the first worker alone where workers do not wait for each other, and fetched as it is', async () => {
    const [first, second] = await begin({ consistency: { kind: 'asynchronous' } }, 2);
    await push(first!);
    expect(await first!.pullState('w')).toEqual(stateOf(1, 1));
    await expect(second!.initState(stateOf(1, 1))).rejects.toThrow(
      /let worker 0 do so before the others come/,
    );
    await first!.initState(stateOf(5, 2));
    expect(await second!.pullState('w')).toEqual(stateOf(5, 2));
  });
});
