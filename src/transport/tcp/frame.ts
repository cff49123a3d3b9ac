/**
 * The header of 64 bytes before every payload on a connection: its layout, its checksum and the checks of each field.
 * Pure; it moves no bytes. A message may be cut into parts, one for each connection of a peer. Invariant: `readFrame`
 * returns only frames whose part lies inside its message; it never trusts a length because the checksum is right.
 */
import type { Envelope } from '../transport.ts';

export const FRAME_BYTES = 64;
export const MAX_NOTICE_BYTES = 32 * 1024;

export const FrameKind = { MESSAGE: 1, NOTICE: 2, BYE: 3 } as const;
export type FrameKind = (typeof FrameKind)[keyof typeof FrameKind];

export interface Frame extends Envelope {
  readonly kind: FrameKind;
  /** Bytes of the whole message. */
  readonly totalBytes: number;
  /** Where this part starts in the message, and how many bytes it has. */
  readonly offset: number;
  readonly bytes: number;
}

/** A peer that passed the handshake broke the protocol; the message names the field and its value. */
export class ProtocolFault extends Error {}

const MAGIC = 0x46524254; // 'TBRF' as the bytes lie in memory
const VERSION = 1;
const CHECKSUM_AT = 60;

/** `serial` counts the frames of a connection, modulo 2^32. */
export function writeFrame(view: DataView, at: number, frame: Frame, serial: number): void {
  view.setUint32(at, MAGIC, true);
  view.setUint32(at + 4, (frame.kind << 8) | VERSION, true);
  view.setUint32(at + 8, frame.group, true);
  view.setUint32(at + 12, frame.tag, true);
  view.setUint32(at + 16, frame.sequence, true);
  view.setUint32(at + 20, frame.step, true);
  view.setUint32(at + 24, frame.signature, true);
  view.setUint32(at + 28, frame.totalBytes, true);
  view.setUint32(at + 32, frame.offset, true);
  view.setUint32(at + 36, frame.bytes, true);
  view.setFloat64(at + 40, frame.weight, true);
  view.setUint32(at + 48, serial, true);
  view.setUint32(at + 52, 0, true);
  view.setUint32(at + 56, 0, true);
  view.setUint32(at + CHECKSUM_AT, checksum(view, at), true);
}

/** Throws a `ProtocolFault` that names the first field that is wrong. */
export function readFrame(view: DataView, at: number, serial: number): Frame {
  expectField('magic', view.getUint32(at, true), MAGIC);
  expectField('checksum', view.getUint32(at + CHECKSUM_AT, true), checksum(view, at));
  const kindAndVersion = view.getUint32(at + 4, true);
  expectField('version', kindAndVersion & 0xff, VERSION);
  const kind = kindAndVersion >>> 8;
  if (kind !== FrameKind.MESSAGE && kind !== FrameKind.NOTICE && kind !== FrameKind.BYE) {
    throw new ProtocolFault(`kind is ${kind}, which is none of 1 to 3`);
  }
  expectField('serial', view.getUint32(at + 48, true), serial);
  const frame: Frame = {
    kind,
    group: view.getUint32(at + 8, true),
    tag: view.getUint32(at + 12, true),
    sequence: view.getUint32(at + 16, true),
    step: view.getUint32(at + 20, true),
    signature: view.getUint32(at + 24, true),
    totalBytes: view.getUint32(at + 28, true),
    offset: view.getUint32(at + 32, true),
    bytes: view.getUint32(at + 36, true),
    weight: view.getFloat64(at + 40, true),
  };
  checkLengths(frame);
  return frame;
}

function checkLengths({ kind, totalBytes, offset, bytes }: Frame): void {
  if (kind === FrameKind.MESSAGE) {
    if (offset + bytes > totalBytes) {
      throw new ProtocolFault(`bytes: ${bytes} at offset ${offset} reach beyond the total of ${totalBytes}`);
    }
    if (bytes === 0 && totalBytes > 0) throw new ProtocolFault(`bytes is 0 in a message of ${totalBytes}`);
    return;
  }
  const most = kind === FrameKind.NOTICE ? MAX_NOTICE_BYTES : 0;
  if (offset !== 0 || bytes !== totalBytes || bytes > most) {
    throw new ProtocolFault(
      `bytes: ${bytes} at offset ${offset} of ${totalBytes}, where at most ${most} in one part are allowed`,
    );
  }
}

function expectField(name: string, actual: number, expected: number): void {
  if (actual !== expected) throw new ProtocolFault(`${name} is ${actual}, not ${expected}`);
}

/** Every bit of the 15 words before it changes about half of its bits; no protection against a liar. */
function checksum(view: DataView, at: number): number {
  let hash = 0x9e3779b9;
  for (let i = 0; i < CHECKSUM_AT; i += 4) {
    hash = Math.imul(hash ^ view.getUint32(at + i, true), 0x85ebca6b);
    hash ^= hash >>> 15;
  }
  hash = Math.imul(hash, 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
