/**
 * Keys whose first values servers make by a seed: they have the bits that a worker would have sent,
 * however the key is cut, and the worker neither has nor sends them.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { fillElements } from '../../src/base/index.ts';
import type { SeededInitialiser } from '../../src/base/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { each, Servers } from './servers.ts';

const [ROWS, ROW, DENSE] = [1003, 7, 50_001];
const initialisers: Readonly<Record<string, SeededInitialiser>> = {
  constant: { kind: 'constant', value: 0.5 },
  uniform: { kind: 'uniform', limit: 0.1 },
  normal: { kind: 'normal', deviation: 2 },
  'a padding row': {
    kind: 'zeroed',
    base: { kind: 'normal', deviation: 1 },
    start: 501 * ROW,
    length: ROW,
  },
};

function filled(initialiser: SeededInitialiser, seed: number, length: number): Float32Array {
  const values = new Float32Array(length);
  fillElements(values, initialiser, seed, 0);
  return values;
}

describe.each([
  [1, 1],
  [2, 1],
  [2, 2],
  [3, 1],
])('first values that %i servers of %i cores make', (count, cores) => {
  let ground: Servers;
  beforeAll(async () => {
    ground = await Servers.start(count, { cores });
  });
  afterAll(() => ground.close());
  afterEach(() => ground.closeStores());

  const connect = (workers: number, options: Partial<RemoteStoreOptions> = {}) =>
    ground.connect(workers, { access: ground.createService(), ...options });

  it.each(Object.entries(initialisers))('are those of a worker: %s', async (_, initialiser) => {
    const [store, other] = await connect(2, { chunkBytes: 4096 });
    const sent = Float32Array.from({ length: 33 }, (_unused, i) => i);
    await each([store!, other!], (one) =>
      one.init([
        { key: 'table', length: ROWS * ROW, rowLength: ROW, initialiser, seed: 7 },
        { key: 'sent', value: sent },
        { key: 'dense', length: DENSE, initialiser, seed: 9 },
      ]),
    );
    const [table, dense] = [new Float32Array(ROWS * ROW), new Float32Array(DENSE)];
    const into = new Float32Array(33);
    await other!.pull([
      { key: 'table', into: table },
      { key: 'sent', into },
      { key: 'dense', into: dense },
    ]);
    expect(table).toEqual(filled(initialiser, 7, ROWS * ROW));
    expect(dense).toEqual(filled(initialiser, 9, DENSE));
    expect(into).toEqual(sent);
    const rows = new Float32Array(3 * ROW);
    await store!.pullRows('table', Int32Array.of(ROWS - 1, 0, 501), rows);
    const row = (i: number) => [...filled(initialiser, 7, ROWS * ROW).subarray(i * ROW, (i + 1) * ROW)];
    expect([...rows]).toEqual([...row(ROWS - 1), ...row(0), ...row(501)]);
  });

  it.skipIf(!hasSharedMemory()).each([true, false])(
    'are trained from, by whole tensors and by rows, with shared memory %s',
    async (sharedMemory) => {
      const space = SharedSpace.create();
      const [store] = await connect(1, { sharedMemory, space });
      const initialiser: SeededInitialiser = { kind: 'uniform', limit: 1 };
      await store!.init({ key: 'table', length: ROWS * ROW, rowLength: ROW, initialiser, seed: 3 });
      const [gradient, into] = [store!.allocate(ROWS * ROW), store!.allocate(ROWS * ROW)];
      gradient.view.forEach((_, i) => (gradient.view[i] = i));
      await store!.push({ key: 'table', gradient });
      await store!.pushRows('table', Int32Array.of(1002, 400), new Float32Array(2 * ROW).fill(1));
      await store!.pull({ key: 'table', into });
      const expected = filled(initialiser, 3, ROWS * ROW).map((value, i) => value + i);
      for (const row of [1002, 400]) {
        for (let i = row * ROW; i < (row + 1) * ROW; i++) expected[i] = Math.fround(expected[i]! + 1);
      }
      expect(into.view.slice()).toEqual(expected);
    },
  );
});

it('a table takes memory of each server for the rows that it has only', async () => {
  const ground = await Servers.start(2, { cores: 1 });
  try {
    // The whole table has six megabytes, and each half three.
    const access = ground.createService({ maxBytes: 4 * 2 ** 20 });
    const [store] = await ground.connect(1, { access });
    await store!.setOptimizer({ name: 'sgd', lr: 1 });
    const initialiser: SeededInitialiser = { kind: 'normal', deviation: 1 };
    await store!.init({ key: 'table', length: 1.5 * 2 ** 20, rowLength: 1024, initialiser, seed: 3 });
    const last = new Float32Array(1024);
    await store!.pullRows('table', Int32Array.of(1535), last);
    expect(last).toEqual(filled(initialiser, 3, 1.5 * 2 ** 20).subarray(1535 * 1024));
  } finally {
    await ground.closeStores();
    await ground.close();
  }
});
