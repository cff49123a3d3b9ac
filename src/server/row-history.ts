/**
 * Which rows of a table have seen which updates, so that rows that nobody touched for a while are brought up to date when
 * somebody looks at them: momentum and moments go on without a gradient. Used in mode 'exact', whose result is that of
 * dense updates. Invariant: a row is brought up to date step by step, with the numbers of the steps that it missed.
 */
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import type { RowsUpdate, UpdateRule } from './update-rule.ts';

export interface TableState extends Pick<RowsUpdate, 'parameter' | 'slots' | 'rowLength'> {
  /** The last update of the table. */
  readonly version: number;
}

const MAX_RATES = 1024;

export class RowHistory {
  readonly #space: Pick<SharedSpace, 'allocate'>;
  /** The last update of each row. */
  readonly #seen: Int32Array;
  /** The last update that all rows are known to have seen, so that a table is not searched again for nothing. */
  #seenByAll: number;
  /** Learning rates of updates that some rows have missed, where they were not those of the rule. */
  readonly #rates = new Map<number, number>();
  /** Indices of a group of rows, and zeros for their gradients. */
  #scratch:
    | { readonly segment: Segment; readonly indices: Region<'int32'>; readonly zeros: Region<'float32'> }
    | undefined;

  /** `space`: where its scratch memory comes from. */
  constructor(space: Pick<SharedSpace, 'allocate'>, rows: number, version: number) {
    this.#space = space;
    this.#seen = new Int32Array(rows).fill(version);
    this.#seenByAll = version;
  }

  /** Brings the rows up to the table's version; all without indices. Indices may repeat. */
  catchUp(rule: UpdateRule, table: TableState, indices?: Int32Array): void {
    const { version } = table;
    if (!indices && this.#seenByAll === version) return;
    const behind = new Map<number, number[]>();
    const look = (row: number) => {
      const seen = this.#seen[row]!;
      if (seen >= version) return;
      this.#seen[row] = version;
      const group = behind.get(seen);
      if (group) group.push(row);
      else behind.set(seen, [row]);
    };
    if (indices) for (const row of indices) look(row);
    else for (let row = 0; row < this.#seen.length; row++) look(row);
    if (rule.movesWithoutGradient && behind.size > 0) {
      this.#reserve(behind, table.rowLength);
      for (const [seen, rows] of behind) this.#apply(rule, table, rows, seen);
    }
    if (indices) return;
    this.#rates.clear();
    this.#seenByAll = version;
  }

  /** The learning rate of an update; undefined: that of the rule. */
  keepRate(version: number, lr: number | undefined): void {
    if (lr !== undefined) this.#rates.set(version, lr);
  }

  /** All rows should be brought up to date before a rate more is kept, which costs no work that would not be done later. */
  get isFull(): boolean {
    return this.#rates.size >= MAX_RATES;
  }

  /** The update of this version has been applied to the rows; to all without indices. */
  note(version: number, indices?: Int32Array): void {
    if (indices) for (const row of indices) this.#seen[row] = version;
    else {
      this.#seen.fill(version);
      this.#seenByAll = version;
      this.#rates.clear();
    }
  }

  close(): void {
    this.#scratch?.segment.close();
    this.#scratch = undefined;
  }

  #apply(rule: UpdateRule, { version, ...table }: TableState, rows: number[], seen: number): void {
    const { indices, zeros } = this.#room(rows.length, table.rowLength);
    const own = indices.slice(0, rows.length);
    own.view.set(rows.sort((a, b) => a - b));
    const step = { ...table, gradientScale: 1, indices: own, rows: zeros, rowCount: rows.length };
    for (let t = seen + 1; t <= version; t++) {
      rule.updateRows({ ...step, t, lr: this.#rates.get(t) });
    }
  }

  /** There must be memory before a row counts as brought up to date. */
  #reserve(behind: ReadonlyMap<number, readonly number[]>, rowLength: number): void {
    let most = 0;
    for (const rows of behind.values()) most = Math.max(most, rows.length);
    try {
      this.#room(most, rowLength);
    } catch (error) {
      for (const [seen, rows] of behind) for (const row of rows) this.#seen[row] = seen;
      throw error;
    }
  }

  #room(count: number, rowLength: number): { indices: Region<'int32'>; zeros: Region<'float32'> } {
    if (this.#scratch === undefined || this.#scratch.indices.length < count) {
      this.close();
      const segment = this.#space.allocate(4 * count * (1 + rowLength) + 128);
      const indices = segment.allocate('int32', count);
      this.#scratch = { segment, indices, zeros: segment.allocate('float32', count * rowLength) };
    }
    return this.#scratch;
  }
}
