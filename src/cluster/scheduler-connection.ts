/**
 * One connection as the scheduler sees it: frames in and out, and when it was last heard. It decides nothing. Invariant:
 * after `refuse` or `drop` no frame comes from it any more, and what it still sends is thrown away unread.
 */
import type { Socket } from 'node:net';
import { createSecureContext, TLSSocket } from 'node:tls';
import type { SecureContext } from 'node:tls';
import { channelOf } from '../sockets/index.ts';
import type { Admission } from './admission.ts';
import { encodeFrame, FrameReader, MAX_HANDSHAKE_BYTES, MAX_MEMBER_BYTES } from './frames.ts';

/** The scheduler's own certificate; members are told apart by the secret, not by certificates. */
export interface SchedulerTls {
  /** The certificate chain, in PEM. */
  readonly cert: string;
  /** Its private key, in PEM. */
  readonly key: string;
}

export function secureContext(tls: SchedulerTls | undefined): SecureContext | undefined {
  return tls && createSecureContext({ cert: tls.cert, key: tls.key });
}

export interface ConnectionListener {
  frame(frame: unknown): void;
  /** What came is not of the protocol. */
  fault(error: unknown): void;
  /** The other side is gone; told once, unless this side let go first. */
  gone(): void;
}

export class SchedulerConnection {
  readonly id: number;
  /** The address that it comes from. */
  readonly host: string;
  /** The same with its port, for the log. */
  readonly remote: string;
  readonly openedAt: number;
  /** The handshake; undefined once it has joined. */
  admission: Admission | undefined;
  /** When the last bytes came. */
  heardAt: number;
  /** Whether it has been refused and is only kept until the refusal is read. */
  refused = false;
  readonly #raw: Socket;
  readonly #socket: Socket;
  readonly #reader = new FrameReader(MAX_HANDSHAKE_BYTES);
  #over = false;
  #anyBytes = false;

  constructor(id: number, raw: Socket, context: SecureContext | undefined, admission: Admission) {
    this.id = id;
    this.#raw = raw;
    this.#socket = context ? new TLSSocket(raw, { isServer: true, secureContext: context }) : raw;
    this.host = raw.remoteAddress ?? 'unknown';
    this.remote = `${this.host}:${raw.remotePort ?? 0}`;
    this.admission = admission;
    this.openedAt = this.heardAt = performance.now();
    raw.setNoDelay(true);
  }

  /** What only the two ends of this TLS connection know; undefined without TLS. Only once something has come. */
  get channel(): string | undefined {
    return this.#socket instanceof TLSSocket ? channelOf(this.#socket) : undefined;
  }

  /** Bytes that were sent and not taken yet. */
  get backlog(): number {
    return this.#socket.writableLength;
  }

  /** Whether it has begun to say something and not finished; 'nothing' if it never said anything. */
  get said(): 'nothing' | 'half a frame' | 'frames' {
    if (!this.#anyBytes) return 'nothing';
    return this.#reader.partial ? 'half a frame' : 'frames';
  }

  listen(listener: ConnectionListener): void {
    const gone = () => {
      if (this.#over) return;
      this.#over = true;
      listener.gone();
    };
    this.#socket.on('data', (chunk: Buffer) => this.#receive(chunk, listener));
    this.#socket.on('end', gone);
    this.#socket.on('close', gone);
    // What follows an error is 'close'; a broken TLS handshake may end only the stream above.
    this.#socket.on('error', () => this.#raw.destroy());
    if (this.#socket !== this.#raw) {
      this.#raw.on('error', () => this.#socket.destroy());
      this.#raw.on('close', gone);
    }
  }

  send(frame: Buffer): void {
    if (!this.#socket.destroyed && this.#socket.writable) this.#socket.write(frame);
  }

  /** From now on it is a member or waits to be one, and may send longer frames. */
  admit(): void {
    this.admission = undefined;
    this.#reader.maxBytes = MAX_MEMBER_BYTES;
  }

  /** Says why it may not join; whoever calls drops it when it has had time to read that. */
  refuse(reason: string, text: string): void {
    this.refused = true;
    // Unread bytes would turn the end into a reset, which overtakes the refusal: so reading goes on.
    if (this.#socket.writable) this.#socket.end(encodeFrame({ kind: 'refused', reason, text }));
  }

  /** Lets go at once; what was sent before still goes out if the other side takes it. */
  drop(): void {
    this.#over = true;
    this.#socket.destroySoon();
    if (this.#socket !== this.#raw) this.#raw.destroySoon();
  }

  destroy(): void {
    this.#over = true;
    this.#socket.destroy();
    this.#raw.destroy();
  }

  #receive(chunk: Buffer, listener: ConnectionListener): void {
    if (this.#over || this.refused) return;
    this.#anyBytes = true;
    this.heardAt = performance.now();
    this.#reader.push(chunk);
    try {
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) {
        listener.frame(frame);
        if (this.#over || this.refused) return;
      }
    } catch (error) {
      listener.fault(error);
    }
  }
}
