/**
 * The first page of a named segment: what it is and who owns it. Written once, before the segment has its
 * name, and never changed. Not the data: that starts at `HEADER_BYTES`. Invariant: a header that decodes is
 * complete, of this version and no larger than its file.
 */
import type { ProcessIdentity } from './process-identity.ts';

export const HEADER_BYTES = 4096;

const MAGIC = 'TRIBUTARY-SEGMENT';
const LAYOUT_VERSION = 1;
const AT_VERSION = 24;
const AT_PID = 28;
const AT_BYTE_LENGTH = 32;
const AT_START_TICKS = 40;
const AT_PID_NAMESPACE = 48;

export interface SegmentHeader {
  /** Bytes of data after the header. */
  readonly byteLength: number;
  readonly owner: ProcessIdentity;
}

export function encodeHeader(header: SegmentHeader): Uint8Array {
  const bytes = Buffer.alloc(HEADER_BYTES);
  bytes.write(MAGIC, 0, 'latin1');
  bytes.writeUInt32LE(LAYOUT_VERSION, AT_VERSION);
  bytes.writeUInt32LE(header.owner.pid, AT_PID);
  bytes.writeBigUInt64LE(BigInt(header.byteLength), AT_BYTE_LENGTH);
  bytes.writeBigUInt64LE(header.owner.startTicks, AT_START_TICKS);
  bytes.writeBigUInt64LE(header.owner.pidNamespace, AT_PID_NAMESPACE);
  return bytes;
}

/** Returns the header, or in words what is wrong with it. */
export function decodeHeader(content: Uint8Array, fileBytes: number): SegmentHeader | string {
  const bytes = Buffer.from(content.buffer, content.byteOffset, content.byteLength);
  if (bytes.length < HEADER_BYTES) return `it has ${bytes.length} bytes, fewer than a header`;
  const expectedMagic = Buffer.alloc(AT_VERSION);
  expectedMagic.write(MAGIC, 0, 'latin1');
  if (!bytes.subarray(0, AT_VERSION).equals(expectedMagic)) return 'it has another magic number';
  const version = bytes.readUInt32LE(AT_VERSION);
  if (version !== LAYOUT_VERSION) return `its layout version is ${version}, expected ${LAYOUT_VERSION}`;
  const byteLength = bytes.readBigUInt64LE(AT_BYTE_LENGTH);
  if (byteLength + BigInt(HEADER_BYTES) !== BigInt(fileBytes)) {
    return `its header says ${byteLength} bytes of data, but the file has ${fileBytes} bytes in all`;
  }
  const pid = bytes.readUInt32LE(AT_PID);
  if (pid === 0 || pid > 0x7fffffff) return `its owner has the impossible process id ${pid}`;
  const owner = {
    pid,
    startTicks: bytes.readBigUInt64LE(AT_START_TICKS),
    pidNamespace: bytes.readBigUInt64LE(AT_PID_NAMESPACE),
  };
  return { byteLength: Number(byteLength), owner };
}
