/**
 * Which rows of a table have seen which updates, so that rows that nobody touched for a while are brought up to date when
 * somebody looks at them: momentum and moments go on without a gradient. Used in mode 'exact', whose result is that of
 * dense updates. Invariants: a row is brought up to date step by step, with the numbers of the steps that it missed;
 * that takes no memory but the room that was made before, and can be cut anywhere between its parts.
 */
import type { Slots } from '../kernels/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import type { ChunkUpdate, RowsUpdate, UpdateRule } from './update-rule.ts';

/** A table as it is now, whose version may change between two parts. */
export interface Table {
  readonly value: Region<'float32'>;
  readonly slots: Slots;
  readonly rowLength?: number | undefined;
  /** The last update of the table. */
  readonly version: number;
}

const MAX_RATES = 1024;
/** Rows that are brought up to date together; few enough that they stay in the cache of a core for many steps. */
const GROUP_ROWS = 2048;
const GROUP_ELEMENTS = 16_384;
/** Elements that are updated, each update counted, and rows that are looked at, between two cuts. */
const PART_ELEMENTS = 65_536;
const PART_ROWS = 65_536;
const LINE_BYTES = 64;

/** What histories need while they bring rows up to date, one after the other: those of a core share it. */
export class HistoryRoom {
  readonly #segment: Segment;
  /** Rows of a group that have missed something, ascending. */
  readonly rows = new Int32Array(GROUP_ROWS);
  /** Those of them that are updated next. */
  readonly indices: Region<'int32'>;
  /** In the place of their gradients. */
  readonly zeros: Region<'float32'>;

  constructor(space: Pick<SharedSpace, 'allocate'>) {
    this.#segment = space.allocate(4 * (GROUP_ROWS + GROUP_ELEMENTS) + 2 * LINE_BYTES);
    this.indices = this.#segment.allocate('int32', GROUP_ROWS);
    this.zeros = this.#segment.allocate('float32', GROUP_ELEMENTS);
  }

  close(): void {
    this.#segment.close();
  }
}

export class RowHistory {
  readonly #room: HistoryRoom;
  readonly #segment: Segment;
  /** The last update of each row, unless all have seen a later one. */
  readonly #seen: Int32Array;
  /** The last update that all rows have seen. */
  #seenByAll = 0;
  /** Learning rates of updates that some rows have missed, where they were not those of the rule. */
  readonly #rates = new Map<number, number>();

  /** `space`: where it remembers. `rows`: the first ones of the table; it is not asked to keep others up to date. */
  constructor(space: Pick<SharedSpace, 'allocate'>, room: HistoryRoom, rows: number) {
    this.#room = room;
    this.#segment = space.allocate(4 * rows + LINE_BYTES);
    // All zeros, as new memory is.
    this.#seen = this.#segment.allocate('int32', rows).view;
  }

  /** Whether `catchUp` would find anything to do. */
  isBehind(rule: UpdateRule, { version }: Table, indices?: Int32Array): boolean {
    // Rows that do not move without a gradient are up to date, whatever they have seen.
    return this.#seenByAll < version && (indices === undefined || (rule.movesWithoutGradient ?? false));
  }

  /**
   * Brings the rows up to the table's version, some with each step; all without indices. Indices may repeat; those of
   * other rows are passed over. If there are updates between two steps it ends, and rows may have missed them.
   */
  *catchUp(rule: UpdateRule, table: Table, indices?: Int32Array): Generator<void, void> {
    if (!this.isBehind(rule, table, indices)) return;
    const target = table.version;
    const looked = rule.movesWithoutGradient ? (indices?.length ?? this.#seen.length) : 0;
    for (let at = 0; at < looked;) {
      const { next, count } = this.#collect(at, table, indices);
      if (this.#advance(rule, table, count)) at = next;
      if (at < looked) yield;
      if (table.version !== target) return;
    }
    if (indices) return;
    this.#rates.clear();
    this.#seenByAll = target;
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
      this.#seenByAll = version;
      this.#rates.clear();
    }
  }

  /** The table is now as after so many updates, which may be fewer than it had seen. */
  restart(version: number): void {
    this.#seen.fill(version);
    this.note(version);
  }

  close(): void {
    this.#segment.close();
  }

  #seenBy(row: number): number {
    return Math.max(this.#seen[row]!, this.#seenByAll);
  }

  /** The next group of rows that are behind, from a place among all or the given ones on. */
  #collect(
    from: number,
    { version, rowLength }: Table,
    indices: Int32Array | undefined,
  ): { readonly next: number; readonly count: number } {
    const { rows } = this.#room;
    const most = Math.max(1, Math.min(GROUP_ROWS, Math.floor(GROUP_ELEMENTS / rowLength!)));
    const end = Math.min(from + PART_ROWS, indices?.length ?? this.#seen.length);
    let [next, count] = [from, 0];
    for (; next < end && count < most; next++) {
      const row = indices ? indices[next]! : next;
      // Not so for a row that is not there.
      if (this.#seenBy(row) < version) rows[count++] = row;
    }
    return { next, count: indices ? ascending(rows, count) : count };
  }

  /** Gives rows that are behind what they missed; false if some of it is left for the next part. */
  #advance(rule: UpdateRule, table: Table, count: number): boolean {
    const { version } = table;
    let left = PART_ELEMENTS;
    for (let own = this.#earliest(count, version); own.count > 0; own = this.#earliest(count, version)) {
      if (left <= 0) return false;
      // If a step leaves nothing of what was before it, those before the last are as good as done.
      const first = rule.overwrites ? version - 1 : own.seen;
      const elements = own.count * table.rowLength!;
      const last = Math.min(rule.overwrites ? version : own.until, first + Math.ceil(left / elements));
      if (rule.repeatRows) rule.repeatRows(this.#rowsOf(table, own.count, last), last - first);
      else {
        const update = this.#updateOf(rule, table, own.count);
        for (let t = first + 1; t <= last; t++) update(t, this.#rates.get(t));
      }
      const { indices } = this.#room;
      for (const row of indices.view.subarray(0, own.count)) this.#seen[row] = last;
      left -= (last - first) * elements + count;
    }
    return true;
  }

  /** Notes which rows of the group have seen least, and how far they are alone: until others have seen as much. */
  #earliest(
    count: number,
    version: number,
  ): { readonly seen: number; readonly until: number; readonly count: number } {
    const { rows, indices } = this.#room;
    const earliest = indices.view;
    let [seen, until, found] = [version, version, 0];
    for (let i = 0; i < count; i++) {
      const own = this.#seenBy(rows[i]!);
      if (own < seen) [until, seen, found] = [seen, own, 0];
      else if (own > seen && own < until) until = own;
      if (own === seen && own < version) earliest[found++] = rows[i]!;
    }
    return { seen, until, count: found };
  }

  #rowsOf({ value: parameter, slots, rowLength }: Table, rowCount: number, t: number): RowsUpdate {
    const { indices, zeros: rows } = this.#room;
    return { parameter, slots, rowLength: rowLength!, indices, rows, rowCount, gradientScale: 1, t };
  }

  /** One update without a gradient of the rows that were noted. */
  #updateOf(rule: UpdateRule, table: Table, count: number): (t: number, lr: number | undefined) => void {
    const { indices, zeros } = this.#room;
    const { value: parameter, slots, rowLength: length } = table;
    const rowLength = length!;
    const [first, last] = [indices.view[0]!, indices.view[count - 1]!];
    if (last - first + 1 > count) {
      const step = this.#rowsOf(table, count, 0);
      return (t, lr) => rule.updateRows({ ...step, t, lr });
    }
    // Rows that follow each other, or a long one, are elements like others.
    const parts: Writable<ChunkUpdate>[] = [];
    const end = (last + 1) * rowLength;
    for (let at = first * rowLength; at < end; at += GROUP_ELEMENTS) {
      const elements = Math.min(GROUP_ELEMENTS, end - at);
      const own = Object.entries(slots).map(([name, slot]) => [name, slot.slice(at, elements)] as const);
      parts.push({
        ...{ parameter: parameter.slice(at, elements), slots: Object.fromEntries(own) },
        ...{ gradient: zeros.slice(0, elements), gradientScale: 1, t: 0, lr: undefined },
      });
    }
    return (t, lr) => {
      for (const part of parts) {
        part.t = t;
        part.lr = lr;
        rule.update(part);
      }
    };
  }
}

/** An object for each of many steps would cost more than the steps of a short row. */
type Writable<T> = { -readonly [Name in keyof T]: T[Name] };

/** Sorts the first so many, and leaves out those that repeat; returns how many there are then. */
function ascending(rows: Int32Array, count: number): number {
  rows.subarray(0, count).sort();
  let unique = 0;
  for (let i = 0; i < count; i++) if (i === 0 || rows[i] !== rows[i - 1]) rows[unique++] = rows[i]!;
  return unique;
}
