/**
 * Rows of tables on their way: an exchange touches the cores that have the rows, and moves nothing else. On one host the
 * rows of a call lie in memory that servers read and write in place. Duplicates among the indices are left to the servers.
 * Invariants: rows arrive in the order of their indices, whichever cores have them; the memory of a call is not used
 * again before its answer.
 */
import { keyText, UsageError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import { copyRows } from '../../kernels/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { Region, Segment } from '../../memory/index.ts';
import { behindIndices } from '../../server/index.ts';
import type { Header, PieceResult, SharedRows } from '../../server/index.ts';
import type { StoreTensor as Tensor } from '../kv-store.ts';
import type { CoreLine } from './core-line.ts';
import { sumInOrder } from './held-steps.ts';
import type { RemoteKeyStatus } from './held-steps.ts';
import type { PlacedPiece } from './key-plan.ts';
import type { KnownKey } from './key-table.ts';
import { allAnswered, refusalOf } from './push-answers.ts';
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
  /** Learning rate of the push; undefined: the last one. */
  readonly lr?: number | undefined;
  /** Whether the worker sees the rows as they are after the push. */
  readonly pulls: boolean;
  /** Receives them; undefined: nobody, or they are read where they are. */
  readonly into: Tensor | undefined;
}

export interface RowsPullCall extends RowsCall {
  readonly into: Tensor;
  /** Rows of the combined gradient that is held of this step. Default: of the value. */
  readonly heldStep?: number | undefined;
  /** Rows of what the rule, or an average, keeps. Default: of the value. */
  readonly slot?: string | undefined;
}

/** What one core has of the rows of a call. */
interface Part {
  readonly piece: KnownKey['pieces'][number];
  /** Their numbers in the piece. */
  readonly indices: Region<'int32'>;
  /** Their places among the rows of the call. */
  readonly positions: Region<'int32'>;
  /** Where they travel between hosts: room for them alone, one for each tensor of the call. */
  readonly travelling: readonly Region<'float32'>[] | undefined;
}

interface Travelling {
  readonly rows?: Region<'float32'> | undefined;
  readonly answer: Region<'float32'> | undefined;
  /** The tensor that the answer's rows belong to. */
  readonly target: Region<'float32'> | undefined;
}

interface Prepared {
  readonly segment: Segment;
  readonly parts: readonly Part[];
  /** Those of the call where servers can use them: the caller's own, or room for them. */
  readonly tensors: readonly Region<'float32'>[];
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
  async push(call: RowsPushCall): Promise<{ readonly answer: Promise<RemoteKeyStatus> }> {
    const { known, step, samples, isSkipped, pulls, rows: pushed, into, lr } = call;
    const { segment, parts, tensors } = await this.#prepare(call, into ? [pushed, into] : [pushed]);
    const [tensor, target] = tensors;
    if (tensor !== pushed) copy(this.#kernels, tensor!, pushed);
    let isTaken = false;
    const answers = parts.map(async (part) => {
      const { positions: from, travelling } = part;
      const [rows, answer] = travelling ?? [];
      if (rows) {
        copyRows(this.#kernels, { target: rows, source: tensor!, from, rowLength: known.rowLength! });
      }
      const request = { op: 'push-rows', step, samples, isSkipped, pulls, lr };
      const reply = await this.#ask(part, tensors, known, request, { rows, answer, target });
      isTaken = true;
      return reply;
    });
    const answer = this.#settled(segment, known, answers, into && [target!, into]);
    return {
      answer: answer.catch((error: TributaryError) => {
        throw refusalOf(error, isTaken);
      }),
    };
  }

  async pull(call: RowsPullCall): Promise<{ readonly answer: Promise<RemoteKeyStatus> }> {
    const { known, into, heldStep, slot } = call;
    const { segment, parts, tensors } = await this.#prepare(call, [into]);
    const [target] = tensors;
    const asked = parts.filter(({ indices }, i) => indices.length > 0 || i === 0);
    const answers = asked.map((part) =>
      this.#ask(
        part,
        tensors,
        known,
        { op: 'pull-rows', heldStep, slot },
        { answer: part.travelling?.[0], target },
      ),
    );
    return { answer: this.#settled(segment, known, answers, [target!, into]) };
  }

  forget(): void {
    this.#mapped.clear();
  }

  /** One request for the rows of one core; where they travel, they come as `rows` and go to `answer`. */
  async #ask(
    { piece, indices, positions, travelling }: Part,
    tensors: readonly Region<'float32'>[],
    { rowLength = 1 }: KnownKey,
    request: object,
    { rows, answer, target }: Travelling,
  ): Promise<Header> {
    const hasBody = travelling !== undefined && indices.length > 0;
    const shared = travelling ? undefined : this.#sharedRows(indices, tensors, rowLength);
    const header = { ...request, piece: piece.number, count: indices.length, shared };
    const body = !hasBody ? [] : rows ? [indices, rows] : [indices];
    const reply = await this.#lines[piece.core]!.request(header, body, () =>
      hasBody && answer ? [answer] : [],
    );
    if (answer && target) {
      copyRows(this.#kernels, { target, into: positions, source: answer, rowLength });
    }
    return reply;
  }

  /** `answer`: where the rows came to, and where the caller wants them. */
  async #settled(
    segment: Segment,
    { key }: KnownKey,
    answers: readonly Promise<Header>[],
    answer?: readonly [Region<'float32'>, Tensor],
  ): Promise<RemoteKeyStatus> {
    try {
      const results = (await allAnswered(answers)).flatMap((one) => one.results as PieceResult[]);
      if (answer && answer[0] !== answer[1]) elementsOf(answer[1]).set(answer[0].view);
      const squares = results.flatMap(([, , sumOfSquares]) =>
        sumOfSquares === undefined ? [] : [sumOfSquares],
      );
      return {
        ...(squares.length > 0 && { sumOfSquares: sumInOrder(squares) }),
        key,
        version: Math.min(...results.map(([version]) => version)),
        staleness: Math.max(...results.map(([, staleness]) => staleness)),
      };
    } finally {
      this.#free.push(segment);
    }
  }

  /** Divides the indices among the pieces, in memory for this call, which has room for the tensors where they need it. */
  async #prepare({ known, indices }: RowsCall, given: readonly Tensor[]): Promise<Prepared> {
    const rowLength = known.rowLength!;
    const pieceOf = this.#piecesOf(known, indices);
    const counts = known.pieces.map(() => 0);
    for (const piece of pieceOf) counts[piece]!++;
    const own = given.map((tensor) => (this.#memory.isUsable(tensor) ? 0 : tensor.length));
    const isShared = (piece: PlacedPiece) => this.#isShared[piece.core]!;
    const travelling = known.pieces.reduce((sum, piece, i) => sum + (isShared(piece) ? 0 : counts[i]!), 0);
    const elements =
      own.reduce((sum, length) => sum + length) + 2 * indices.length + given.length * travelling * rowLength;
    const segment = this.#segment(4 * elements + LINE_BYTES * (4 * counts.length + 2));
    let at = 0;
    const take = <T extends 'float32' | 'int32'>(dtype: T, length: number): Region<T> => {
      const start = at;
      at = behindIndices(at, length);
      return segment.region(dtype, start, length);
    };
    const tensors = given.map((tensor) =>
      this.#memory.isUsable(tensor) ? tensor : take('float32', tensor.length),
    );
    for (const region of [segment.region('int32', 0, 0), ...tensors]) await this.#map(region);
    const parts = known.pieces.map((piece, i): Part => {
      const count = counts[i]!;
      const [ownIndices, positions] = [take('int32', count), take('int32', count)];
      const room = () => given.map(() => take('float32', count * rowLength));
      return {
        ...{ piece, indices: ownIndices, positions },
        travelling: isShared(piece) ? undefined : room(),
      };
    });
    const filled = parts.map(() => 0);
    const firsts = parts.map(({ piece }) => piece.start / rowLength);
    const indexViews = parts.map((part) => part.indices.view);
    const positionViews = parts.map((part) => part.positions.view);
    for (let position = 0; position < indices.length; position++) {
      const i = pieceOf[position]!;
      const slot = filled[i]!++;
      indexViews[i]![slot] = indices[position]! - firsts[i]!;
      positionViews[i]![slot] = position;
    }
    return { segment, parts, tensors };
  }

  #sharedRows(
    indices: Region<'int32'>,
    [tensor, into]: readonly Region<'float32'>[],
    rowLength: number,
  ): SharedRows {
    const memory = this.#memory;
    const rowCount = Math.floor(tensor!.length / rowLength);
    return {
      ...{ at: memory.placeOf(indices), rows: memory.placeOf(tensor!), rowCount },
      into: into && memory.placeOf(into),
    };
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
          `worker ${this.#worker} named row ${row} of key ${keyText(key)}, which has ${tableRows}; give rows from 0 to ${tableRows - 1}`,
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
