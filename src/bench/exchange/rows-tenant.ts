/**
 * One table in a worker of `bench exchange`, of which a step touches some rows: they are pushed, then pulled. Each worker goes
 * round a few sets of rows, spread over the whole table and in mixed order, as batches of text do. Invariant: a row
 * belongs to one set of one worker, so that its value after any number of steps is known.
 */
import { deriveSeed, Random, UsageError } from '../../base/index.ts';
import type { RemoteStore } from '../../kvstore/index.ts';
import { openStore } from './dense-tenant.ts';
import type { TenantPlace } from './dense-tenant.ts';
import { expectedWeights, fillGradient, hasWeights } from './known-exchange.ts';

const MOST_SETS = 4;
const SEED = 61;

export class RowsTenant {
  readonly store: RemoteStore;
  /** Peers exchange no rows: there is nothing to compare. */
  readonly checksum = undefined;
  readonly #key: string;
  readonly #sets: readonly Int32Array[];
  readonly #gradient: Float32Array;
  readonly #into: Float32Array;
  #steps = 0;

  private constructor(store: RemoteStore, key: string, sets: readonly Int32Array[], elements: number) {
    this.store = store;
    this.#key = key;
    this.#sets = sets;
    this.#gradient = store.allocate(elements).view;
    this.#into = store.allocate(elements).view;
    fillGradient(this.#gradient, store.rank);
  }

  static async open(place: TenantPlace, rows: number): Promise<RowsTenant> {
    const [table] = place.run.tensors;
    const { key, length, rowLength = 1 } = table!;
    const sets = rowSets({
      ...{ rows, tableRows: length / rowLength },
      ...place,
      workers: place.run.workers,
    });
    return new RowsTenant(await openStore(place), key, sets, rows * rowLength);
  }

  async exchange(): Promise<void> {
    const indices = this.#sets[this.#steps % this.#sets.length]!;
    await this.store.pushRows(this.#key, indices, this.#gradient);
    await this.store.pullRows(this.#key, indices, this.#into);
    this.#steps++;
  }

  async isRight(): Promise<boolean> {
    for (const [set, indices] of this.#sets.entries()) {
      const touches = Math.ceil((this.#steps - set) / this.#sets.length);
      await this.store.pullRows(this.#key, indices, this.#into);
      if (!hasWeights(this.#into, expectedWeights([this.store.rank], Math.max(0, touches)))) return false;
    }
    return true;
  }
}

export interface RowSetsOptions {
  readonly rows: number;
  readonly tableRows: number;
  readonly worker: number;
  readonly workers: number;
}

/** The indices of each set of a worker. */
export function rowSets({ rows, tableRows, worker, workers }: RowSetsOptions): Int32Array[] {
  const spacing = tableRows / rows;
  const count = Math.min(MOST_SETS, Math.floor(spacing / workers));
  if (count < 1) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${workers} workers with ${rows} rows each do not find enough of them in a table of ${tableRows}; give at most ${Math.floor(tableRows / workers)} rows`,
      { rows, tableRows, workers },
    );
  }
  return Array.from({ length: count }, (_, set) => {
    const indices = Array.from({ length: rows }, (_, i) => Math.floor(i * spacing) + set * workers + worker);
    new Random(deriveSeed(SEED, 'rows', worker, set)).shuffle(indices);
    return Int32Array.from(indices);
  });
}
