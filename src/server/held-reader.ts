/**
 * Copies of combined gradients that a core holds, for workers that look at them before they apply them. What may be looked at,
 * and by whom, is the core's business. Invariants: nothing of what is held changes; the copies are the numbers that an
 * update with scale 1 uses, bit by bit; elements and rows that nobody pushed are zeros; what is copied takes no room that
 * grows with it.
 */
import { keyText, UsageError } from '../base/index.ts';
import { copyRows } from '../kernels/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import type { Held } from './held-gradient.ts';
import type { Key } from './key.ts';

/** Rows of one pass, and of each its place in what is held and in the pass. */
interface Room {
  readonly segment: Segment;
  readonly rows: Region<'float32'>;
  readonly from: Region<'int32'>;
  readonly into: Region<'int32'>;
}

/** Few enough that a pass stays in the cache of its core. */
const PASS_ELEMENTS = 16_384;

export class HeldReader {
  readonly #kernels: Kernels;
  readonly #space: Pick<SharedSpace, 'allocate'>;
  #room: Room | undefined;

  /** `space`: where its room comes from. */
  constructor(kernels: Kernels, space: Pick<SharedSpace, 'allocate'>) {
    this.#kernels = kernels;
    this.#space = space;
  }

  /** The elements that are the core's, to their places in a tensor of the key's length. */
  whole(held: Held, key: Key, target: Region<'float32'>): void {
    const chunks = key.chunksOf(target);
    if (held.kind === 'dense') chunks.forEach((chunk, i) => this.#kernels.copy(chunk, held.chunks[i]!));
    else for (const chunk of chunks) this.#kernels.fill(chunk, 0);
    if (held.kind === 'rows') {
      const { indices: into, rows: source, rowCount: count } = held;
      copyRows(this.#kernels, { target, into, source, count, rowLength: key.rowLength! });
    }
    for (const chunk of chunks) this.#scale(held, chunk);
  }

  /** Rows of a table in the order of their indices, or to the given rows of the target. Indices may repeat. */
  rows(
    held: Held,
    key: Key,
    indices: Region<'int32'>,
    target: Region<'float32'>,
    positions?: Region<'int32'>,
  ): void {
    const rowLength = key.rowLength!;
    checkCovers(held, key);
    if (indices.length === 0) return;
    const room = this.#roomOfPass();
    if (rowLength > PASS_ELEMENTS) return this.#longRows(held, rowLength, indices, target, positions);
    const most = Math.floor(PASS_ELEMENTS / rowLength);
    // Other cores write other rows of the same target meanwhile, so that rows are scaled before they go there.
    for (let first = 0; first < indices.length; first += most) {
      const count = Math.min(most, indices.length - first);
      const pass = room.rows.slice(0, count * rowLength);
      const found = find(held, indices.view.subarray(first, first + count), room);
      if (found < count) this.#kernels.fill(pass, 0);
      if (held.kind !== 'nothing') {
        const source = held.kind === 'dense' ? held.all : held.rows;
        const { from, into } = room;
        copyRows(this.#kernels, { target: pass, into, source, from, count: found, rowLength });
      }
      this.#scale(held, pass);
      copyRows(this.#kernels, {
        target: positions ? target : target.slice(first * rowLength, count * rowLength),
        ...{ into: positions?.slice(first, count), source: pass, count, rowLength },
      });
    }
  }

  close(): void {
    this.#room?.segment.close();
    this.#room = undefined;
  }

  #scale(held: Held, values: Region<'float32'>): void {
    if (held.kind === 'nothing' || held.gradientScale === 1) return;
    this.#kernels.scale(values, held.gradientScale);
  }

  /** The same of rows that are longer than a pass, each in several. */
  #longRows(
    held: Held,
    rowLength: number,
    indices: Region<'int32'>,
    target: Region<'float32'>,
    positions: Region<'int32'> | undefined,
  ): void {
    const { rows } = this.#roomOfPass();
    indices.view.forEach((index, i) => {
      const to = rowLength * (positions?.view[i] ?? i);
      const row = rowOf(held, index, rowLength);
      for (let at = 0; at < rowLength; at += PASS_ELEMENTS) {
        const pass = rows.slice(0, Math.min(PASS_ELEMENTS, rowLength - at));
        if (row) this.#kernels.copy(pass, row.slice(at, pass.length));
        else this.#kernels.fill(pass, 0);
        this.#scale(held, pass);
        this.#kernels.copy(target.slice(to + at, pass.length), pass);
      }
    });
  }

  #roomOfPass(): Room {
    if (this.#room) return this.#room;
    const segment = this.#space.allocate(3 * (4 * PASS_ELEMENTS + LINE_BYTES));
    const rows = segment.allocate('float32', PASS_ELEMENTS);
    const [from, into] = [segment.allocate('int32', PASS_ELEMENTS), segment.allocate('int32', PASS_ELEMENTS)];
    return (this.#room = { segment, rows, from, into });
  }
}

/** Notes which of the rows are held, and where; returns their number. */
function find(held: Held, indices: Int32Array, { from, into }: Room): number {
  const [places, targets] = [from.view, into.view];
  let found = 0;
  for (let i = 0; i < indices.length && held.kind !== 'nothing'; i++) {
    const at = held.kind === 'dense' ? indices[i]! : placeOf(indices[i]!, held.indices.view);
    if (at < 0) continue;
    places[found] = at;
    targets[found++] = i;
  }
  return found;
}

/** A row that is held; undefined: nobody pushed it. */
function rowOf(held: Held, index: number, rowLength: number): Region<'float32'> | undefined {
  if (held.kind === 'nothing') return undefined;
  const at = held.kind === 'dense' ? index : placeOf(index, held.indices.view);
  return at < 0 ? undefined : (held.kind === 'dense' ? held.all : held.rows).slice(at * rowLength, rowLength);
}

/** In an ascending list; -1 if it is not there. */
function placeOf(index: number, list: Int32Array): number {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (list[middle]! < index) low = middle + 1;
    else high = middle;
  }
  return list[low] === index ? low : -1;
}

/** A gradient that was pushed whole has rows only if the core has all of them, as stores place tables. */
function checkCovers(held: Held, { title, value }: Key): void {
  if (held.kind !== 'dense' || held.all.length === value.length) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `rows of key ${keyText(title)} are not whole on this core, which has ${held.all.length} of ${value.length} elements; place tables by rows`,
    { key: title, expected: value.length, actual: held.all.length },
  );
}

const LINE_BYTES = 64;
