/**
 * Rows of tables on their way: an exchange touches the cores that have the rows, and moves nothing else. On one host the
 * rows of a call lie in memory that servers read and write in place. Duplicates among the indices are left to the servers.
 * Invariants: rows arrive in the order of their indices, whichever cores have them; the memory of a call is not used
 * again before its answer.
 */
import { UsageError } from '../../base/index.ts';
import { gatherRows, scatterRows } from '../../kernels/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { Region, Segment } from '../../memory/index.ts';
import { rowsBehind } from '../../server/index.ts';
import type { Header, Place } from '../../server/index.ts';
import type { KeyStatus, Tensor } from '../kv-store.ts';
import type { CoreLine } from './core-line.ts';
import type { KnownKey } from './key-table.ts';
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
  /** Their places among the rows of the call. */
  readonly positions: Region<'int32'>;
  /** Their numbers in the piece. */
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  readonly at: Place | undefined;
}

const LINE_BYTES = 64;
/** Calls of about the same size use the same memory. */
const LEAST_BYTES = 64 * 1024;

export class RowExchange {
  readonly #worker: number;
  readonly #lines: readonly CoreLine[];
  readonly #isShared: readonly boolean[];
  readonly #memory: StoreMemory;
  readonly #kernels: Kernels;
  readonly #free: Segment[] = [];

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
    const { segment, parts } = await this.#prepare(call);
    for (const part of parts) this.#fill(part, call.rows, known.rowLength!);
    const answers = parts.map(({ piece, indices, rows, at }) => {
      const count = indices.length;
      const body = at || count === 0 ? [] : [indices, rows];
      const request = { op: 'push-rows', piece: piece.number, count, step, samples, isSkipped, at };
      return this.#lines[piece.core]!.request(request, body);
    });
    return { answer: this.#settled(segment, known, Promise.all(answers)) };
  }

  async pull(call: RowsPullCall): Promise<{ readonly answer: Promise<KeyStatus> }> {
    const { known, into } = call;
    const prepared = await this.#prepare(call);
    const parts = prepared.parts.filter(({ indices }, i) => indices.length > 0 || i === 0);
    const answers = parts.map(async (part) => {
      const { piece, indices, rows, at } = part;
      const count = indices.length;
      const inBody = at === undefined && count > 0;
      const request = { op: 'pull-rows', piece: piece.number, count, at };
      const reply = await this.#lines[piece.core]!.request(request, inBody ? [indices] : [], () =>
        inBody ? [rows] : [],
      );
      this.#hand(part, into, known.rowLength!);
      return reply;
    });
    return { answer: this.#settled(prepared.segment, known, Promise.all(answers)) };
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

  /** Divides the indices among the pieces, in memory for this call. */
  async #prepare({ known, indices }: RowsCall): Promise<{ segment: Segment; parts: Part[] }> {
    const rowLength = known.rowLength!;
    const pieceOf = this.#piecesOf(known, indices);
    const counts = known.pieces.map(() => 0);
    for (const piece of pieceOf) counts[piece]!++;
    const bytes = 4 * indices.length * (2 + rowLength) + 4 * LINE_BYTES * (counts.length + 1);
    const segment = await this.#segment(bytes);
    let at = 0;
    const parts = known.pieces.map((piece, i): Part => {
      const count = counts[i]!;
      const positions = segment.region('int32', at, count);
      const indicesAt = rowsBehind(at, count);
      const rowsAt = rowsBehind(indicesAt, count);
      at = rowsBehind(rowsAt, count * rowLength);
      return {
        ...{ piece, positions, indices: segment.region('int32', indicesAt, count) },
        rows: segment.region('float32', rowsAt, count * rowLength),
        at: this.#isShared[piece.core] ? [segment.name!, indicesAt] : undefined,
      };
    });
    const filled = parts.map(() => 0);
    for (let position = 0; position < indices.length; position++) {
      const i = pieceOf[position]!;
      const { piece, positions, indices: own } = parts[i]!;
      positions.view[filled[i]!] = position;
      own.view[filled[i]!++] = indices[position]! - piece.start / rowLength;
    }
    return { segment, parts };
  }

  #fill({ positions, rows }: Part, from: Tensor, rowLength: number): void {
    if (!(from instanceof Float32Array) && from.space === this.#memory.space) {
      return gatherRows(this.#kernels, { target: rows, source: from, rowLength, indices: positions });
    }
    const source = from instanceof Float32Array ? from : from.view;
    if (rows.length === source.length) return rows.view.set(source);
    for (let i = 0; i < positions.length; i++) {
      const start = positions.view[i]! * rowLength;
      rows.view.set(source.subarray(start, start + rowLength), i * rowLength);
    }
  }

  #hand({ positions, rows }: Part, into: Tensor, rowLength: number): void {
    if (!(into instanceof Float32Array) && into.space === this.#memory.space) {
      return scatterRows(this.#kernels, { target: into, source: rows, rowLength, indices: positions });
    }
    const target = into instanceof Float32Array ? into : into.view;
    if (rows.length === target.length) return target.set(rows.view);
    for (let i = 0; i < positions.length; i++) {
      target.set(rows.view.subarray(i * rowLength, (i + 1) * rowLength), positions.view[i]! * rowLength);
    }
  }

  async #segment(bytes: number): Promise<Segment> {
    const at = this.#free.findIndex(({ byteLength }) => byteLength >= bytes);
    if (at >= 0) return this.#free.splice(at, 1)[0]!;
    const segment = this.#memory.segment(2 ** Math.ceil(Math.log2(Math.max(LEAST_BYTES, bytes))));
    if (segment.name !== undefined) {
      const header = { op: 'map', segment: segment.name };
      const sharing = this.#lines.filter((_, core) => this.#isShared[core]);
      await Promise.all(sharing.map((line) => line.announce(`map ${segment.name}`, header)));
    }
    return segment;
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
