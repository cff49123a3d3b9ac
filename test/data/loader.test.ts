import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import { Dataset, DirectLoader, Prefetcher, SampleOrder, openLoader } from '../../src/data/index.ts';
import type { Batch, BatchLoader, LoaderOptions, PrefetcherOptions } from '../../src/data/index.ts';
import { expectError } from './expect-error.ts';

const open: BatchLoader[] = [];
afterEach(async () => {
  for (const loader of open.splice(0)) await loader.close();
});

function direct(options: LoaderOptions): BatchLoader {
  const loader = new DirectLoader(options);
  open.push(loader);
  return loader;
}

function prefetching(options: PrefetcherOptions): BatchLoader {
  const loader = new Prefetcher(options);
  open.push(loader);
  return loader;
}

function dataset(n: number): Dataset {
  const fill = (count: number): number[] => Array.from({ length: count }, (_, i) => (i * 37) % 251);
  return new Dataset([
    {
      name: 'image',
      data: Uint8Array.from(fill(n * 12)),
      sampleShape: [3, 4],
      scale: { multiply: 0.1, add: -0.7 },
    },
    { name: 'raw', data: Uint8Array.from(fill(n)) },
    { name: 'x', data: Float32Array.from(fill(n * 5), (v) => v / 7), sampleShape: [5] },
    { name: 'labels', data: Int32Array.from({ length: n }, (_, i) => i) },
  ]);
}

/** The constructor by name, because the compiler's libraries for Node lack its type. */
function sharedWebAssemblyMemory(): { readonly buffer: SharedArrayBuffer } {
  const { WebAssembly: wasm } = globalThis as unknown as {
    WebAssembly: { Memory: new (options: object) => { readonly buffer: SharedArrayBuffer } };
  };
  return new wasm.Memory({ initial: 1, maximum: 1, shared: true });
}

/** A copy, because a batch is valid only until the next one. */
function copy(batch: Batch): unknown {
  const columns = Object.fromEntries(
    Object.entries(batch.columns).map(([name, data]) => [name, data.slice()]),
  );
  return { ...batch, samples: batch.samples.slice(), columns };
}

const kinds = [
  ['DirectLoader', direct],
  ['Prefetcher', prefetching],
] as const;

describe.each(kinds)('%s', (_name, make) => {
  it('delivers the samples of its order', () => {
    const data = dataset(7);
    const loader = make({ dataset: data, order: new SampleOrder(7, { seed: 5 }), batchSize: 3 });
    const expected = new SampleOrder(7, { seed: 5 });
    for (let i = 0; i < 8; i++) {
      const drawn = expected.draw(3);
      const batch = loader.next();
      expect(batch.samples).toEqual(drawn.samples);
      expect([batch.size, batch.batchSize]).toEqual([drawn.samples.length, drawn.samples.length]);
      expect([batch.epoch, batch.last]).toEqual([drawn.epoch, drawn.last]);
      expect([...batch.columns.labels!]).toEqual([...drawn.samples]);
      expect(batch.columns.image!.length).toBe(12 * batch.size);
      expect(loader.state).toEqual(expected.state);
    }
  });

  it('fills targets on shared WebAssembly memory and its own buffers for the other columns', () => {
    const memory = sharedWebAssemblyMemory();
    const x = new Float32Array(memory.buffer, 64, 20);
    const data = dataset(6);
    const loader = make({ dataset: data, order: new SampleOrder(6), batchSize: 4, columns: ['x', 'labels'] });
    const plain = new DirectLoader({ dataset: data, order: new SampleOrder(6), batchSize: 4 });
    for (let i = 0; i < 5; i++) {
      const batch = loader.next(i === 3 ? undefined : { x });
      const wanted = plain.next();
      if (i !== 3) expect(batch.columns.x!.buffer).toBe(memory.buffer);
      expect([...batch.columns.x!]).toEqual([...wanted.columns.x!]);
      expect([...batch.columns.labels!]).toEqual([...wanted.columns.labels!]);
      expect(Object.keys(batch.columns)).toEqual(['x', 'labels']);
    }
  });

  it('goes on filling when every column has a target', () => {
    const data = dataset(9);
    const targets = { x: new Float32Array(20), labels: new Int32Array(4) };
    const loader = make({ dataset: data, order: new SampleOrder(9), batchSize: 4, columns: ['x', 'labels'] });
    const expected = new SampleOrder(9);
    for (let i = 0; i < 9; i++) {
      const wanted = [...expected.nextBatch(4)];
      loader.next(targets);
      expect([...targets.labels.subarray(0, wanted.length)]).toEqual(wanted);
    }
  });

  it('delivers the parts of a batch to its ranks, none left out', () => {
    const data = dataset(7);
    const loaders = [0, 1, 2].map((index) =>
      make({ dataset: data, order: new SampleOrder(7), batchSize: 5, part: { index, count: 3 } }),
    );
    const expected = new SampleOrder(7);
    for (let i = 0; i < 4; i++) {
      const wanted = [...expected.nextBatch(5)];
      const batches = loaders.map((loader) => loader.next());
      expect(batches.flatMap((batch) => [...batch.columns.labels!])).toEqual(wanted);
      for (const batch of batches) expect(batch.batchSize).toBe(wanted.length);
    }
  });

  it('resumes from its state with the batches it would have given', () => {
    const data = dataset(11);
    const first = make({ dataset: data, order: new SampleOrder(11, { seed: 9 }), batchSize: 4 });
    for (let i = 0; i < 4; i++) first.next();
    const order = SampleOrder.restore(11, JSON.parse(JSON.stringify(first.state)));
    const second = make({ dataset: data, order, batchSize: 4 });
    for (let i = 0; i < 6; i++) expect(copy(second.next())).toEqual(copy(first.next()));
  });

  it('refuses options and targets that do not fit, without losing a batch', () => {
    const data = dataset(4);
    const order = new SampleOrder(4);
    expectError(() => make({ dataset: data, order, batchSize: 0 }), 'INVALID_ARGUMENT', 'batchSize');
    expectError(
      () => make({ dataset: data, order: new SampleOrder(5), batchSize: 1 }),
      'INVALID_ARGUMENT',
      '5',
      '4',
    );
    expectError(
      () => make({ dataset: data, order, batchSize: 1, columns: ['y'] }),
      'INVALID_ARGUMENT',
      '"y"',
    );
    expectError(
      () => make({ dataset: data, order, batchSize: 1, part: { index: 1, count: 1 } }),
      'INVALID_ARGUMENT',
    );
    const loader = make({ dataset: data, order, batchSize: 2 });
    expectError(() => loader.next({ z: new Float32Array(9) }), 'INVALID_ARGUMENT', '"z"');
    expectError(() => loader.next({ x: new Float32Array(9) }), 'INVALID_ARGUMENT', '10', '9');
    expectError(() => loader.next({ x: new Int32Array(10) }), 'INVALID_ARGUMENT', 'Float32Array');
    expect([...loader.next().samples]).toEqual([...new SampleOrder(4).nextBatch(2)]);
  });
});

describe('Prefetcher', () => {
  it('gives the same bytes in the same order as the direct path, whatever the sizes', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 30 }),
        fc.integer({ min: 1, max: 33 }),
        fc.integer({ min: 2, max: 5 }),
        fc.integer(),
        async (n, batchSize, depth, seed) => {
          const data = dataset(n);
          const plain = new DirectLoader({ dataset: data, order: new SampleOrder(n, { seed }), batchSize });
          const ahead = new Prefetcher({
            dataset: data,
            order: new SampleOrder(n, { seed }),
            batchSize,
            depth,
          });
          for (let i = 0; i < 9; i++) expect(copy(ahead.next())).toEqual(copy(plain.next()));
          await ahead.close();
        },
      ),
      { numRuns: 12 },
    );
  });

  it('keeps a batch untouched until the following one is asked for', () => {
    const loader = prefetching({ dataset: dataset(40), order: new SampleOrder(40), batchSize: 4 });
    for (let i = 0; i < 10; i++) {
      const batch = loader.next();
      expect([...batch.columns.labels!]).toEqual([...batch.samples]);
      expect([...batch.columns.labels!]).toEqual([...batch.samples]);
    }
  });

  it('surfaces an error of the thread in the call that reaches its batch, and in every later one', () => {
    const inner = new SampleOrder(4, { shuffle: false });
    let draws = 0;
    const order = {
      length: 4,
      get state() {
        return inner.state;
      },
      draw: (size: number) =>
        ++draws === 3 ? { samples: Uint32Array.of(77), epoch: 0, last: false } : inner.draw(size),
    };
    const loader = prefetching({ dataset: dataset(4), order, batchSize: 1 });
    expect([...loader.next().samples]).toEqual([0]);
    expect([...loader.next().samples]).toEqual([1]);
    for (let i = 0; i < 2; i++) {
      expectError(() => loader.next(), 'BROKEN_INVARIANT', 'sample 77 is not in the dataset of 4 samples');
    }
  });

  it('ends its thread on close, may be closed twice, and then refuses to deliver', async () => {
    const loader = new Prefetcher({ dataset: dataset(4), order: new SampleOrder(4), batchSize: 1 });
    loader.next();
    await loader.close();
    await loader.close();
    expectError(() => loader.next(), 'INVALID_ARGUMENT', 'closed');
    const unused = new Prefetcher({ dataset: dataset(4), order: new SampleOrder(4), batchSize: 1 });
    await unused.close();
  });

  it('refuses a depth below 2 and a wait of nothing', () => {
    const options = { dataset: dataset(4), order: new SampleOrder(4), batchSize: 1 };
    expectError(() => new Prefetcher({ ...options, depth: 1 }), 'INVALID_ARGUMENT', 'depth 1');
    expectError(
      () => new Prefetcher({ ...options, waitTimeoutMs: 0 }),
      'INVALID_ARGUMENT',
      'waitTimeoutMs 0',
    );
  });
});

describe('openLoader', () => {
  it('prefetches from the threshold on and not below', () => {
    const data = new Dataset([{ name: 'x', data: new Float32Array(40), sampleShape: [10] }]);
    const choose = (prefetchThresholdBytes?: number): BatchLoader => {
      const options = { dataset: data, order: new SampleOrder(4), batchSize: 2 };
      const loader = openLoader(
        prefetchThresholdBytes === undefined ? options : { ...options, prefetchThresholdBytes },
      );
      open.push(loader);
      return loader;
    };
    expect(choose()).toBeInstanceOf(DirectLoader);
    expect(choose(81)).toBeInstanceOf(DirectLoader);
    expect(choose(80)).toBeInstanceOf(Prefetcher);
  });
});
