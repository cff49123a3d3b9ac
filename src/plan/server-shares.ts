/**
 * How much of each parameter lies on which server: tables are cut by rows, evenly (Parallax, section 5.1); everything else
 * by size, in chunks that go to the lightest server. Cores and interfaces inside a server are the concern of whoever
 * talks to it. Invariant: the shares of a parameter add up to all of it.
 */
import { requireCount } from './argument-checks.ts';
import { cutIntoChunks, ELEMENT_BYTES } from './chunks.ts';
import { placeChunks } from './placement.ts';

export interface SharedParameter {
  readonly name: string;
  readonly elements: number;
  /** Elements of a row, if it is exchanged by rows. Default: it is exchanged as a whole. */
  readonly rowLength?: number;
}

/** Bytes on each server, by the name of the parameter. */
export function serverShares(
  parameters: readonly SharedParameter[],
  servers: number,
  chunkBytes?: number,
): ReadonlyMap<string, readonly number[]> {
  if (parameters.length === 0) return new Map();
  requireCount('servers', servers);
  const shares = new Map(parameters.map(({ name }) => [name, new Array<number>(servers).fill(0)]));
  const whole = parameters.filter(({ rowLength }) => rowLength === undefined);
  const keys = whole.map(({ name, elements }) => ({ key: name, length: elements }));
  const { chunks } = placeChunks(cutIntoChunks(keys, chunkBytes), { servers });
  for (const { key, server, length } of chunks) shares.get(key)![server]! += length * ELEMENT_BYTES;
  for (const { name, elements, rowLength } of parameters) {
    if (rowLength === undefined) continue;
    const rows = elements / rowLength;
    const own = shares.get(name)!;
    for (let server = 0; server < servers; server++)
      own[server] =
        (firstRow(server + 1, rows, servers) - firstRow(server, rows, servers)) * rowLength * ELEMENT_BYTES;
  }
  return shares;
}

function firstRow(server: number, rows: number, servers: number): number {
  return Math.floor((server * rows) / servers);
}
