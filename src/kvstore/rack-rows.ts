/**
 * Which rows of a table the workers of a rack name, to push or to pull them. The rack's server adds up rows but does not tell
 * which they were, so each worker writes its indices into a part of its own of one more table, where the leader reads them.
 *
 * Terms: a part has a first row that tells how many indices its worker has, then up to `PART_ROWS` of them; with more, the call has
 * several rounds. An index is three numbers: low, high and 1. A server that averages divides all three alike, so that
 * the third tells by what. Invariant: cost grows with the rows named, not with the table.
 */
import type { Region } from '../memory/index.ts';
import type { KeyInit } from './kv-store.ts';
import type { RemoteStore } from './remote/remote-store.ts';

/** Most indices that a worker tells in one round. */
const PART_ROWS = 2 ** 16;
/** Low and high are below this, so that a float32 holds them with room for the rounding of a division. */
const BASE = 2 ** 16;
const WORDS = 3;

export function namedRowsInit(key: string, tableRows: number, workers: number): KeyInit {
  const rows = workers * (1 + partRows(tableRows));
  return { key, value: new Float32Array(rows * WORDS), rowLength: WORDS };
}

/** Ascending, each once. */
export function uniqueIndices(indices: Int32Array): Int32Array {
  const sorted = Int32Array.from(indices).sort();
  return sorted.filter((index, i) => i === 0 || index !== sorted[i - 1]);
}

/** Tells one round of a worker's indices; done when all workers of the rack have. */
export function tellNamed(
  rack: RemoteStore,
  key: string,
  unique: Int32Array,
  round: number,
  tableRows: number,
): Promise<unknown> {
  const most = partRows(tableRows);
  const told = [unique.length, ...unique.subarray(round * most, (round + 1) * most)];
  const first = rack.rank * (1 + most);
  const at = Int32Array.from(told, (_, i) => first + i);
  const rows = new Float32Array(WORDS * told.length);
  told.forEach((number, i) => rows.set([number % BASE, Math.floor(number / BASE), 1], WORDS * i));
  return rack.pushRows(key, at, rows);
}

/** Takes out what the workers told in one round; `isAgain` if one of them has more. */
export function takeNamed(
  memory: Region<'float32'>,
  workers: number,
  round: number,
  tableRows: number,
): { readonly indices: readonly number[]; readonly isAgain: boolean } {
  const most = partRows(tableRows);
  const indices: number[] = [];
  let isAgain = false;
  for (let worker = 0; worker < workers; worker++) {
    const part = memory.view.subarray(WORDS * worker * (1 + most), WORDS * (worker + 1) * (1 + most));
    // A worker that has left the rack tells nothing.
    if (part[WORDS - 1] === 0) continue;
    const count = numberAt(part, 0);
    const told = Math.max(0, Math.min(count - round * most, most));
    for (let i = 1; i <= told; i++) indices.push(numberAt(part, i));
    part.fill(0, 0, WORDS * (1 + told));
    isAgain ||= count > (round + 1) * most;
  }
  return { indices, isAgain };
}

function numberAt(part: Float32Array, row: number): number {
  const [low, high, unit] = part.subarray(WORDS * row, WORDS * (row + 1)) as unknown as [
    number,
    number,
    number,
  ];
  return Math.round(low / unit) + BASE * Math.round(high / unit);
}

function partRows(tableRows: number): number {
  return Math.min(tableRows, PART_ROWS);
}

/** Copies rows out of a table and leaves zeros there. */
export function takeRows(table: Float32Array, indices: Int32Array, rowLength: number): Float32Array {
  const rows = new Float32Array(indices.length * rowLength);
  indices.forEach((index, i) => {
    const row = table.subarray(index * rowLength, (index + 1) * rowLength);
    rows.set(row, i * rowLength);
    row.fill(0);
  });
  return rows;
}

export function putRows(
  table: Float32Array,
  indices: Int32Array,
  rows: Float32Array,
  rowLength: number,
): void {
  indices.forEach((index, i) =>
    table.set(rows.subarray(i * rowLength, (i + 1) * rowLength), index * rowLength),
  );
}
