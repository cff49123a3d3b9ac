/**
 * Copies of combined gradients that a core holds, for workers that look at them before they apply them. What may be looked at,
 * and by whom, is the core's business. Invariants: nothing of what is held changes; the copies are the numbers that an
 * update with scale 1 uses, bit by bit; elements and rows that nobody pushed are zeros.
 */
import { keyText, UsageError } from '../base/index.ts';
import { copyRows } from '../kernels/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
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
  #room: Room | undefined;

  constructor(kernels: Kernels) {
    this.#kernels = kernels;
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
    const room = this.#roomFor(rowLength);
    // Room that was made for longer rows has space for more short ones than there are places to note.
    const most = Math.min(PASS_ELEMENTS, Math.floor(room.rows.length / rowLength));
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

  #roomFor(rowLength: number): Room {
    const known = this.#room;
    if (known && known.rows.length >= rowLength) return known;
    this.close();
    const elements = Math.max(PASS_ELEMENTS, rowLength);
    const segment = this.#kernels.space.allocate(4 * (elements + 2 * PASS_ELEMENTS) + 3 * LINE_BYTES);
    const rows = segment.allocate('float32', elements);
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
