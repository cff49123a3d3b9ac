/**
 * The records with which two processes convince each other, before the first frame, that both know the secret. Pure:
 * bytes in, bytes out; what a proof is stands in `sockets/credentials.ts`. The dialer says who it is and whom it looks for
 * (hello), the listener answers with a challenge, the dialer proves first, so that strangers get nothing to guess on, then
 * the listener; a last byte says that the dialer has heard that. Invariants: a proof covers all that was said, so it fits
 * no other connection; a connection that the dialer gives up was never one to the listener.
 */
import { Transcript } from '../../sockets/index.ts';
import type { Role } from '../../sockets/index.ts';

export const PROTOCOL_VERSION = 3;
const PURPOSE = 'tcp transport';
export const NONCE_BYTES = 32;
export const ID_BYTES = 16;
export const HELLO_BYTES = 96;
export const PROOF_BYTES = 32;
export const ANSWER_BYTES = 64;
/** The dialer's last word. */
export const CONFIRMATION = Uint8Array.of(1);

const MAGIC = 0x31505442_43525400n; // '\0TRCBTP1' as the bytes lie in memory

/** What the listener says; all but OK end the connection. */
export const Status = { OK: 0, VERSION: 1, SECRET: 2, DUPLICATE: 3, UNKNOWN: 4 } as const;
export type Status = (typeof Status)[keyof typeof Status];

export interface Hello {
  /** The dialer's own number. */
  readonly member: number;
  /** Whom it looks for: number and random id. */
  readonly target: number;
  readonly targetId: Uint8Array;
  /** Which of how many connections between the two this is. */
  readonly index: number;
  readonly count: number;
  readonly nonce: Uint8Array;
}

export interface Answer {
  readonly version: number;
  readonly status: number;
  /** The listener's nonce in its first answer, its proof in the second. */
  readonly body: Uint8Array;
}

export function writeHello(hello: Hello, version: number = PROTOCOL_VERSION): Uint8Array {
  const bytes = new Uint8Array(HELLO_BYTES);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, MAGIC, true);
  view.setUint32(8, version, true);
  view.setUint32(12, hello.member, true);
  view.setUint32(16, hello.target, true);
  view.setUint16(20, hello.index, true);
  view.setUint16(22, hello.count, true);
  bytes.set(hello.targetId, 24);
  bytes.set(hello.nonce, 40);
  return bytes;
}

/** Undefined for bytes that are no hello at all; of another version only the version is read. */
export function readHello(
  bytes: Uint8Array,
): { readonly version: number; readonly hello: Hello } | undefined {
  if (!startsLikeHello(bytes.subarray(0, 8))) return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, HELLO_BYTES);
  const hello: Hello = {
    member: view.getUint32(12, true),
    target: view.getUint32(16, true),
    index: view.getUint16(20, true),
    count: view.getUint16(22, true),
    targetId: bytes.slice(24, 24 + ID_BYTES),
    nonce: bytes.slice(40, 40 + NONCE_BYTES),
  };
  return { version: view.getUint32(8, true), hello };
}

/** Whether the first bytes, be they ever so few, are those of a hello. */
export function startsLikeHello(bytes: Uint8Array): boolean {
  for (let i = 0; i < Math.min(bytes.length, 8); i++) {
    if (bytes[i] !== Number((MAGIC >> BigInt(8 * i)) & 0xffn)) return false;
  }
  return true;
}

export function writeAnswer(status: Status, body: Uint8Array = new Uint8Array(0)): Uint8Array {
  const bytes = new Uint8Array(ANSWER_BYTES);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, MAGIC, true);
  view.setUint32(8, PROTOCOL_VERSION, true);
  view.setUint32(12, status, true);
  bytes.set(body, 16);
  return bytes;
}

/** Undefined for bytes that are no answer of any version. */
export function readAnswer(bytes: Uint8Array): Answer | undefined {
  if (!startsLikeHello(bytes.subarray(0, 8))) return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, ANSWER_BYTES);
  return {
    version: view.getUint32(8, true),
    status: view.getUint32(12, true),
    body: bytes.slice(16, 16 + NONCE_BYTES),
  };
}

/** `channel` is that of the TLS connection; undefined without TLS. */
export function prove(
  key: Uint8Array,
  role: Role,
  hello: Hello,
  listenerNonce: Uint8Array,
  channel: string | undefined,
): Uint8Array {
  return Buffer.from(transcriptOf(hello, listenerNonce, channel).answer(key, role), 'hex');
}

export function isProof(
  given: Uint8Array,
  key: Uint8Array,
  role: Role,
  hello: Hello,
  listenerNonce: Uint8Array,
  channel: string | undefined,
): boolean {
  return transcriptOf(hello, listenerNonce, channel).verify(key, role, hex(given));
}

function transcriptOf(hello: Hello, listenerNonce: Uint8Array, channel: string | undefined): Transcript {
  const transcript = new Transcript(PURPOSE, PROTOCOL_VERSION, channel);
  transcript.add({ hello: hex(writeHello(hello)) });
  transcript.add({ challenge: hex(listenerNonce) });
  return transcript;
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}
