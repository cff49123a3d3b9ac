/**
 * Frames between workers and servers: sixteen bytes (a magic word, the length of the header, the length of the body), a
 * header in JSON, a body of raw bytes. What headers mean is said in `messages.ts`. Invariant: lengths above the limits
 * are refused before a byte of what they announce is kept.
 */

export const PREFIX_BYTES = 16;
/** 'TRPS' as the bytes lie in memory. */
const MAGIC = 0x53505254;

export interface FrameLimits {
  readonly headerBytes: number;
  readonly bodyBytes: number;
}

/** Limits of a connection that has not authenticated yet. */
export const STRANGER_LIMITS: FrameLimits = { headerBytes: 8 * 1024, bodyBytes: 0 };
/**
 * A header is understood in one go, whoever waits: the worst JSON of this length takes about 50 ms.
 * What is about more keys comes in several messages. Bodies are as large as a space.
 */
export const MEMBER_LIMITS: FrameLimits = { headerBytes: 512 * 2 ** 10, bodyBytes: 4 * 2 ** 30 };

/** What came is not of the protocol. The message is a clause for a sentence: 'announced a header of 5 GB'. */
export class ProtocolFault extends Error {
  override readonly name = 'ProtocolFault';
  /** What helps, for the one that made the fault. */
  readonly nextStep: string;

  constructor(message: string, nextStep = 'use the same version of Tributary on workers and servers') {
    super(message);
    this.nextStep = nextStep;
  }
}

/** Prefix and header in one piece. */
export function encodeHead(header: object, bodyBytes: number): Buffer {
  const text = JSON.stringify(header);
  const head = Buffer.allocUnsafe(PREFIX_BYTES + Buffer.byteLength(text));
  head.writeUInt32LE(MAGIC, 0);
  head.writeUInt32LE(head.length - PREFIX_BYTES, 4);
  head.writeBigUInt64LE(BigInt(bodyBytes), 8);
  head.write(text, PREFIX_BYTES);
  return head;
}

export function decodePrefix(bytes: Uint8Array, limits: FrameLimits): FrameLimits {
  const view = new DataView(bytes.buffer, bytes.byteOffset, PREFIX_BYTES);
  if (view.getUint32(0, true) !== MAGIC) throw new ProtocolFault('speaks another protocol');
  const headerBytes = view.getUint32(4, true);
  const bodyBytes = Number(view.getBigUint64(8, true));
  if (headerBytes === 0 || headerBytes > limits.headerBytes) {
    throw new ProtocolFault(
      `announced a header of ${headerBytes} bytes where 1 to ${limits.headerBytes} are allowed`,
    );
  }
  if (bodyBytes > limits.bodyBytes) {
    throw new ProtocolFault(`announced a body of ${bodyBytes} bytes where ${limits.bodyBytes} are allowed`);
  }
  return { headerBytes, bodyBytes };
}

/** Objects and lists within each other: several times what messages have. */
const MAX_DEPTH = 64;
/** A header that is no longer cannot be deep enough to exhaust a stack. */
const SHALLOW_BYTES = 4096;

export function decodeHeader(bytes: Uint8Array): Readonly<Record<string, unknown>> {
  if (bytes.length > SHALLOW_BYTES) checkNesting(bytes);
  let header: unknown;
  try {
    header = JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8'));
  } catch {
    throw new ProtocolFault('sent a header that is not JSON');
  }
  if (typeof header === 'object' && header !== null && !Array.isArray(header)) {
    return header as Readonly<Record<string, unknown>>;
  }
  throw new ProtocolFault('sent a header that is no object');
}

const [QUOTE, BACKSLASH, BRACKET, BRACE] = [0x22, 0x5c, 0x5b, 0x7b];
const [END_OF_LIST, END_OF_OBJECT] = [0x5d, 0x7d];

/** Before it is parsed, since what is nested deeply may exhaust the stack. */
function checkNesting(bytes: Uint8Array): void {
  let depth = 0;
  let isText = false;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i]!;
    if (isText) {
      if (byte === BACKSLASH) i++;
      else if (byte === QUOTE) isText = false;
    } else if (byte === QUOTE) isText = true;
    else if (byte === BRACKET || byte === BRACE) {
      if (++depth > MAX_DEPTH) throw new ProtocolFault(`sent a header nested deeper than ${MAX_DEPTH}`);
    } else if (byte === END_OF_LIST || byte === END_OF_OBJECT) depth--;
  }
}
