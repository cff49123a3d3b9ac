/**
 * Rows of tables on their way: an exchange touches the cores that have the rows, and moves nothing else. Duplicates among
 * the indices are left to the servers. Invariant: rows arrive in the order of their indices, whichever cores have them.
 */
import { UsageError } from '../../base/index.ts';
import type { SharedSpace } from '../../memory/index.ts';
import type { KeyStatus } from '../kv-store.ts';
import type { CoreLine } from './core-line.ts';
import type { KnownKey } from './key-table.ts';

interface RowsCall {
  readonly known: KnownKey;
  readonly indices: Int32Array;
  readonly worker: number;
}

export interface RowsPushCall extends RowsCall {
  readonly rows: Float32Array;
  readonly step: number;
  readonly samples: number;
  readonly isSkipped: boolean;
}

export interface RowsPullCall extends RowsCall {
  readonly into: Float32Array;
}

/** All cores hear of the push, those without a row too: it is one step of the whole table. */
export async function pushRows(
  lines: readonly CoreLine[],
  space: SharedSpace,
  call: RowsPushCall,
): Promise<KeyStatus> {
  const { known, rows, step, samples, isSkipped } = call;
  const rowLength = known.rowLength!;
  const parts = partsOf(call);
  const segment = space.allocate(4 * call.indices.length * (1 + rowLength) + 128 * (parts.length + 1));
  try {
    const replies = await Promise.all(
      parts.map(({ piece, firstRow, positions }) => {
        const count = positions.length;
        const indices = segment.allocate('int32', count);
        const staged = segment.allocate('float32', count * rowLength);
        for (let i = 0; i < count; i++) indices.view[i] = call.indices[positions[i]!]! - firstRow;
        if (parts.length === 1) staged.view.set(rows);
        else {
          for (let i = 0; i < count; i++) {
            const from = positions[i]! * rowLength;
            staged.view.set(rows.subarray(from, from + rowLength), i * rowLength);
          }
        }
        const body = count === 0 ? [] : [indices, staged];
        const request = { op: 'push-rows', piece: piece.number, count, step, samples, isSkipped };
        return lines[piece.core]!.request(request, body);
      }),
    );
    return statusOf(known, replies);
  } finally {
    segment.close();
  }
}

export async function pullRows(
  lines: readonly CoreLine[],
  space: SharedSpace,
  call: RowsPullCall,
): Promise<KeyStatus> {
  const { known, into } = call;
  const rowLength = known.rowLength!;
  const parts = partsOf(call).filter(({ positions }, i) => positions.length > 0 || i === 0);
  const segment = space.allocate(4 * call.indices.length * (1 + rowLength) + 128 * (parts.length + 1));
  try {
    const replies = await Promise.all(
      parts.map(async ({ piece, firstRow, positions }) => {
        const count = positions.length;
        const indices = segment.allocate('int32', count);
        const staged = segment.allocate('float32', count * rowLength);
        for (let i = 0; i < count; i++) indices.view[i] = call.indices[positions[i]!]! - firstRow;
        const body = count === 0 ? [] : [indices];
        const request = { op: 'pull-rows', piece: piece.number, count };
        const reply = await lines[piece.core]!.request(request, body, () => (count === 0 ? [] : [staged]));
        if (parts.length === 1) into.set(staged.view);
        else {
          for (let i = 0; i < count; i++) {
            into.set(staged.view.subarray(i * rowLength, (i + 1) * rowLength), positions[i]! * rowLength);
          }
        }
        return reply;
      }),
    );
    return statusOf(known, replies);
  } finally {
    segment.close();
  }
}

/** For each piece of the table the places of its rows among the indices. */
function partsOf({ known, indices, worker }: RowsCall): {
  readonly piece: KnownKey['pieces'][number];
  readonly firstRow: number;
  readonly positions: readonly number[];
}[] {
  const rowLength = known.rowLength!;
  const tableRows = known.length / rowLength;
  const lasts = known.pieces.map(({ start, length }) => (start + length) / rowLength);
  const positions: number[][] = known.pieces.map(() => []);
  for (let i = 0; i < indices.length; i++) {
    const row = indices[i]!;
    if (row < 0 || row >= tableRows) {
      throw new UsageError(
        'OUT_OF_BOUNDS',
        `worker ${worker} named row ${row} of key '${known.key}', which has ${tableRows}; give rows from 0 to ${tableRows - 1}`,
        { worker, key: known.key, row, rows: tableRows },
      );
    }
    let piece = 0;
    while (row >= lasts[piece]!) piece++;
    positions[piece]!.push(i);
  }
  return known.pieces.map((piece, i) => ({
    piece,
    firstRow: piece.start / rowLength,
    positions: positions[i]!,
  }));
}

function statusOf({ key }: KnownKey, replies: readonly Readonly<Record<string, unknown>>[]): KeyStatus {
  const results = replies.flatMap(({ results }) => results as [number, number][]);
  return {
    key,
    version: Math.min(...results.map(([version]) => version)),
    staleness: Math.max(...results.map(([, staleness]) => staleness)),
  };
}
