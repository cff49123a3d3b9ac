/**
 * Rows of tables on their way: an exchange touches the cores that have the rows, and moves nothing else. On one host the
 * rows of a call lie in memory that servers read and write in place. Duplicates among the indices are left to the servers.
 * Invariants: rows arrive in the order of their indices, whichever cores have them; the memory of a call is not used
 * again before its answer.
 */
import { UsageError } from '../../base/index.ts';
import { copyRows } from '../../kernels/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { Region, Segment } from '../../memory/index.ts';
import { behindIndices } from '../../server/index.ts';
import type { Header, SharedRows } from '../../server/index.ts';
import type { KeyStatus, Tensor } from '../kv-store.ts';
import type { CoreLine } from './core-line.ts';
import type { PlacedPiece } from './key-plan.ts';
import type { KnownKey } from './key-table.ts';
import type { Told } from './recovery.ts';
import { copy, elementsOf } from './tensors.ts';
import type { StoreMemory } from './tensors.ts';

interface RowsCall {
  readonly known: KnownKey;
  readonly indices: Int32Array;
}

export interface RowsPushCall extends RowsCall {
  readonly rows: Tensor;
  readonly step: number;
  readonly samples: number;
  readonly isSkipped: boolean;
}

export interface RowsPullCall extends RowsCall {
  readonly into: Tensor;
}

/** What one core has of the rows of a call. */
interface Part {
  readonly piece: KnownKey['pieces'][number];
  /** Their numbers in the piece. */
  readonly indices: Region<'int32'>;
  /** Their places among the rows of the call. */
  readonly positions: Region<'int32'>;
  /** Room for them alone, where they travel between hosts. */
  readonly rows: Region<'float32'> | undefined;
}

interface Prepared {
  readonly segment: Segment;
  readonly parts: readonly Part[];
  /** The rows of the call where servers can use them: the caller's tensor, or room for it. */
  readonly tensor: Region<'float32'>;
}

const LINE_BYTES = 64;
/** Calls of about the same size use the same memory. */
const LEAST_BYTES = 64 * 1024;

export class RowExchange implements Told {
  readonly #worker: number;
  readonly #lines: readonly CoreLine[];
  readonly #isShared: readonly boolean[];
  readonly #memory: StoreMemory;
  readonly #kernels: Kernels;
  readonly #free: Segment[] = [];
  /** Segments that servers on this host know. */
  readonly #mapped = new Set<string>();

  constructor(
    worker: number,
    lines: readonly CoreLine[],
    isShared: readonly boolean[],
    memory: StoreMemory,
    kernels: Kernels,
  ) {
    this.#worker = worker;
    this.#lines = lines;
    this.#isShared = isShared;
    this.#memory = memory;
    this.#kernels = kernels;
  }

  /** All cores hear of the push, those without a row too: it is one step of the whole table. Resolves when it is sent. */
  async push(call: RowsPushCall): Promise<{ readonly answer: Promise<KeyStatus> }> {
    const { known, step, samples, isSkipped } = call;
    const { segment, parts, tensor } = await this.#prepare(call, call.rows);
    if (tensor !== call.rows) copy(this.#kernels, tensor, call.rows);
    const answers = parts.map((part) => {
      const { piece, indices, positions: from, rows } = part;
      const rowLength = known.rowLength!;
      if (rows) copyRows(this.#kernels, { target: rows, source: tensor, from, rowLength });
      const shared = this.#sharedRows(part, tensor, rowLength);
      const body = rows && indices.length > 0 ? [indices, rows] : [];
      const request = { op: 'push-rows', piece: piece.number, count: indices.length, shared };
      return this.#lines[piece.core]!.request({ ...request, step, samples, isSkipped }, body);
    });
    return { answer: this.#settled(segment, known, Promise.all(answers)) };
  }

  async pull(call: RowsPullCall): Promise<{ readonly answer: Promise<KeyStatus> }> {
    const { known, into } = call;
    const { segment, parts, tensor } = await this.#prepare(call, into);
    const asked = parts.filter(({ indices }, i) => indices.length > 0 || i === 0);
    const answers = asked.map(async (part) => {
      const { piece, indices, positions, rows } = part;
      const rowLength = known.rowLength!;
      const shared = this.#sharedRows(part, tensor, rowLength);
      const request = { op: 'pull-rows', piece: piece.number, count: indices.length, shared };
      const inBody = rows && indices.length > 0;
      const reply = await this.#lines[piece.core]!.request(request, inBody ? [indices] : [], () =>
        inBody ? [rows] : [],
      );
      if (rows) copyRows(this.#kernels, { target: tensor, into: positions, source: rows, rowLength });
      return reply;
    });
    const all = Promise.all(answers).then((replies) => {
      if (tensor !== into) elementsOf(into).set(tensor.view);
      return replies;
    });
    return { answer: this.#settled(segment, known, all) };
  }

  forget(): void {
    this.#mapped.clear();
  }

  async announceAgain(line: CoreLine): Promise<void> {
    if (!this.#isShared[this.#lines.indexOf(line)]) return;
    for (const segment of this.#mapped) {
      await line.request({ op: 'map', segment }, [], () => undefined, true);
    }
  }

  async #settled(segment: Segment, { key }: KnownKey, answers: Promise<Header[]>): Promise<KeyStatus> {
    try {
      const results = (await answers).flatMap((answer) => answer.results as [number, number][]);
      return {
        key,
        version: Math.min(...results.map(([version]) => version)),
        staleness: Math.max(...results.map(([, staleness]) => staleness)),
      };
    } finally {
      this.#free.push(segment);
    }
  }

  /** Divides the indices among the pieces, in memory for this call, which has room for the rows where they need it. */
  async #prepare({ known, indices }: RowsCall, rows: Tensor): Promise<Prepared> {
    const rowLength = known.rowLength!;
    const pieceOf = this.#piecesOf(known, indices);
    const counts = known.pieces.map(() => 0);
    for (const piece of pieceOf) counts[piece]!++;
    const own = this.#memory.isUsable(rows) ? undefined : rows.length;
    const isShared = (piece: PlacedPiece) => this.#isShared[piece.core]!;
    const travelling = known.pieces.reduce((sum, piece, i) => sum + (isShared(piece) ? 0 : counts[i]!), 0);
    const elements = (own ?? 0) + 2 * indices.length + travelling * rowLength;
    const segment = this.#segment(4 * elements + LINE_BYTES * (3 * counts.length + 1));
    let at = 0;
    const take = <T extends 'float32' | 'int32'>(dtype: T, length: number): Region<T> => {
      const start = at;
      at = behindIndices(at, length);
      return segment.region(dtype, start, length);
    };
    const tensor = own === undefined ? (rows as Region<'float32'>) : take('float32', own);
    await this.#map(segment.region('int32', 0, 0));
    await this.#map(tensor);
    const parts = known.pieces.map((piece, i): Part => {
      const count = counts[i]!;
      const [ownIndices, positions] = [take('int32', count), take('int32', count)];
      const travels = isShared(piece) ? undefined : take('float32', count * rowLength);
      return { piece, indices: ownIndices, positions, rows: travels };
    });
    const filled = parts.map(() => 0);
    const firsts = parts.map(({ piece }) => piece.start / rowLength);
    const views = parts.map((part) => [part.indices.view, part.positions.view] as const);
    for (let position = 0; position < indices.length; position++) {
      const i = pieceOf[position]!;
      const slot = filled[i]!++;
      const [rowsOfPiece, positions] = views[i]!;
      rowsOfPiece[slot] = indices[position]! - firsts[i]!;
      positions[slot] = position;
    }
    return { segment, parts, tensor };
  }

  #sharedRows(
    { piece, indices }: Part,
    tensor: Region<'float32'>,
    rowLength: number,
  ): SharedRows | undefined {
    if (!this.#isShared[piece.core]) return undefined;
    const rowCount = Math.floor(tensor.length / rowLength);
    return { at: this.#memory.placeOf(indices), rows: this.#memory.placeOf(tensor), rowCount };
  }

  async #map(tensor: Region): Promise<void> {
    const name = this.#memory.space.segmentAt(tensor)?.name;
    if (name === undefined || this.#mapped.has(name)) return;
    this.#mapped.add(name);
    const sharing = this.#lines.filter((_, core) => this.#isShared[core]);
    const header = { op: 'map', segment: name };
    await Promise.all(sharing.map((line) => line.announce(`map ${name}`, header)));
  }

  #segment(bytes: number): Segment {
    const at = this.#free.findIndex(({ byteLength }) => byteLength >= bytes);
    if (at >= 0) return this.#free.splice(at, 1)[0]!;
    return this.#memory.segment(2 ** Math.ceil(Math.log2(Math.max(LEAST_BYTES, bytes))));
  }

  /** The piece of each index. */
  #piecesOf({ key, pieces, length, rowLength = 1 }: KnownKey, indices: Int32Array): Uint16Array {
    const tableRows = length / rowLength;
    const ends = pieces.map((piece) => (piece.start + piece.length) / rowLength);
    const found = new Uint16Array(indices.length);
    for (let i = 0; i < indices.length; i++) {
      const row = indices[i]!;
      if (row < 0 || row >= tableRows) {
        throw new UsageError(
          'OUT_OF_BOUNDS',
          `worker ${this.#worker} named row ${row} of key '${key}', which has ${tableRows}; give rows from 0 to ${tableRows - 1}`,
          { worker: this.#worker, key, row, rows: tableRows },
        );
      }
      let piece = 0;
      while (row >= ends[piece]!) piece++;
      found[i] = piece;
    }
    return found;
  }
}
