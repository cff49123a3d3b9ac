/**
 * Whoever dials a TCP transport without being one: raw bytes over `node:net`, and a handshake by hand for those who know
 * the secret and misbehave afterwards. Invariant: a stranger never keeps a test waiting, for all waits have a deadline.
 */
import { once } from 'node:events';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { keyOfSecret } from '../../src/sockets/index.ts';
import {
  ANSWER_BYTES,
  CONFIRMATION,
  prove,
  readAnswer,
  Status,
  writeHello,
} from '../../src/transport/tcp/handshake.ts';
import type { Hello } from '../../src/transport/tcp/handshake.ts';
import type { TcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import { SECRET } from './tcp-pair.ts';

export class Stranger {
  readonly socket: Socket;
  #received = Buffer.alloc(0);
  #closed = false;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (bytes) => (this.#received = Buffer.concat([this.#received, bytes])));
    socket.on('close', () => (this.#closed = true));
    socket.on('error', () => undefined);
  }

  /** `from`: an address of this host. */
  static async dial({ address }: TcpTransport, from = '127.0.0.1'): Promise<Stranger> {
    const socket = connect({ host: address.host, port: address.port, localAddress: from, noDelay: true });
    await once(socket, 'connect');
    return new Stranger(socket);
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  say(bytes: Uint8Array): void {
    this.socket.write(bytes);
  }

  /** The next bytes, taken from what came; undefined while there are too few. */
  take(count: number): Uint8Array | undefined {
    if (this.#received.length < count) return undefined;
    const bytes = Uint8Array.from(this.#received.subarray(0, count));
    this.#received = this.#received.subarray(count);
    return bytes;
  }

  close(): void {
    this.socket.destroy();
  }
}

export function helloTo(transport: TcpTransport, member: number, change: Partial<Hello> = {}): Hello {
  return {
    member,
    target: transport.member,
    targetId: Buffer.from(transport.address.id, 'hex'),
    index: 0,
    count: 1,
    nonce: new Uint8Array(32).fill(member & 0xff),
    ...change,
  };
}

/**
 * Says hello, proves itself, and confirms unless it is to give up before; returns the last status that the transport gave,
 * or 'closed'.
 */
export async function introduce(
  stranger: Stranger,
  hello: Hello,
  until: (condition: () => boolean) => Promise<void>,
  options: { readonly secret?: string; readonly version?: number; readonly confirms?: boolean } = {},
): Promise<number | 'closed'> {
  stranger.say(writeHello(hello, options.version));
  const challenge = await answerOf(stranger, until);
  if (challenge === undefined) return 'closed';
  if (challenge.status !== Status.OK) return challenge.status;
  const key = keyOfSecret(options.secret ?? SECRET);
  stranger.say(prove(key, 'caller', hello, challenge.body, undefined));
  const answer = await answerOf(stranger, until);
  if (answer?.status === Status.OK && options.confirms !== false) stranger.say(CONFIRMATION);
  return answer?.status ?? 'closed';
}

async function answerOf(
  stranger: Stranger,
  until: (condition: () => boolean) => Promise<void>,
): Promise<ReturnType<typeof readAnswer>> {
  let bytes: Uint8Array | undefined;
  await until(() => (bytes ??= stranger.take(ANSWER_BYTES)) !== undefined || stranger.isClosed);
  return bytes && readAnswer(bytes);
}
