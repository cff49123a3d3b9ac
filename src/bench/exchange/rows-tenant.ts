/**
 * One table in a worker of `bench exchange`, of which a step touches some rows: they are pushed, then pulled. Each worker goes
 * round a few sets of rows, spread over the whole table and in mixed order, as batches of text do. Invariant: a row
 * belongs to one set of one worker, so that its value after any number of steps is known.
 */
import { deriveSeed, Random, UsageError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import type { KVStore } from '../../kvstore/index.ts';
import { expectedWeights, fillGradient, hasWeights } from './known-exchange.ts';
import { openStore } from './tenant-store.ts';
import type { TenantPlace, TenantStore } from './tenant-store.ts';

const MOST_SETS = 4;
const SEED = 61;

export class RowsTenant {
  readonly store: KVStore;
  /** Peers exchange no rows: there is nothing to compare. */
  readonly checksum = undefined;
  readonly #key: string;
  readonly #sets: readonly Int32Array[];
  readonly #gradient: Region<'float32'>;
  readonly #into: Region<'float32'>;
  /** Where one server on this host has the table, rows are read in it, as weights are in dense exchanges. */
  readonly #table: Region<'float32'> | undefined;
  #steps = 0;

  private constructor(opened: TenantStore, key: string, sets: readonly Int32Array[], elements: number) {
    const { store } = opened;
    this.store = store;
    this.#key = key;
    this.#sets = sets;
    this.#gradient = opened.allocate(elements);
    this.#into = opened.allocate(elements);
    this.#table = opened.value(key);
    fillGradient(this.#gradient.view, store.rank);
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
    await this.store.pushpullRows(this.#key, indices, this.#gradient, this.#table ?? this.#into);
    this.#steps++;
  }

  async isRight(): Promise<boolean> {
    let isRight = true;
    // All of them whatever is found: a client pulls when all its workers do.
    for (const [set, indices] of this.#sets.entries()) {
      const touches = Math.ceil((this.#steps - set) / this.#sets.length);
      await this.store.pullRows(this.#key, indices, this.#into);
      isRight &&= hasWeights(this.#into.view, expectedWeights([this.store.rank], Math.max(0, touches)));
    }
    return isRight;
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
