/**
 * A made-up model whose gradients depend on its parameters, so that every step that is lost, doubled or done from other
 * parameters changes the result; and its training without any loss, which is what disturbed runs must come to.
 */
import { createHash } from 'node:crypto';
import type { RemoteStore } from '../../src/kvstore/index.ts';
import { Servers } from './servers.ts';

/** Of the parameters. */
const LENGTHS = [1000, 5000, 17, 3];
/** Of the table, some of whose rows are touched in each step. */
const [ROWS, ROW_LENGTH, TOUCHED] = [40, 5, 12];
/** So that every core has several chunks. */
export const CHUNK_BYTES = 1024;

export class MadeUpModel {
  readonly #store: RemoteStore;
  readonly #keys;
  /** The touched rows of the table, and what comes of them. */
  readonly #rows;

  private constructor(store: RemoteStore) {
    this.#store = store;
    this.#keys = LENGTHS.map((length, i) => ({
      key: `w${i}`,
      gradient: store.allocate(length),
      into: store.allocate(length),
    }));
    const lengths = TOUCHED * ROW_LENGTH;
    this.#rows = { gradient: store.allocate(lengths), into: store.allocate(lengths) };
  }

  static async open(store: RemoteStore): Promise<MadeUpModel> {
    const model = new MadeUpModel(store);
    const first = (length: number) => new Float32Array(length).fill(0.5);
    await store.init([
      ...model.#keys.map(({ key, into }) => ({ key, value: first(into.length) })),
      { key: 'table', value: first(ROWS * ROW_LENGTH), rowLength: ROW_LENGTH },
    ]);
    await store.setOptimizer({ name: 'sgd', lr: 0.05, momentum: 0.9 });
    return model;
  }

  /** `isFirst`: the parameters are not those of this process's last step. */
  async step(step: number, isFirst: boolean): Promise<void> {
    if (isFirst) await this.#store.pull(this.#keys);
    for (const { gradient, into } of this.#keys) {
      for (let i = 0; i < gradient.length; i++) {
        const noise = ((i * 7 + this.#store.rank * 13 + step * 31) % 17) - 8;
        gradient.view[i] = noise / 64 + 0.1 * into.view[i]!;
      }
    }
    const touched = this.#touched(step);
    const { gradient, into } = this.#rows;
    await this.#store.pullRows('table', touched, into);
    for (let i = 0; i < gradient.length; i++) {
      gradient.view[i] = 0.1 * into.view[i]! + (i % 7) / 64;
    }
    await Promise.all([this.#store.pushpull(this.#keys), this.#store.pushRows('table', touched, gradient)]);
  }

  /** Some of them twice, and other ones on other workers. */
  #touched(step: number): Int32Array {
    return Int32Array.from({ length: TOUCHED }, (_, i) => (i * i + 3 * step + 5 * this.#store.rank) % ROWS);
  }

  /** Of the parameters on the servers. */
  async hash(): Promise<string> {
    await this.#store.pull(this.#keys);
    const hash = createHash('sha256');
    for (const { into } of this.#keys) hash.update(Float32Array.from(into.view));
    const table = new Float32Array(ROWS * ROW_LENGTH);
    await this.#store.pullRows(
      'table',
      Int32Array.from({ length: ROWS }, (_, i) => i),
      table,
    );
    hash.update(table);
    return hash.digest('hex');
  }
}

/** The hash after so many steps of which none was disturbed, in this process. */
export async function undisturbed(workers: number, steps: number): Promise<string> {
  const servers = await Servers.start(1);
  try {
    const stores = await servers.connect(workers, {
      access: servers.createService(),
      chunkBytes: CHUNK_BYTES,
    });
    const hashes = await Promise.all(
      stores.map(async (store) => {
        const model = await MadeUpModel.open(store);
        for (let step = 1; step <= steps; step++) await model.step(step, step === 1);
        return model.hash();
      }),
    );
    await Promise.all(stores.map((store) => store.close()));
    if (new Set(hashes).size !== 1) throw new Error(`workers disagree: ${hashes.join(', ')}`);
    return hashes[0]!;
  } finally {
    await servers.close();
  }
}
