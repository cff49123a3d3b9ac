/**
 * One connection as a stream of messages, both ways, without ever waiting: headers through small buffers, bodies
 * straight from and into the ranges of the space where they belong. It knows nothing of what is said. Invariants: a
 * message that was begun is sent to its end; only frames within the limits are read; after `ended` is set nothing
 * moves any more.
 */
import type { Segment, SharedSpace } from '../../memory/index.ts';
import { EAGAIN, EINTR, errorName, SpaceBytes } from '../../sockets/index.ts';
import type { ByteRange, Libc } from '../../sockets/index.ts';
import { decodeHeader, decodePrefix, encodeHead, PREFIX_BYTES, ProtocolFault } from './frame.ts';
import type { FrameLimits } from './frame.ts';
import { KernelVectors, Scatter } from './scattered-bytes.ts';

export type Header = Readonly<Record<string, unknown>>;

/** Where a body goes and what happens when all of it is there. */
export interface Incoming {
  /** Ranges of exactly the announced length; undefined: nobody wants the bytes. */
  readonly into: readonly ByteRange[] | undefined;
  readonly done: () => void;
  /** The connection ended before all of it was there. */
  readonly dropped?: (() => void) | undefined;
}

export interface StreamUser {
  /** A header of so many bytes came. Throws `ProtocolFault` if it may not. */
  receive(header: Header, bodyBytes: number, headerBytes: number): Incoming;
}

/** Where what a stream takes of this process is counted, together with that of others. */
export interface StreamAccount {
  /** Unsent messages take so many bytes more, or fewer. */
  addUnsent(bytes: number): void;
  /** Whether there is room for a header that comes in parts. */
  hasRoom(bytes: number): boolean;
  /** A header that comes in parts takes so many bytes more, or fewer. */
  addUnfinished(bytes: number): void;
}

interface Outgoing {
  head: Uint8Array;
  readonly body: Scatter | undefined;
  readonly onSent: (() => void) | undefined;
  /** What it takes of this process until it is sent; the body lies elsewhere. */
  readonly heldBytes: number;
}

/** About what the bookkeeping of a message, and of a range of its body, takes. */
const MESSAGE_BYTES = 256;
const RANGE_BYTES = 64;

/** What all connections of a thread share. */
export class StreamResources {
  readonly space: SharedSpace;
  readonly libc: Libc;
  readonly bytes: SpaceBytes;
  readonly vectors: KernelVectors;
  /** Takes the bytes that nobody wants. */
  readonly waste: ByteRange;
  readonly #segment: Segment;

  constructor(space: SharedSpace, libc: Libc) {
    this.space = space;
    this.libc = libc;
    this.bytes = new SpaceBytes(space);
    this.vectors = new KernelVectors(space, libc);
    this.#segment = space.allocate(WASTE_BYTES);
    this.waste = { byteOffset: this.#segment.byteOffset, byteLength: WASTE_BYTES };
  }

  close(): void {
    this.vectors.close();
    this.#segment.close();
  }
}

const WASTE_BYTES = 64 * 1024;
/** Few, because the start of a body that comes with its header is copied once more. */
const STAGED_BYTES = 16 * 1024;
const always = (): boolean => true;
/** Calls of one turn; then other connections have theirs. */
const CALLS_A_TURN = 16;

/** Bytes before the first frame, by which a tunnel says who has come or what went wrong. */
export interface Preface {
  readonly bytes: number;
  take(bytes: Uint8Array): void;
}

export class MessageStream {
  readonly fd: number;
  /** Called when there is something to send, or it has ended. Default: nothing is called. */
  onChange: (() => void) | undefined;
  #ended: string | ProtocolFault | undefined;
  limits: FrameLimits;
  /** Receives messages; replaced when the other side has authenticated. */
  user: StreamUser;
  /** Awaited before the first frame; undefined: none, or it has come. */
  preface: Preface | undefined;
  readonly #resources: StreamResources;
  readonly #queue: Outgoing[] = [];
  #account: StreamAccount | undefined;
  #heldBytes = 0;
  #isInterrupted = false;
  readonly #staged = new Uint8Array(STAGED_BYTES);
  #start = 0;
  #end = 0;
  #announced: FrameLimits | undefined;
  /** A header longer than the staging, as far as it has come. */
  #long: { readonly bytes: Uint8Array; filled: number } | undefined;
  #incoming:
    | (Pick<Incoming, 'done' | 'dropped'> & { readonly scatter: Scatter; readonly wanted: boolean })
    | undefined;
  #isClosed = false;

  constructor(fd: number, resources: StreamResources, limits: FrameLimits, user: StreamUser) {
    this.fd = fd;
    this.limits = limits;
    this.#resources = resources;
    this.user = user;
  }

  /** Why nothing can be said or heard any more: an errno name, 'end', 'closed' or a fault of the other side. */
  get ended(): string | ProtocolFault | undefined {
    return this.#ended;
  }

  set ended(reason: string | ProtocolFault | undefined) {
    this.#ended = reason;
    this.onChange?.();
  }

  get hasUnsent(): boolean {
    return this.#queue.length > 0;
  }

  /** What the messages take that are not sent yet, without their bodies. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** From now on what it takes of this process is counted there. */
  set account(account: StreamAccount) {
    this.#account = account;
    account.addUnsent(this.#heldBytes);
  }

  /** Whether a header comes for which there is no room yet; until there is, nothing is read. */
  get isBlocked(): boolean {
    const { headerBytes } = this.#announced ?? { headerBytes: 0 };
    const isLong = headerBytes > STAGED_BYTES && this.#long === undefined;
    return isLong && this.#account?.hasRoom(headerBytes) === false;
  }

  /** Whether a message has begun to come that has not come to its end. */
  get isInMessage(): boolean {
    return this.#incoming !== undefined || this.#announced !== undefined || this.#end > this.#start;
  }

  /** Whether `read` stopped before it had understood all that had come; the kernel does not tell of that. */
  get isInterrupted(): boolean {
    return this.#isInterrupted;
  }

  /** The ranges must stay as they are until the message is sent. */
  send(header: object, body: readonly ByteRange[] = [], onSent?: () => void): void {
    const scatter = body.length === 0 ? undefined : new Scatter(body);
    const head = encodeHead(header, scatter?.left ?? 0);
    const heldBytes = MESSAGE_BYTES + head.length + RANGE_BYTES * body.length;
    this.#hold(heldBytes);
    this.#queue.push({ head, body: scatter, onSent, heldBytes });
    this.onChange?.();
  }

  /** Before all messages: what a tunnel is to be told. */
  sendPreface(bytes: Uint8Array): void {
    this.#queue.push({ head: bytes, body: undefined, onSent: undefined, heldBytes: 0 });
  }

  /** Sends what the kernel takes, as long as it may go on; true if anything moved. */
  write(mayGoOn: () => boolean = always): boolean {
    let moved = false;
    const { libc, vectors } = this.#resources;
    for (let calls = 0; calls < CALLS_A_TURN && this.ended === undefined; calls++) {
      if (calls > 0 && !mayGoOn()) return moved;
      const next = this.#queue[0];
      if (next === undefined) return moved;
      const sent =
        next.head.length > 0 ? libc.sendBytes(this.fd, next.head) : vectors.send(this.fd, next.body!);
      if (!this.#moved(sent)) return moved;
      moved = true;
      if (next.head.length > 0) next.head = next.head.subarray(sent);
      else next.body!.advance(sent);
      if (next.head.length > 0 || (next.body?.left ?? 0) > 0) continue;
      this.#queue.shift();
      this.#hold(-next.heldBytes);
      next.onSent?.();
    }
    return moved;
  }

  /** Reads what is there, as long as it may go on; true if anything moved. */
  read(mayGoOn: () => boolean = always): boolean {
    let moved = false;
    this.#isInterrupted = false;
    try {
      for (let calls = 0; this.ended === undefined; calls++) {
        while (this.ended === undefined && !this.#isInterrupted && this.#take()) {
          moved = true;
          this.#isInterrupted = !mayGoOn();
        }
        if (this.#isInterrupted || calls === CALLS_A_TURN || this.ended !== undefined) break;
        if (!this.#receive()) return moved || this.ended !== undefined;
        moved = true;
        // Long bodies take several calls.
        if (this.#incoming) this.#isInterrupted = !mayGoOn();
      }
    } catch (error) {
      if (!(error instanceof ProtocolFault)) throw error;
      this.ended = error;
    }
    return moved;
  }

  /** A last attempt to say why it ends; what does not go at once is lost. */
  farewell(): void {
    const reason = this.ended;
    this.ended = undefined;
    this.write();
    this.ended = reason;
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.ended ??= 'closed';
    for (const { onSent } of this.#queue.splice(0)) onSent?.();
    this.#hold(-this.#heldBytes);
    if (this.#long) this.#account?.addUnfinished(-this.#long.bytes.length);
    this.#long = undefined;
    this.#incoming?.dropped?.();
    this.#incoming = undefined;
    this.#resources.libc.close(this.fd);
  }

  #hold(bytes: number): void {
    this.#heldBytes += bytes;
    this.#account?.addUnsent(bytes);
  }

  /** One call of the kernel: into the body, a long header, or the staging. */
  #receive(): boolean {
    const { bytes, libc, vectors, waste } = this.#resources;
    const incoming = this.#incoming;
    if (incoming) {
      const got = incoming.wanted
        ? vectors.receive(this.fd, incoming.scatter)
        : libc.receive(
            this.fd,
            bytes.base + waste.byteOffset,
            Math.min(waste.byteLength, incoming.scatter.left),
          );
      if (!this.#moved(got)) return false;
      this.#advanceBody(got);
      return true;
    }
    const long = this.#long;
    if (long) {
      const got = libc.receiveBytes(this.fd, long.bytes.subarray(long.filled));
      if (!this.#moved(got)) return false;
      long.filled += got;
      return true;
    }
    if (this.#start > 0) {
      this.#staged.copyWithin(0, this.#start, this.#end);
      this.#end -= this.#start;
      this.#start = 0;
    }
    const got = libc.receiveBytes(this.fd, this.#staged.subarray(this.#end));
    if (!this.#moved(got)) return false;
    this.#end += got;
    return true;
  }

  /** Understands one thing more of what has come; false if more must come first. */
  #take(): boolean {
    if (this.#incoming) return this.#takeStagedBody(this.#incoming);
    const available = this.#end - this.#start;
    if (this.preface) {
      const { preface } = this;
      const { bytes } = preface;
      if (available < bytes) return false;
      this.preface = undefined;
      preface.take(this.#staged.slice(this.#start, this.#start + bytes));
      this.#start += bytes;
      return true;
    }
    if (this.#announced === undefined) {
      if (available < PREFIX_BYTES) return false;
      this.#announced = decodePrefix(this.#staged.subarray(this.#start), this.limits);
      this.#start += PREFIX_BYTES;
      return true;
    }
    const { headerBytes } = this.#announced;
    if (this.#long) {
      if (this.#long.filled < headerBytes) return false;
      const { bytes } = this.#long;
      this.#long = undefined;
      this.#account?.addUnfinished(-bytes.length);
      this.#open(bytes);
      return true;
    }
    if (available >= headerBytes) {
      const header = this.#staged.subarray(this.#start, this.#start + headerBytes);
      this.#start += headerBytes;
      this.#open(header);
      return true;
    }
    if (headerBytes > STAGED_BYTES) {
      // What waits here is looked at again when there is room, though the kernel has nothing new.
      if (this.isBlocked) {
        this.#isInterrupted = true;
        return false;
      }
      this.#account?.addUnfinished(headerBytes);
      const bytes = new Uint8Array(headerBytes);
      bytes.set(this.#staged.subarray(this.#start, this.#end));
      this.#long = { bytes, filled: available };
      this.#start = this.#end;
    }
    return false;
  }

  #open(headerBytes: Uint8Array): void {
    const { bodyBytes } = this.#announced!;
    this.#announced = undefined;
    const { into, done, dropped } = this.user.receive(
      decodeHeader(headerBytes),
      bodyBytes,
      headerBytes.length,
    );
    if (bodyBytes === 0) return done();
    const ranges = into ?? [{ byteOffset: 0, byteLength: bodyBytes }];
    const scatter = new Scatter(ranges);
    if (scatter.left !== bodyBytes) {
      throw new ProtocolFault(`sent a body of ${bodyBytes} bytes where ${scatter.left} were expected`);
    }
    this.#incoming = { done, dropped, scatter, wanted: into !== undefined };
  }

  #takeStagedBody({ scatter, wanted }: { readonly scatter: Scatter; readonly wanted: boolean }): boolean {
    const bytes = Math.min(this.#end - this.#start, scatter.left);
    if (bytes === 0) return false;
    if (wanted) {
      let from = this.#start;
      scatter.peek(Infinity, bytes, (byteOffset, count) => {
        this.#resources.bytes.bytes.set(this.#staged.subarray(from, from + count), byteOffset);
        from += count;
      });
    }
    this.#start += bytes;
    this.#advanceBody(bytes);
    return true;
  }

  #advanceBody(bytes: number): void {
    const { scatter, done } = this.#incoming!;
    scatter.advance(bytes);
    if (scatter.left > 0) return;
    this.#incoming = undefined;
    done();
  }

  /** Whether bytes moved; notes why they never will again. */
  #moved(result: number): boolean {
    if (result > 0) return true;
    if (result === 0) this.ended = 'end';
    else if (result !== -EAGAIN && result !== -EINTR) this.ended = errorName(result);
    return false;
  }
}
