/**
 * How opening the keys of one call is cut into requests that are no longer than servers read, nor
 * their answers: in the order of the keys, by their shapes and pieces alone. Pure. Invariant: since
 * it follows from the plan only, all workers make the same requests, and number them alike.
 */
import { keyText, UsageError } from '../../base/index.ts';
import { MAX_RANGES, MEMBER_LIMITS, runsOf } from '../../server/index.ts';
import type { KeyShape } from '../../server/index.ts';
import type { PlacedPiece } from './key-plan.ts';

/** A key as one core sees it: the elements that its server has memory for. */
export interface KeyOnCore {
  /** The first of them in the whole key. */
  readonly first: number;
  readonly shape: KeyShape;
}

/** Some keys of the call, one after the other. */
export interface OpenRequest {
  /** Which keys of the call. */
  readonly firstKey: number;
  readonly keyCount: number;
  /** For each core: what it is sent of them, and of which pieces. */
  readonly cores: readonly {
    readonly header: { readonly keys: readonly KeyShape[]; readonly pieces: readonly object[] };
    readonly pieces: readonly PlacedPiece[];
  }[];
}

/** Beside keys and pieces: numbers and names of fields. */
const ROOM_BYTES = 1024;
/** The answer names a segment and a place for each: about 90 bytes. */
const MAX_KEYS = 4096;

/** `byKey`: of each key what each core sees; `pieces`: of each core, in the order of their numbers. */
export function openRequests(
  byKey: readonly (readonly KeyOnCore[])[],
  pieces: readonly (readonly PlacedPiece[])[],
): OpenRequest[] {
  const own = pieces.map((list) => piecesByKey(list, byKey.length));
  const sizes = byKey.map((cores, key) =>
    cores.map(({ shape, first }, core) => {
      const ofKey = own[core]![key]!;
      const text = JSON.stringify([shape, ...ofKey.map((piece) => wirePiece(piece, piece.key, first))]);
      const ranges = ofKey.reduce((sum, one) => sum + one.ranges.length, 0);
      return { bytes: Buffer.byteLength(text), ranges };
    }),
  );
  const requests: OpenRequest[] = [];
  for (let firstKey = 0; firstKey < byKey.length || firstKey === 0;) {
    const totals = pieces.map(() => ({ bytes: ROOM_BYTES, ranges: 0 }));
    let keyCount = 0;
    for (let key = firstKey; key < byKey.length && keyCount < MAX_KEYS; key++, keyCount++) {
      const grown = totals.map(({ bytes, ranges }, core) => {
        const more = sizes[key]![core]!;
        return { bytes: bytes + more.bytes, ranges: ranges + more.ranges };
      });
      const isOver = grown.find((one) => one.bytes > MEMBER_LIMITS.headerBytes || one.ranges > MAX_RANGES);
      if (isOver && keyCount === 0) throw tooLarge(byKey[key]![0]!.shape, isOver);
      if (isOver) break;
      grown.forEach((one, core) => (totals[core] = one));
    }
    requests.push(requestOf({ byKey, own, firstKey, keyCount }));
    firstKey += Math.max(1, keyCount);
  }
  return requests;
}

function requestOf({
  byKey,
  own,
  firstKey,
  keyCount,
}: {
  readonly byKey: readonly (readonly KeyOnCore[])[];
  readonly own: readonly (readonly (readonly PlacedPiece[])[])[];
  readonly firstKey: number;
  readonly keyCount: number;
}): OpenRequest {
  const keys = byKey.slice(firstKey, firstKey + keyCount);
  const cores = own.map((ofCore, core) => {
    const pieces = ofCore.slice(firstKey, firstKey + keyCount).flat();
    return {
      pieces,
      header: {
        keys: keys.map((cores) => cores[core]!.shape),
        pieces: pieces.map((piece) => wirePiece(piece, piece.key - firstKey, byKey[piece.key]![core]!.first)),
      },
    };
  });
  return { firstKey, keyCount, cores };
}

/** As it travels: `key` counts in the request, `start` from the first element that the server has. */
function wirePiece({ start, length, ranges }: PlacedPiece, key: number, first: number): object {
  return { key, start: start - first, length, ranges: runsOf(ranges) };
}

function piecesByKey(pieces: readonly PlacedPiece[], keys: number): PlacedPiece[][] {
  const byKey = Array.from({ length: keys }, (): PlacedPiece[] => []);
  for (const piece of pieces) byKey[piece.key]!.push(piece);
  return byKey;
}

function tooLarge(
  { key, length }: KeyShape,
  { bytes, ranges }: { bytes: number; ranges: number },
): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `key ${keyText(key)} of ${length} elements is cut into ${ranges} chunks on a core, which take ${bytes} bytes to name, where a server reads ${MAX_RANGES} and ${MEMBER_LIMITS.headerBytes} bytes in a message; use larger chunks (chunkBytes) or more servers`,
    { key, length, chunks: ranges, bytes, expected: MEMBER_LIMITS.headerBytes },
  );
}
