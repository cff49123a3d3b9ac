/**
 * The receiving half of a connection: reads frames and asks a sink where their payloads go. Headers and what comes with
 * them pass through a staging range; the rest of a large payload is received straight into its region. Invariants: only
 * checked frames reach the sink; after `ended` is set nothing is read any more.
 */
import { EAGAIN, EINTR, errorName } from '../../sockets/index.ts';
import type { ByteRange, Libc, SpaceBytes } from '../../sockets/index.ts';
import { FRAME_BYTES, ProtocolFault, readFrame } from './frame.ts';
import type { Frame } from './frame.ts';
import type { IncomingPart } from './messages.ts';

/** Takes the frames of one connection. */
export interface FrameSink {
  /** Where the part goes; undefined if there is no room now: reading pauses. Throws a `ProtocolFault`. */
  admit(frame: Frame): IncomingPart | undefined;
  /** All bytes of the part are here. */
  finish(part: IncomingPart): void;
}

/** Bytes of one call, few enough that both directions of a connection take turns. */
const CALL_BYTES = 1024 * 1024;
const DRAIN_CALLS = 32;

export class FrameReader {
  /** Why nothing more can be read: an errno name, 'end' of the stream, or a fault of the protocol. */
  ended: string | ProtocolFault | undefined;

  readonly #fd: number;
  readonly #space: SpaceBytes;
  readonly #staging: ByteRange;
  readonly #view: DataView;
  readonly #scratch: ByteRange;
  readonly #sink: FrameSink;
  readonly #libc: Libc;
  /** Staged bytes that are not looked at yet. */
  #start = 0;
  #end = 0;
  /** The part whose payload is coming. */
  #part: IncomingPart | undefined;
  /** The frame for which there was no room. */
  #paused: Frame | undefined;
  #frames = 0;

  /** Bytes that nobody wants are received into `scratch`. */
  constructor(
    fd: number,
    space: SpaceBytes,
    staging: ByteRange,
    scratch: ByteRange,
    sink: FrameSink,
    libc: Libc,
  ) {
    this.#libc = libc;
    this.#fd = fd;
    this.#space = space;
    this.#staging = staging;
    this.#view = new DataView(space.bytes.buffer, staging.byteOffset, staging.byteLength);
    this.#scratch = scratch;
    this.#sink = sink;
  }

  get isPaused(): boolean {
    return this.#paused !== undefined;
  }

  /** Reads what is there, one large call at most; true if anything changed. */
  read(): boolean {
    let changed = false;
    let refilled = false;
    try {
      while (this.ended === undefined) {
        if (this.#part) {
          if (this.#end === this.#start) return this.#receivePart(this.#part) || changed;
          this.#takeStaged(this.#part);
        } else if (this.#paused !== undefined || this.#end - this.#start >= FRAME_BYTES) {
          if (!this.#nextFrame()) return changed;
        } else {
          // One refill for each call: other connections have their turn before the next.
          if (refilled || !this.#refill()) return changed;
          refilled = true;
        }
        changed = true;
      }
    } catch (error) {
      if (!(error instanceof ProtocolFault)) throw error;
      this.ended = error;
    }
    return true;
  }

  /** Reads and drops some of what is there, for a connection that is being closed. */
  drain(): void {
    const { byteOffset, byteLength } = this.#scratch;
    for (let i = 0; i < DRAIN_CALLS && this.ended === undefined; i++) {
      if (!this.#received(this.#libc.receive(this.#fd, this.#space.base + byteOffset, byteLength))) return;
    }
  }

  /** The next header, from the bytes that are here; false if there is no room for its message. */
  #nextFrame(): boolean {
    let frame = this.#paused;
    if (frame === undefined) {
      frame = readFrame(this.#view, this.#start, this.#frames);
      this.#start += FRAME_BYTES;
      this.#frames = (this.#frames + 1) >>> 0;
    }
    const part = this.#sink.admit(frame);
    this.#paused = part ? undefined : frame;
    if (part === undefined) return false;
    this.#part = part;
    this.#advance(part, 0);
    return true;
  }

  #takeStaged(part: IncomingPart): void {
    const bytes = Math.min(part.end - part.next, this.#end - this.#start);
    const from = this.#staging.byteOffset + this.#start;
    const { receiving, heap } = part.message;
    if (receiving) this.#space.copy(receiving.region.byteOffset + part.next, from, bytes);
    else heap?.set(this.#space.bytes.subarray(from, from + bytes), part.next);
    this.#start += bytes;
    this.#advance(part, bytes);
  }

  #receivePart(part: IncomingPart): boolean {
    const { receiving, heap } = part.message;
    const wanted = Math.min(part.end - part.next, CALL_BYTES);
    const { base } = this.#space;
    let got: number;
    if (receiving) {
      got = this.#libc.receive(this.#fd, base + receiving.region.byteOffset + part.next, wanted);
    } else if (heap) {
      got = this.#libc.receiveBytes(this.#fd, heap.subarray(part.next, part.next + wanted));
    } else {
      const { byteOffset, byteLength } = this.#scratch;
      got = this.#libc.receive(this.#fd, base + byteOffset, Math.min(wanted, byteLength));
    }
    if (!this.#received(got)) return this.ended !== undefined;
    this.#advance(part, got);
    return true;
  }

  #advance(part: IncomingPart, bytes: number): void {
    part.next += bytes;
    if (part.next < part.end) return;
    this.#part = undefined;
    this.#sink.finish(part);
  }

  #refill(): boolean {
    const left = this.#end - this.#start;
    const { byteOffset, byteLength } = this.#staging;
    if (left > 0) this.#space.bytes.copyWithin(byteOffset, byteOffset + this.#start, byteOffset + this.#end);
    this.#start = 0;
    this.#end = left;
    const address = this.#space.base + byteOffset + left;
    const got = this.#libc.receive(this.#fd, address, byteLength - left);
    if (!this.#received(got)) return this.ended !== undefined;
    this.#end += got;
    return true;
  }

  #received(got: number): boolean {
    if (got > 0) return true;
    if (got === 0) this.ended = 'end';
    else if (got !== -EAGAIN && got !== -EINTR) this.ended = errorName(got);
    return false;
  }
}
