/**
 * Which piece of which key belongs to which core, as every worker computes it by itself: dense keys by chunks, largest
 * first; tables by rows, evenly. Pure. Terms: cores are numbered through all servers; a piece is at most so large
 * that summing and answering it overlaps with the arrival of the next. Invariant: the pieces of a key cover it once.
 */
import type { KeyShape, PieceShape } from '../../server/index.ts';
import { cutIntoChunks, dealInRuns, placeChunks } from '../../plan/index.ts';
import type { Chunk } from '../../plan/index.ts';

export interface PlacedPiece extends PieceShape {
  readonly core: number;
  /** Elements in its ranges. */
  readonly elements: number;
}

export interface PlanOptions {
  readonly servers: number;
  readonly coresPerServer: number;
  readonly chunkBytes: number | undefined;
}

const PIECE_ELEMENTS = 256 * 1024;

export function planKeys(keys: readonly KeyShape[], options: PlanOptions): PlacedPiece[] {
  const { servers, coresPerServer, chunkBytes } = options;
  const dense = keys.flatMap(({ length, rowLength }, i) =>
    rowLength === undefined ? [{ key: String(i), length }] : [],
  );
  const chunks = cutIntoChunks(dense, chunkBytes);
  const placed = dealInRuns(placeChunks(chunks, { servers, coresPerServer }).chunks);
  const open = new Map<string, Open>();
  const pieces: PlacedPiece[] = [];
  for (const { key, server, core: coreOfServer, start, length } of placed) {
    const core = server * coresPerServer + coreOfServer;
    const number = Number(key);
    const name = `${core} ${number}`;
    let piece = open.get(name);
    if (piece === undefined || piece.elements + length > PIECE_ELEMENTS) {
      piece = { core, key: number, start: 0, length: keys[number]!.length, ranges: [], elements: 0 };
      open.set(name, piece);
      pieces.push(piece);
    }
    piece.ranges.push([start, length]);
    piece.elements += length;
  }
  const tables = keys.flatMap((key, i) => (key.rowLength === undefined ? [] : planTable(key, i, options)));
  return [...pieces, ...tables];
}

interface Open extends PlacedPiece {
  readonly ranges: [start: number, length: number][];
  elements: number;
}

function planTable({ length, rowLength = 1 }: KeyShape, key: number, options: PlanOptions): PlacedPiece[] {
  const { servers, coresPerServer, chunkBytes } = options;
  const cores = servers * coresPerServer;
  const rows = length / rowLength;
  return Array.from({ length: cores }, (_, core): PlacedPiece => {
    const [first, last] = [firstRow(core, rows, cores), firstRow(core + 1, rows, cores)];
    const elements = (last - first) * rowLength;
    const ranges = rangesOf(cutIntoChunks([{ key: '', length: elements }], chunkBytes));
    return { core, key, start: first * rowLength, length: elements, ranges, elements };
  }).filter(({ elements }) => elements > 0);
}

/** Elements of a key that one server has memory for. */
export interface Stretch {
  readonly first: number;
  readonly length: number;
}

/**
 * For each core, of its server: of a table the rows of all its cores, which lie together; of other
 * keys, cut into many chunks, all.
 */
export function stretchesOf(
  { length, rowLength }: KeyShape,
  pieces: readonly PlacedPiece[],
  key: number,
  { servers, coresPerServer }: Pick<PlanOptions, 'servers' | 'coresPerServer'>,
): Stretch[] {
  return Array.from({ length: servers * coresPerServer }, (_, core): Stretch => {
    const server = Math.floor(core / coresPerServer);
    if (rowLength === undefined) return { first: 0, length };
    const own = pieces.filter(
      (piece) => piece.key === key && Math.floor(piece.core / coresPerServer) === server,
    );
    const elements = own.reduce((sum, piece) => sum + piece.elements, 0);
    return { first: own[0]?.start ?? 0, length: elements };
  });
}

/** Of the rows that core `core` of `cores` has. */
function firstRow(core: number, rows: number, cores: number): number {
  return Math.floor((core * rows) / cores);
}

function rangesOf(chunks: readonly Chunk[]): [number, number][] {
  return chunks.map(({ start, length }) => [start, length]);
}
