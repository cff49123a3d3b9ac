/**
 * An administrator's side of one request to one server: dials, proves that it knows the secret,
 * asks, and checks that the answer comes from a server that knows it, too. Invariants: the secret
 * and nonces never travel; what somebody said who has not proved himself is quoted as such; every
 * wait has a deadline, and nothing is left open.
 */
import { once } from 'node:events';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { connect as connectTls, TLSSocket } from 'node:tls';
import { PeerError, quoted, unpack, UsageError } from '../../base/index.ts';
import type { PackedError, TributaryError } from '../../base/index.ts';
import {
  challenge,
  channelOf,
  isNonce,
  keyOfNonce,
  parseAddresses,
  Transcript,
} from '../../sockets/index.ts';
import type { TlsOptions } from '../../sockets/index.ts';
import { administratorKeyOf } from '../service-access.ts';
import { ADMINISTRATION_PURPOSE, ADMINISTRATION_VERSION, MAX_ANSWER_BYTES } from '../wire/administration.ts';
import type { AdministrationAnswers, AdministrationRequest } from '../wire/administration.ts';
import { decodeHeader, decodePrefix, encodeHead, PREFIX_BYTES, STRANGER_LIMITS } from '../wire/frame.ts';
import type { FrameLimits } from '../wire/frame.ts';
import type { Header } from '../wire/message-stream.ts';

export interface AdministratorOptions {
  /** That of the servers: at least 16 random bytes, or 32 hexadecimal digits of them. */
  readonly secret: string | Uint8Array;
  /** As the servers have it. Default: no TLS. */
  readonly tls?: TlsOptions | undefined;
  /** Ends the wait. Default: nothing does but the deadlines. */
  readonly signal?: AbortSignal | undefined;
  /** How long it may take to connect and to be challenged, in milliseconds. Default 10,000. */
  readonly handshakeTimeoutMs?: number | undefined;
  /** How long the server may take for the request, in milliseconds. Default 120,000. */
  readonly answerTimeoutMs?: number | undefined;
}

/** Longest reason of somebody unknown that is repeated. */
const MAX_REASON = 500;
const ANSWER_LIMITS: FrameLimits = { headerBytes: MAX_ANSWER_BYTES, bodyBytes: 0 };

/** `address`: 'host:port', the first port of the server. Throws an error that names the server. */
export async function administer<Op extends AdministrationRequest['op']>(
  address: string,
  request: Extract<AdministrationRequest, { op: Op }>,
  options: AdministratorOptions,
): Promise<AdministrationAnswers[Op]> {
  // Before anybody is dialled: a secret that can be guessed would be given away by the proof.
  const key = keyOfNonce(administratorKeyOf(options.secret));
  const { handshakeTimeoutMs = 10_000, answerTimeoutMs = 120_000 } = options;
  const line = new AdministratorLine(address, options);
  try {
    line.setDeadline(handshakeTimeoutMs, 'the handshake');
    const channel = await line.connected();
    const transcript = new Transcript(ADMINISTRATION_PURPOSE, ADMINISTRATION_VERSION, channel);
    const hello = { kind: 'administer', version: ADMINISTRATION_VERSION, nonce: challenge() };
    line.send(hello);
    const asked = await line.hear(STRANGER_LIMITS);
    if (asked.kind === 'refused') throw unproven(address, asked.error);
    if (asked.kind !== 'challenge' || !isNonce(asked.nonce)) throw notOfUs(address);
    if (asked.version !== ADMINISTRATION_VERSION) throw otherVersion(address, asked.version);
    line.setDeadline(answerTimeoutMs, `the request to ${request.op}`);
    const claim = { kind: 'request', request };
    for (const message of [hello, asked, claim]) transcript.add(message);
    line.send({ ...claim, proof: transcript.answer(key, 'caller') });
    const answer = await line.hear(ANSWER_LIMITS);
    transcript.add(answer);
    if (!transcript.verify(key, 'listener', answer.proof)) throw unproven(address, answer.error);
    if (answer.kind === 'refused') throw refusal(address, answer.error as PackedError);
    return answer.answer as AdministrationAnswers[Op];
  } finally {
    line.close();
  }
}

class AdministratorLine {
  readonly #address: string;
  readonly #socket: Socket;
  readonly #chunks: AsyncIterator<Buffer>;
  readonly #signal: AbortSignal | undefined;
  readonly #isTls: boolean;
  #received = Buffer.alloc(0);
  #timer: NodeJS.Timeout | undefined;
  /** Why it was ended here. */
  #end: TributaryError | undefined;

  constructor(address: string, { tls, signal }: AdministratorOptions) {
    // Whichever of a server's addresses.
    const { host, port } = parseAddresses(address)[0]!;
    this.#address = address;
    this.#isTls = tls !== undefined;
    this.#socket = tls === undefined ? connect({ host, port }) : dialTls(host, port, tls);
    // Whoever waits hears of it; nobody else does.
    this.#socket.on('error', () => undefined);
    this.#chunks = (this.#socket as AsyncIterable<Buffer>)[Symbol.asyncIterator]();
    this.#signal = signal;
    signal?.addEventListener('abort', this.#onAbort);
    if (signal?.aborted) this.#onAbort();
  }

  setDeadline(ms: number, what: string): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#giveUp(tooLate(this.#address, what, ms)), ms);
  }

  /** Resolves with the channel of the TLS connection, if it is one. */
  async connected(): Promise<string | undefined> {
    const socket = this.#socket;
    try {
      if (socket.destroyed) throw new Error('the connection was closed');
      await once(socket, this.#isTls ? 'secureConnect' : 'connect');
    } catch (error) {
      throw this.#end ?? unreachable(this.#address, reasonOf(error));
    }
    return socket instanceof TLSSocket ? channelOf(socket) : undefined;
  }

  send(message: object): void {
    this.#socket.write(encodeHead(message, 0));
  }

  /** The next message. */
  async hear(limits: FrameLimits): Promise<Header> {
    for (;;) {
      const header = this.#take(limits);
      if (header) return header;
      let next: IteratorResult<Buffer>;
      try {
        next = await this.#chunks.next();
      } catch (error) {
        throw this.#end ?? unreachable(this.#address, reasonOf(error));
      }
      if (next.done) throw this.#end ?? closedWithoutAWord(this.#address, this.#isTls);
      this.#received = Buffer.concat([this.#received, next.value]);
    }
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#signal?.removeEventListener('abort', this.#onAbort);
    this.#socket.destroy();
  }

  #take(limits: FrameLimits): Header | undefined {
    if (this.#received.length < PREFIX_BYTES) return undefined;
    try {
      const { headerBytes } = decodePrefix(this.#received, limits);
      const end = PREFIX_BYTES + headerBytes;
      if (this.#received.length < end) return undefined;
      const header = decodeHeader(this.#received.subarray(PREFIX_BYTES, end));
      this.#received = this.#received.subarray(end);
      return header;
    } catch (cause) {
      throw notOfUs(this.#address, cause);
    }
  }

  readonly #onAbort = (): void => {
    const what = `the request to the server at ${this.#address} was given up; it may have been carried out`;
    this.#giveUp(new PeerError('CANCELLED', `${what}: look with tributary server service list`));
  };

  #giveUp(why: TributaryError): void {
    this.#end ??= why;
    this.#socket.destroy(why);
  }
}

function dialTls(host: string, port: number, { key, cert, ca, serverName }: TlsOptions): TLSSocket {
  const named = serverName === undefined ? {} : { servername: serverName };
  try {
    return connectTls({ key, cert, ca, host, port, ...named });
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the key, the certificate or the authority for TLS cannot be used: ${reasonOf(cause)}; give files in PEM that belong together`,
      {},
      cause,
    );
  }
}

function reasonOf(error: unknown): string {
  const { message, code } = error as NodeJS.ErrnoException;
  return message || (code ?? String(error));
}

function unreachable(address: string, reason: string): PeerError {
  return new PeerError(
    'UNREACHABLE',
    `the server at ${address} cannot be reached: ${reason}; check the address, that it runs, and the options of TLS, which must be as the server's`,
    { address, reason },
  );
}

function closedWithoutAWord(address: string, isTls: boolean): PeerError {
  const tls = isTls ? 'have no TLS' : 'expect TLS (--tls-key, --tls-cert, --tls-ca)';
  return new PeerError(
    'UNREACHABLE',
    `the server at ${address} closed the connection without a word: it may ${tls}, be of another release, or be no parameter server; its log says more`,
    { address },
  );
}

function tooLate(address: string, what: string, ms: number): PeerError {
  return new PeerError(
    'TIMEOUT',
    `the server at ${address} did not answer within ${ms} ms: ${what} is not known to be done; repeat the command, which does nothing twice`,
    { address, timeoutMs: ms },
  );
}

function notOfUs(address: string, cause?: unknown): PeerError {
  return new PeerError(
    'PROTOCOL_VIOLATION',
    `whoever answers at ${address} is no parameter server of this release; check the address and the port`,
    { address },
    cause,
  );
}

function otherVersion(address: string, version: unknown): PeerError {
  const other = quoted(version, MAX_REASON);
  return new PeerError(
    'REFUSED',
    `the server at ${address} speaks version ${other} of the protocol of administration, and this program version ${ADMINISTRATION_VERSION}; use one version of Tributary everywhere`,
    { address, version },
  );
}

/** By somebody who has not proved that he knows the secret. */
function unproven(address: string, error: unknown): PeerError {
  const said = (error as PackedError | undefined)?.message;
  const reason =
    said === undefined
      ? 'the secret is not that of the server; give the file that the server was started with by --admin-secret-file'
      : `whoever answers there says ${quoted(said, MAX_REASON)}`;
  return new PeerError('REFUSED', `the server at ${address} refused the administrator: ${reason}`, {
    address,
  });
}

/** By the server itself. */
function refusal(address: string, error: PackedError): TributaryError {
  const { facts, message } = error;
  return unpack({
    ...error,
    message: `the server at ${address}: ${message}`,
    facts: { ...facts, address },
  });
}
