/** A client of the scheduler's protocol that says exactly what a test tells it to, right or wrong. */
import { once } from 'node:events';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { challenge, keyOfSecret, Transcript } from '../../src/sockets/index.ts';
import { encodeFrame, FrameReader } from '../../src/cluster/frames.ts';
import { PROTOCOL_VERSION, PURPOSE } from '../../src/cluster/messages.ts';
import type { SchedulerMessage } from '../../src/cluster/messages.ts';
import type { Scheduler } from '../../src/cluster/scheduler.ts';

export class RawClient {
  readonly socket: Socket;
  readonly #reader = new FrameReader(1 << 26);
  readonly #closed: Promise<unknown>;
  #wake = (): void => undefined;
  #over = false;

  /** `from`: an address of this host. */
  static async connect(scheduler: Scheduler, from = '127.0.0.1'): Promise<RawClient> {
    const [host, port] = scheduler.address.split(':') as [string, string];
    const socket = connect({ host, port: Number(port), localAddress: from });
    const client = new RawClient(socket);
    await once(socket, 'connect');
    return client;
  }

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (chunk: Buffer) => {
      this.#reader.push(chunk);
      this.#wake();
    });
    socket.on('error', () => undefined);
    this.#closed = new Promise((resolve) => socket.once('close', resolve));
    socket.once('close', () => {
      this.#over = true;
      this.#wake();
    });
  }

  send(message: object): void {
    this.socket.write(encodeFrame(message));
  }

  /** The next message; undefined when the connection is closed. */
  async next(): Promise<SchedulerMessage | undefined> {
    for (;;) {
      const frame = this.#reader.next();
      if (frame !== undefined) return frame as SchedulerMessage;
      if (this.#over) return undefined;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** The next message of this kind; others are passed over. */
  async until<K extends SchedulerMessage['kind']>(kind: K): Promise<Extract<SchedulerMessage, { kind: K }>> {
    for (;;) {
      const message = await this.next();
      if (!message) throw new Error(`the connection was closed before '${kind}' came`);
      if (message.kind === kind) return message as Extract<SchedulerMessage, { kind: K }>;
    }
  }

  /** Goes as far as a process that knows the secret. */
  async prove(secret: string): Promise<Transcript> {
    const transcript = new Transcript(PURPOSE, PROTOCOL_VERSION, undefined);
    const hello = { kind: 'hello', version: PROTOCOL_VERSION, nonce: challenge() };
    transcript.add(hello);
    this.send(hello);
    transcript.add(await this.until('challenge'));
    transcript.add({ kind: 'answer' });
    this.send({ kind: 'answer', proof: transcript.answer(keyOfSecret(secret), 'caller') });
    return transcript;
  }

  /** `change`: what is sent otherwise than was proved. */
  async join(secret: string, wantedRank?: number, change: object = {}): Promise<void> {
    const transcript = await this.prove(secret);
    transcript.add(await this.until('accepted'));
    const join = { kind: 'join', title: `raw ${wantedRank ?? ''}`, host: 'h', address: {}, wantedRank };
    transcript.add(join);
    this.send({ ...join, proof: transcript.answer(keyOfSecret(secret), 'caller'), ...change });
  }

  async closed(): Promise<void> {
    await this.#closed;
  }

  destroy(): void {
    this.socket.destroy();
  }
}
