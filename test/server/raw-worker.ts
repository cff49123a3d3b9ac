/**
 * A worker that speaks the protocol of parameter servers by hand, over `node:net`, one frame at a time: for those who know
 * the nonce and misbehave, and for those who do not. It checks nothing of what it says. Invariant: a raw worker
 * never keeps a test waiting, for all waits have a deadline.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { SERVER_PROTOCOL_VERSION, SERVER_PURPOSE } from '../../src/server/index.ts';
import type { ServiceAccess, ServiceSettings } from '../../src/server/index.ts';
import { encodeHead, PREFIX_BYTES } from '../../src/server/wire/frame.ts';
import { challenge, keyOfNonce, Transcript } from '../../src/sockets/index.ts';

const DEADLINE_MS = 15_000;

export const SETTINGS: ServiceSettings = {
  workers: 1,
  consistency: { kind: 'asynchronous' },
  combine: 'sum',
  aggregation: 'tall',
  rows: 'lazy',
  // Sums show a push that counts twice or not at all.
  updater: 'accumulate',
};

/** The answer to a request that is not of the protocol. */
export const FAULT = { header: { error: { code: 'PROTOCOL_VIOLATION' } } };

export interface Heard {
  readonly header: Record<string, unknown>;
  readonly body: Buffer;
}

export interface Identity {
  readonly worker?: number;
  readonly incarnation?: string;
  readonly settings?: unknown;
}

/** Where a server listens. */
export interface Listening {
  readonly port: number;
}

export class RawWorker {
  readonly socket: Socket;
  /** Every byte that it said, for those who record and replay. */
  readonly said: Buffer[] = [];
  /** Bytes that came in all. */
  heardBytes = 0;
  #received: Buffer = Buffer.alloc(0);
  #closed = false;
  #nextId = 1;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (bytes: Buffer) => {
      this.heardBytes += bytes.length;
      this.#received = this.#received.length === 0 ? bytes : Buffer.concat([this.#received, bytes]);
    });
    socket.on('error', () => undefined);
    socket.on('close', () => (this.#closed = true));
  }

  /** `from`: an address of this host. */
  static async dial({ port }: Listening, from = '127.0.0.1'): Promise<RawWorker> {
    const socket = connect({ port, host: '127.0.0.1', localAddress: from });
    await once(socket, 'connect');
    return new RawWorker(socket);
  }

  /** Dials and proves itself; fails unless it is welcome. */
  static async admitted(at: Listening, access: ServiceAccess, identity: Identity = {}): Promise<RawWorker> {
    const worker = await RawWorker.dial(at);
    const welcome = await worker.introduce(access, identity);
    if (welcome === 'closed' || welcome.header.kind !== 'welcome') {
      throw new Error(`not welcome: ${JSON.stringify(welcome)}`);
    }
    return worker;
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  say(header: object, body: Uint8Array = new Uint8Array(0)): void {
    this.write(Buffer.concat([encodeHead(header, body.length), body]));
  }

  write(bytes: Uint8Array): void {
    this.said.push(Buffer.from(bytes));
    if (!this.#closed) this.socket.write(bytes);
  }

  /** The next frame. */
  async hear(): Promise<Heard | 'closed'> {
    let heard: Heard | undefined;
    await until(() => (heard ??= this.take()) !== undefined || this.#closed);
    return heard ?? this.take() ?? 'closed';
  }

  /** A frame that is there whole. */
  take(): Heard | undefined {
    const bytes = this.#received;
    if (bytes.length < PREFIX_BYTES) return undefined;
    const bodyAt = PREFIX_BYTES + bytes.readUInt32LE(4);
    const end = bodyAt + Number(bytes.readBigUInt64LE(8));
    if (bytes.length < end) return undefined;
    this.#received = bytes.subarray(end);
    const text = bytes.subarray(PREFIX_BYTES, bodyAt).toString();
    return {
      header: JSON.parse(text) as Record<string, unknown>,
      body: Buffer.from(bytes.subarray(bodyAt, end)),
    };
  }

  /**
   * Says hello and proves; `forged` is the namespace that the proof is made for, if it is another; `change` what is sent
   * otherwise than was proved.
   */
  async introduce(
    access: ServiceAccess,
    identity: Identity = {},
    forged?: string,
    change: object = {},
  ): Promise<Heard | 'closed'> {
    const { worker = 0, incarnation = randomBytes(32).toString('hex'), settings = SETTINGS } = identity;
    const { namespace, nonce } = access;
    const hello = { kind: 'hello', version: SERVER_PROTOCOL_VERSION, namespace, nonce: challenge() };
    this.say(hello);
    const heard = await this.hear();
    if (heard === 'closed' || heard.header.kind !== 'challenge') return heard;
    const claim = { kind: 'proof', worker, incarnation, settings };
    const purpose = `${SERVER_PURPOSE} ${forged ?? namespace}`;
    const transcript = new Transcript(purpose, SERVER_PROTOCOL_VERSION, undefined);
    for (const message of [hello, heard.header, claim]) transcript.add(message);
    this.say({ ...claim, proof: transcript.answer(keyOfNonce(nonce), 'caller'), ...change });
    return this.hear();
  }

  /** One request and its answer; answers of earlier requests are passed over. */
  async ask(header: object, body?: Uint8Array): Promise<Heard | 'closed'> {
    const id = this.#nextId++;
    this.say({ id, ...header }, body);
    for (;;) {
      const heard = await this.hear();
      if (heard === 'closed' || heard.header.id === id || heard.header.kind === 'refused') return heard;
    }
  }

  /** Like `ask`, for requests that must not fail. */
  async done(header: object, body?: Uint8Array): Promise<Heard> {
    const heard = await this.ask(header, body);
    if (heard === 'closed' || heard.header.error !== undefined) {
      throw new Error(`refused: ${JSON.stringify(header)}: ${JSON.stringify(heard)}`);
    }
    return heard;
  }

  /** Key 'w' of 16 elements with these values, and list 0 with it, both staged. */
  async openKey(values: Float32Array): Promise<void> {
    await this.done(openRequest('w', values.length));
    await this.done({ op: 'values', batch: 0 }, bytesOf(values));
    await this.done({ op: 'list', list: 0, entries: [{ piece: 0, isInPlace: false }] });
  }

  async pull(): Promise<number[]> {
    const pull = { op: 'exchange', list: 0, first: 0, count: 1, push: false, pull: true };
    const { body } = await this.done({ ...pull, steps: [], samples: 1, skipped: [] });
    return [...floatsOf(body)];
  }

  async close(): Promise<void> {
    this.socket.destroy();
    await until(() => this.#closed);
  }
}

/** All of one key as one piece, in two ranges. */
export function openRequest(key: string, length: number, batch = 0, firstPiece = 0): object {
  const half = Math.floor(length / 2);
  const ranges = [
    [0, half],
    [half, length - half],
  ].filter(([, count]) => count! > 0);
  const pieces = [{ key: 0, start: 0, length, ranges }];
  return { op: 'open', batch, keys: [{ key, length }], pieces, firstPiece, awaitsValues: false };
}

export function pushRequest(step: number, change: object = {}): object {
  const push = { op: 'exchange', list: 0, first: 0, count: 1, push: true, pull: false };
  return { ...push, steps: [step], samples: 1, skipped: [], ...change };
}

export function bytesOf(values: Float32Array | Int32Array): Buffer {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength);
}

export function floatsOf(bytes: Uint8Array): Float32Array {
  return new Float32Array(Uint8Array.from(bytes).buffer);
}

export async function until(condition: () => boolean): Promise<void> {
  const deadlineMs = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > deadlineMs) throw new Error('waited in vain');
    await new Promise(setImmediate);
  }
}
