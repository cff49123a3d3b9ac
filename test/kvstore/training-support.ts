/**
 * Synchronous training through a store: each worker computes the gradients of its part of the batch, the store averages
 * them by samples and updates, and the workers go on from what they pull. The workers are replicas of one process that
 * are awaited together; where their stores have their servers, if any, is not known here. Invariant: a worker's
 * parameters come from its store only.
 *
 * By rows a worker pulls the rows that its part of the batch looks up and pushes their gradients. With momentum or Adam the
 * runs of the file move every row that ever had a gradient, so the stores must keep rows exact.
 *
 * Clipping takes the norm of the average, which no worker has and no store computes. So the workers first bring
 * their gradients together in a second store that adds them up, take the norm from there, and push their own gradients
 * scaled by the factor that follows: the average is scaled by the same.
 */
import { expect } from 'vitest';
import type { Compute } from '../../src/compute/index.ts';
import { clipFactor } from '../../src/kernels/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';
import type { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';
import type { GradientPlace } from '../../src/runtime/index.ts';
import { firstDifference, numbers } from '../support/shared.ts';
import { buildModel, optimizerSpec } from '../support/training-models.ts';
import type { Batch, TrainingCase, TrainingRun } from '../support/training-models.ts';

/** Losses of the store's workers and of the single process. */
const LOSSES = { rtol: 0, atol: 1e-4 };

export interface OpenStores {
  /** One for each worker, averaging by samples. */
  readonly stores: readonly KVStore[];
  close(): Promise<void>;
}

export interface Training {
  readonly c: TrainingCase;
  readonly run: TrainingRun;
  /** Rows of the batch for each worker, one after the other. */
  readonly sizes: readonly number[];
  /** Whether tables go by rows, and in models without tables the rows of all other parameters. Default: all is dense. */
  readonly byRows: boolean;
  readonly compute: Compute;
  readonly space: SharedSpace;
  readonly open: (workers: number) => Promise<OpenStores>;
}

/** Trains as many steps as the run has and compares with it. */
export async function followRun({ c, run, sizes, byRows, compute, space, open }: Training): Promise<void> {
  const opened: OpenStores[] = [];
  const workers: TrainingWorker[] = [];
  const openStores = async () => {
    const one = await open(sizes.length);
    opened.push(one);
    return one.stores;
  };
  try {
    const stores = await openStores();
    const gradientStores = c.clip_global_norm === null ? undefined : await openStores();
    let rows = 0;
    for (const [i, size] of sizes.entries()) {
      const options = { c, spec: optimizerSpec(run), compute, space, byRows, first: rows, size };
      const own = { store: stores[i]!, gradientStore: gradientStores?.[i] };
      workers.push(new TrainingWorker({ ...options, ...own }));
      rows += size;
    }
    await Promise.all(workers.map((worker) => worker.start()));
    for (const [step, want] of run.losses.entries()) {
      const batch = c.batches[c.batch_order[step]!]!;
      const losses = await Promise.all(workers.map((worker) => worker.step(batch)));
      const loss = losses.reduce((sum, one, i) => sum + (one * sizes[i]!) / rows, 0);
      expect(firstDifference([loss], [want], LOSSES), `loss of step ${step}`).toBeUndefined();
    }
    await Promise.all(workers.map((worker) => worker.pullAll()));
    for (const [i, worker] of workers.entries()) worker.expectEnd(run, i);
  } finally {
    for (const worker of workers) worker.close();
    await Promise.all(opened.map((one) => one.close()));
  }
}

interface WorkerOptions {
  readonly c: TrainingCase;
  readonly spec: OptimizerSpec;
  readonly compute: Compute;
  readonly space: SharedSpace;
  readonly byRows: boolean;
  /** Its rows of the batch. */
  readonly first: number;
  readonly size: number;
  readonly store: KVStore;
  /** Adds gradients up, where they are clipped together. */
  readonly gradientStore: KVStore | undefined;
}

/** A parameter and what a step gives it. */
interface Place {
  readonly key: string;
  readonly value: Float32Array;
  readonly gradient: GradientPlace;
  /** Of a parameter that goes by rows. */
  readonly rowLength: number | undefined;
}

interface Rows {
  readonly indices: Int32Array;
  readonly rows: Float32Array;
}

class TrainingWorker {
  readonly #options: WorkerOptions;
  readonly #replica: Replica;
  readonly #places: readonly Place[];
  /** What the gradients have added up to. */
  readonly #sums = new Map<string, Float32Array>();

  constructor(options: WorkerOptions) {
    const { c, spec, compute, space, byRows, size } = options;
    this.#options = options;
    this.#replica = new Replica(buildModel(c), { compute, space, optimizer: spec, maxBatch: size });
    const { gradients, parameters } = this.#replica.memory;
    const hasTables = [...gradients.values()].some(({ kind }) => kind === 'sparse');
    this.#places = [...gradients].map(([key, gradient]) => {
      const value = parameters.get(key)!.view;
      const isTable = byRows && (gradient.kind === 'sparse' || !hasTables);
      const rowLength = isTable ? value.length / gradient.gradient.parameter.shape[0]! : undefined;
      return { key, value, gradient, rowLength };
    });
  }

  async start(): Promise<void> {
    const { store, gradientStore, spec } = this.#options;
    await store.init(this.#places.map(({ key, value, rowLength }) => ({ key, value, rowLength })));
    await store.setOptimizer(spec);
    // Nothing of what the replica was made with may be of use: values come from the store.
    for (const { value } of this.#places) value.fill(NaN);
    await store.pull(this.#dense.map(({ key, value }) => ({ key, into: value })));
    if (!gradientStore) return;
    for (const { key, value } of this.#places) this.#sums.set(key, new Float32Array(value.length));
    const zeros = (key: string) => this.#sums.get(key)!;
    await gradientStore.init(
      this.#places.map(({ key, rowLength }) => ({ key, value: zeros(key), rowLength })),
    );
  }

  /** The loss of this worker's part before the update. */
  async step(batch: Batch): Promise<number> {
    const { store, size, c } = this.#options;
    this.#load(batch);
    await Promise.all(this.#tables.map((table) => this.#pullRows(table)));
    const loss = this.#replica.computeGradients(Array.from({ length: size }, (_, i) => i));
    const factor = c.clip_global_norm === null ? 1 : clipFactor(await this.#norm(), c.clip_global_norm);
    await Promise.all([
      store.pushpull(
        this.#dense.map((place) => ({
          key: place.key,
          gradient: scaled(denseGradient(place), factor),
          into: place.value,
        })),
        { samples: size },
      ),
      ...this.#tables.map((table) => {
        const { indices, rows } = rowsOfGradient(table);
        return store.pushRows(table.key, indices, scaled(rows, factor), { samples: size });
      }),
    ]);
    return loss;
  }

  /** All rows too, of which steps pull only some. */
  async pullAll(): Promise<void> {
    await this.#options.store.pull(this.#places.map(({ key, value }) => ({ key, into: value })));
  }

  expectEnd({ final_params, final_buffers }: TrainingRun, worker: number): void {
    const { tolerance } = this.#options.c;
    expect(this.#places.map(({ key }) => key).sort()).toEqual(Object.keys(final_params).sort());
    for (const { key, value } of this.#places) {
      const difference = firstDifference(value, final_params[key]!, tolerance.final_params);
      expect(difference, `final value of ${key} on worker ${worker}`).toBeUndefined();
    }
    for (const [name, values] of Object.entries(final_buffers?.[worker] ?? {})) {
      const { view } = this.#replica.memory.states.get(name)!;
      const difference = firstDifference(view, values, tolerance.final_buffers);
      expect(difference, `final ${name} of worker ${worker}`).toBeUndefined();
    }
  }

  close(): void {
    this.#replica.close();
  }

  get #dense(): readonly Place[] {
    return this.#places.filter(({ rowLength }) => rowLength === undefined);
  }

  get #tables(): readonly Place[] {
    return this.#places.filter(({ rowLength }) => rowLength !== undefined);
  }

  #load(batch: Batch): void {
    const { first, size } = this.#options;
    for (const [name, { data, shape }] of Object.entries(batch)) {
      const perRow = data.length / shape[0]!;
      const own = data.slice(first * perRow, (first + size) * perRow);
      this.#replica.inputs[name]!.set(numbers(own));
    }
  }

  /** Those that the loaded batch needs; the others become NaN, so that their use would be noticed. */
  async #pullRows({ key, value, gradient, rowLength }: Place): Promise<void> {
    const indices = gradient.kind === 'dense' ? allRows(value, rowLength!) : this.#lookedUp(gradient);
    const rows = new Float32Array(indices.length * rowLength!);
    await this.#options.store.pullRows(key, indices, rows);
    value.fill(NaN);
    indices.forEach((index, i) =>
      value.set(rows.subarray(i * rowLength!, (i + 1) * rowLength!), index * rowLength!),
    );
  }

  #lookedUp({ gradient }: GradientPlace & { readonly kind: 'sparse' }): Int32Array {
    const inputs = gradient.lookups.map(({ indices }) => {
      let source = indices;
      while (source.node.op === 'reshape') source = source.node.inputs[0]!;
      return this.#replica.inputs[source.label]!;
    });
    return Int32Array.from(new Set(inputs.flatMap((input) => [...input])));
  }

  /** Of the average of all workers' gradients. */
  async #norm(): Promise<number> {
    const { gradientStore: store, size: samples } = this.#options;
    let squares = 0;
    await Promise.all(
      this.#places.map(async (place) => {
        const { key, rowLength } = place;
        const before = this.#sums.get(key)!;
        const after = new Float32Array(before.length);
        if (rowLength === undefined) {
          await store!.pushpull({ key, gradient: denseGradient(place), into: after }, { samples });
        } else {
          const { indices, rows } = rowsOfGradient(place);
          await store!.pushRows(key, indices, rows, { samples });
          await store!.pull({ key, into: after });
        }
        for (let i = 0; i < after.length; i++) squares += (after[i]! - before[i]!) ** 2;
        this.#sums.set(key, after);
      }),
    );
    return Math.sqrt(squares);
  }
}

function denseGradient({ value, gradient }: Place): Float32Array {
  if (gradient.kind === 'dense') return gradient.region.view;
  const { rowLength, rows, plan, count } = gradient;
  const dense = new Float32Array(value.length);
  for (let i = 0; i < count; i++) {
    dense.set(rows.view.subarray(i * rowLength, (i + 1) * rowLength), plan.indices.view[i]! * rowLength);
  }
  return dense;
}

function rowsOfGradient({ value, gradient, rowLength }: Place): Rows {
  if (gradient.kind === 'dense') return { indices: allRows(value, rowLength!), rows: gradient.region.view };
  const { plan, rows, count } = gradient;
  return {
    indices: plan.indices.view.subarray(0, count),
    rows: rows.view.subarray(0, count * gradient.rowLength),
  };
}

function allRows(value: Float32Array, rowLength: number): Int32Array {
  return Int32Array.from({ length: value.length / rowLength }, (_, i) => i);
}

function scaled(gradient: Float32Array, factor: number): Float32Array {
  return factor === 1 ? gradient : gradient.map((value) => value * factor);
}
