/**
 * The sending half of a connection: a queue of frames, written as the kernel takes them. Headers and small payloads are
 * gathered in a staging range, so that several go in one call; large payloads go straight from their region. Invariants:
 * a frame that was begun is sent to its end; after `ended` is set nothing is written any more.
 */
import { EAGAIN, EINTR, errorName } from '../../sockets/index.ts';
import type { ByteRange, Libc, SpaceBytes } from '../../sockets/index.ts';
import { FRAME_BYTES, writeFrame } from './frame.ts';
import type { OutgoingPart } from './messages.ts';

/** Payloads up to this size are copied behind their header: a copy is cheaper than a call. */
const SMALL_BYTES = 16 * 1024;
/** Bytes of one call, few enough that both directions of a connection take turns. */
const CALL_BYTES = 1024 * 1024;
/** The sent start of the queue is cut off when it is so long. */
const MAX_SENT_IN_QUEUE = 1024;

export class FrameWriter {
  /** Payload bytes that are not sent yet, for the choice among connections. */
  queuedBytes = 0;
  /** Why nothing more can be written. */
  ended: string | undefined;

  readonly #fd: number;
  readonly #space: SpaceBytes;
  readonly #staging: ByteRange;
  readonly #view: DataView;
  readonly #libc: Libc;
  readonly #queue: OutgoingPart[] = [];
  /** The first part of the queue that is not begun. */
  #head = 0;
  /** Staged bytes still to be sent. */
  #start = 0;
  #end = 0;
  /** The large payload that follows the staged bytes, and how much of it is sent. */
  #large: OutgoingPart | undefined;
  #largeSent = 0;
  #frames = 0;

  constructor(fd: number, space: SpaceBytes, staging: ByteRange, libc: Libc) {
    this.#libc = libc;
    this.#fd = fd;
    this.#space = space;
    this.#staging = staging;
    this.#view = new DataView(space.bytes.buffer, staging.byteOffset, staging.byteLength);
  }

  get hasUnsent(): boolean {
    return this.#end > this.#start || this.#large !== undefined || this.#head < this.#queue.length;
  }

  enqueue(part: OutgoingPart): void {
    this.queuedBytes += part.frame.bytes;
    this.#queue.push(part);
  }

  /** Sends what the kernel takes, one large call at most; true if anything changed. */
  write(): boolean {
    let changed = false;
    while (this.ended === undefined) {
      if (this.#end === this.#start && this.#large === undefined) this.#stage();
      if (this.#end > this.#start) {
        const wanted = this.#end - this.#start;
        const address = this.#space.base + this.#staging.byteOffset + this.#start;
        const sent = this.#libc.send(this.#fd, address, wanted, this.#large !== undefined);
        if (sent < 0) return this.#failed(sent) || changed;
        this.#start += sent;
        if (sent < wanted) return true;
        changed = true;
      } else if (this.#large !== undefined) {
        return this.#writeLarge(this.#large) || changed;
      } else {
        return changed;
      }
    }
    return changed;
  }

  /** Drops what is queued for the messages; what is half sent goes on from a copy, so that regions are free. */
  forget(isForgotten: (part: OutgoingPart) => boolean): void {
    for (let i = this.#queue.length - 1; i >= this.#head; i--) {
      const part = this.#queue[i]!;
      if (!isForgotten(part)) continue;
      this.queuedBytes -= part.frame.bytes;
      this.#queue.splice(i, 1);
    }
    const part = this.#large;
    if (part?.sending === undefined || !isForgotten(part)) return;
    const from = part.sending.region.byteOffset + part.frame.offset;
    const heap = this.#space.bytes.slice(from, from + part.frame.bytes);
    this.#large = { frame: part.frame, sending: undefined, heap };
  }

  /** Fills the staging with the next frames, up to the first large payload. */
  #stage(): void {
    this.#start = 0;
    this.#end = 0;
    while (this.#head < this.#queue.length && this.#large === undefined) {
      const part = this.#queue[this.#head]!;
      const { bytes } = part.frame;
      const isSmall = bytes <= SMALL_BYTES;
      if (this.#end + FRAME_BYTES + (isSmall ? bytes : 0) > this.#staging.byteLength) break;
      this.#head++;
      writeFrame(this.#view, this.#end, part.frame, this.#frames);
      this.#frames = (this.#frames + 1) >>> 0;
      this.#end += FRAME_BYTES;
      if (isSmall) {
        this.#stagePayload(part);
      } else {
        this.#large = part;
        this.#largeSent = 0;
      }
    }
    if (this.#head === this.#queue.length) this.#queue.length = 0;
    else if (this.#head >= MAX_SENT_IN_QUEUE) this.#queue.splice(0, this.#head);
    else return;
    this.#head = 0;
  }

  #stagePayload({ frame, sending, heap }: OutgoingPart): void {
    const to = this.#staging.byteOffset + this.#end;
    if (heap) this.#space.bytes.set(heap, to);
    else if (sending) this.#space.copy(to, sending.region.byteOffset + frame.offset, frame.bytes);
    this.#end += frame.bytes;
    this.queuedBytes -= frame.bytes;
    sending?.partSent();
  }

  #writeLarge({ frame, sending, heap }: OutgoingPart): boolean {
    const from = this.#largeSent;
    const wanted = Math.min(frame.bytes - from, CALL_BYTES);
    const sent = sending
      ? this.#libc.send(
          this.#fd,
          this.#space.base + sending.region.byteOffset + frame.offset + from,
          wanted,
          false,
        )
      : this.#libc.sendBytes(this.#fd, heap!.subarray(from, from + wanted));
    if (sent < 0) return this.#failed(sent);
    this.#largeSent += sent;
    this.queuedBytes -= sent;
    if (this.#largeSent === frame.bytes) {
      this.#large = undefined;
      sending?.partSent();
    }
    return true;
  }

  /** Whether it is more than a full socket. Reading goes on: a reason may still be on its way. */
  #failed(result: number): boolean {
    if (result === -EAGAIN || result === -EINTR) return false;
    this.ended = errorName(result);
    return true;
  }
}
