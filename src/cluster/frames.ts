/**
 * Frames of the scheduler's protocol: four bytes of length, big-endian, then so many bytes of JSON. Knows nothing of
 * what the messages mean (messages.ts). Invariant: a reader never holds more than one frame's limit and the chunk
 * that came last; a length above the limit is refused before a byte of it is kept.
 */

/** Longest frame of someone who has not been admitted yet; holds a title, a host and an address with ease. */
export const MAX_HANDSHAKE_BYTES = 8 * 1024;
/** Longest frame of a member. */
export const MAX_MEMBER_BYTES = 1024 * 1024;
/** Longest frame of the scheduler, which the member has verified: the addresses of all members. */
export const MAX_SCHEDULER_BYTES = 64 * 1024 * 1024;

const HEADER_BYTES = 4;

/** What came is not of the protocol. The message is a clause for a sentence: 'announced a frame of 5 GB'. */
export class ProtocolFault extends Error {
  override readonly name = 'ProtocolFault';
}

export function encodeFrame(message: object): Buffer {
  const text = JSON.stringify(message);
  const frame = Buffer.allocUnsafe(HEADER_BYTES + Buffer.byteLength(text));
  frame.writeUInt32BE(frame.length - HEADER_BYTES);
  frame.write(text, HEADER_BYTES);
  return frame;
}

export class FrameReader {
  /** Longest frame that is accepted, in bytes. May be raised between frames. */
  maxBytes: number;
  #chunks: Buffer[] = [];
  #bytes = 0;
  /** Length of the frame whose header has been read. */
  #length: number | undefined;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  /** Whether a frame has begun and not ended. */
  get partial(): boolean {
    return this.#bytes > 0 || this.#length !== undefined;
  }

  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
  }

  /** The next whole frame as parsed JSON; undefined when there is none yet. Throws `ProtocolFault`. */
  next(): unknown {
    if (this.#length === undefined) {
      if (this.#bytes < HEADER_BYTES) return undefined;
      const length = this.#take(HEADER_BYTES).readUInt32BE();
      if (length > this.maxBytes || length === 0) {
        throw new ProtocolFault(
          `announced a frame of ${length} bytes where 1 to ${this.maxBytes} are allowed`,
        );
      }
      this.#length = length;
    }
    if (this.#bytes < this.#length) return undefined;
    const text = this.#take(this.#length).toString('utf8');
    this.#length = undefined;
    try {
      return JSON.parse(text) as unknown;
    } catch {
      throw new ProtocolFault('sent a frame that is not JSON');
    }
  }

  #take(bytes: number): Buffer {
    const all = this.#chunks.length === 1 ? this.#chunks[0]! : Buffer.concat(this.#chunks);
    this.#bytes -= bytes;
    this.#chunks = this.#bytes > 0 ? [all.subarray(bytes)] : [];
    return all.subarray(0, bytes);
  }
}
