/**
 * Elastic averaging every so many steps against equations 2 and 3 of MXNET-MPI, computed here in plain numbers: workers and
 * clients of every kind of store go through a training that is known, one client after the other, so that the order of the
 * exchanges is known too.
 */
import { afterEach, describe, expect, it } from 'vitest';
import { Scheduler } from '../../src/cluster/index.ts';
import type { Cluster } from '../../src/cluster/index.ts';
import { createLocalStores, createStore } from '../../src/kvstore/index.ts';
import type { KVStore, StoreType, StoreTensor } from '../../src/kvstore/index.ts';
import { elasticStep } from '../../src/kvstore/elastic-step.ts';
import { joinCluster } from '../../src/launcher/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { Servers } from './servers.ts';
import { SECRET } from '../support/secrets.ts';

/** No vector instruction divides them; the first has several chunks. */
const LENGTHS = { a: 101, b: 3 } as const;
const KEYS = ['a', 'b'] as const;
type Key = (typeof KEYS)[number];
type Weights = Readonly<Record<Key, StoreTensor>>;
/** Products with it are exact, so that sums are rounded once, here as in the kernel. */
const ALPHA = 0.25;
const INTERVALS = [
  { interval: 1, steps: 5 },
  { interval: 3, steps: 10 },
  { interval: 64, steps: 130 },
] as const;

const elementsOf = (tensor: StoreTensor): Float32Array =>
  tensor instanceof Float32Array ? tensor : tensor.view;
const firstValues = (key: Key): Float32Array =>
  Float32Array.from({ length: LENGTHS[key] }, (_, i) => (i % 7) - 3);
const ownWeights = (): Record<Key, Float32Array> => ({ a: firstValues('a'), b: firstValues('b') });

/** What stands for a step of SGD: differs by client, step and element. */
function train(weights: Float32Array, client: number, step: number): void {
  for (let i = 0; i < weights.length; i++) weights[i]! += (client + 1) * 0.1 + (i % 5) / (step + 1);
}

/** Centre and weights of the clients after so many steps, by the equations. */
function expectedAfter(clients: number, steps: number, interval: number) {
  const centre = ownWeights();
  const weights = Array.from({ length: clients }, ownWeights);
  for (let step = 1; step <= steps; step++) {
    weights.forEach((own, client) => {
      for (const key of KEYS) {
        train(own[key], client, step);
        if (step % interval !== 0) continue;
        for (let i = 0; i < LENGTHS[key]; i++) {
          const [w, c] = [own[key][i]!, centre[key][i]!];
          const distance = Math.fround(w - c);
          centre[key][i] = c + ALPHA * distance;
          own[key][i] = w - ALPHA * distance;
        }
      }
    });
  }
  return { centre, weights };
}

interface Training {
  /** The stores of each client's workers. */
  readonly clients: readonly (readonly KVStore[])[];
  readonly steps: number;
  readonly interval?: number;
  readonly allocate?: (store: KVStore, length: number) => StoreTensor;
}

/** The centre, and the weights of every client's workers, after the same training by stores. */
async function trained({ clients, steps, interval, allocate }: Training) {
  const stores = clients.flat();
  const values = KEYS.map((key) => ({ key, value: firstValues(key) }));
  await Promise.all(stores.map((store) => store.init(values)));
  const weights = clients.map((client) =>
    client.map((store): Weights => {
      const own = ownWeights();
      if (allocate === undefined) return own;
      const tensorOf = (key: Key): StoreTensor => {
        const tensor = allocate(store, LENGTHS[key]);
        elementsOf(tensor).set(own[key]);
        return tensor;
      };
      return { a: tensorOf('a'), b: tensorOf('b') };
    }),
  );
  const exchanges: number[] = [];
  for (let step = 1; step <= steps; step++) {
    for (const [number, client] of clients.entries()) {
      const answers = await Promise.all(
        client.map((store, worker) => {
          const own = weights[number]![worker]!;
          for (const key of KEYS) train(elementsOf(own[key]), number, step);
          const list = KEYS.map((key) => ({ key, weights: own[key] }));
          return elasticStep(store, list, { step, interval });
        }),
      );
      if (number === 0 && answers[0] !== undefined) exchanges.push(step);
      expect(new Set(answers.map((answer) => answer === undefined)).size).toBe(1);
    }
  }
  const centres = await Promise.all(
    stores.map(async (store) => {
      const into = ownWeights();
      await store.pull(KEYS.map((key) => ({ key, into: into[key] })));
      return into;
    }),
  );
  const plain = ({ a, b }: Weights) => ({ a: elementsOf(a).slice(), b: elementsOf(b).slice() });
  return { centres, weights: weights.map((client) => client.map(plain)), exchanges };
}

async function expectEquations(training: Training): Promise<void> {
  const { clients, steps, interval = 64 } = training;
  const { centre, weights } = expectedAfter(clients.length, steps, interval);
  const actual = await trained(training);
  const times = Math.floor(steps / interval);
  expect(actual.exchanges).toEqual(Array.from({ length: times }, (_, i) => (i + 1) * interval));
  expect(actual.centres).toEqual(clients.flat().map(() => centre));
  expect(actual.weights).toEqual(clients.map((client, i) => client.map(() => weights[i])));
}

describe('elastic steps within a process', () => {
  let stores: KVStore[] = [];
  afterEach(() => Promise.all(stores.map((store) => store.close())));
  const open = (workers: number) => {
    stores = createLocalStores({ workers, consistency: { kind: 'elastic', alpha: ALPHA }, chunkBytes: 64 });
    return stores;
  };

  it.each(INTERVALS)('of 3 workers exchange every $interval steps', async (training) => {
    await expectEquations({ ...training, clients: open(3).map((store) => [store]) });
  });

  it('exchange every 64 steps unless told otherwise', async () => {
    await expectEquations({ clients: open(2).map((store) => [store]), steps: 129 });
  });

  it('keep the sum of one worker and the centre', async () => {
    const [store] = open(1) as [KVStore];
    const weights = new Float32Array([8, -4]);
    await store.init({ key: 'w', value: new Float32Array(2) });
    expect(await elasticStep(store, { key: 'w', weights }, { step: 1, interval: 2 })).toBeUndefined();
    expect([...weights]).toEqual([8, -4]);
    const [status] = (await elasticStep(store, { key: 'w', weights }, { step: 2, interval: 2 }))!;
    expect(status).toMatchObject({ key: 'w', version: 1, staleness: 0 });
    expect([...weights]).toEqual([6, -3]);
    const centre = new Float32Array(2);
    await store.pull({ key: 'w', into: centre });
    expect([...centre]).toEqual([2, -1]);
  });

  it.each([
    [{ step: 0 }, /step is 0 on worker 0; give a whole number of 1 or more/],
    [{ step: 1.5 }, /step is 1.5/],
    [{ step: 1, interval: 0 }, /interval is 0 on worker 0/],
    [{ step: 1, interval: NaN }, /interval is NaN/],
  ])('refuse %o', async (options, message) => {
    const [store] = open(1) as [KVStore];
    const weights = new Float32Array(1);
    await expect(elasticStep(store, { key: 'w', weights }, options)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringMatching(message) as string,
    });
  });
});

describe.skipIf(!hasSharedMemory())('elastic steps on servers', () => {
  let onEnd: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const end of onEnd.reverse()) await end();
    onEnd = [];
  });

  /** Stores of a type, by client. */
  const start = async (type: StoreType, sizes: readonly number[], sharedMemory = true) => {
    const workers = sizes.reduce((sum, size) => sum + size, 0);
    const scheduler = await Scheduler.start({ size: workers, secret: SECRET });
    onEnd.push(() => scheduler.close());
    const { address } = scheduler;
    const clusters: Cluster[] = await Promise.all(
      Array.from({ length: workers }, (_, wantedRank) =>
        joinCluster({ scheduler: address, secret: SECRET, transport: 'tcp', wantedRank, measure: false }),
      ),
    );
    onEnd.push(async () => void (await Promise.all(clusters.map((cluster) => cluster.close()))));
    const common = { secret: SECRET, chunkBytes: 64, alpha: ALPHA, sharedMemory };
    const stores = await Promise.all(
      clusters.map((cluster) =>
        createStore(type, { ...common, cluster, servers: Math.min(2, workers), clients: sizes.length }),
      ),
    );
    onEnd.push(async () => void (await Promise.all(stores.map((store) => store.close()))));
    let first = 0;
    return sizes.map((size) => stores.slice(first, (first += size)));
  };

  it.each(INTERVALS)('dist-esgd: 3 workers every $interval steps', async (training) => {
    await expectEquations({ ...training, clients: await start('dist-esgd', [1, 1, 1]) });
  });

  it.each(INTERVALS)('mpi-esgd: clients of 1 and 2 workers every $interval steps', async (training) => {
    await expectEquations({ ...training, clients: await start('mpi-esgd', [1, 2]) });
  });

  it.each([
    ['dist-esgd', [1, 1]],
    ['mpi-esgd', [2, 2]],
  ] as const)('%s: by TCP', async (type, sizes) => {
    await expectEquations({ clients: await start(type, sizes, false), steps: 7, interval: 3 });
  });

  it.each([true, false])('weights in memory of the store, shared: %s', async (sharedMemory) => {
    const servers = await Servers.start(2);
    onEnd.push(() => servers.close());
    const stores = await servers.connect(2, {
      ...{ access: servers.createService(), chunkBytes: 64, sharedMemory },
      consistency: { kind: 'elastic', alpha: ALPHA },
    });
    onEnd.push(async () => void (await Promise.all(stores.map((store) => store.close()))));
    const allocate = (store: KVStore, length: number): StoreTensor => stores[store.rank]!.allocate(length);
    await expectEquations({ clients: stores.map((store) => [store]), steps: 7, interval: 3, allocate });
  });
});
