/**
 * CRC-32 (the polynomial of zlib), continued from piece to piece. Node has it since 20.15; before that a table computes
 * the same value, slower. Against torn and damaged records, not against malice.
 */
import zlib from 'node:zlib';

/** The checksum of all bytes so far, `before` being that of the earlier ones: 0 for none. */
export const crc32: (bytes: Uint8Array, before: number) => number =
  (zlib as Partial<typeof zlib>).crc32 ?? tableCrc32;

let table: Uint32Array | undefined;

export function tableCrc32(bytes: Uint8Array, before: number): number {
  table ??= Uint32Array.from({ length: 256 }, (_, byte) => {
    let value = byte;
    for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
    return value;
  });
  let crc = ~before;
  for (let i = 0; i < bytes.length; i++) crc = (crc >>> 8) ^ table[(crc ^ bytes[i]!) & 0xff]!;
  return ~crc >>> 0;
}
