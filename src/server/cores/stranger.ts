/**
 * A connection whose other side has not yet proved that it knows the nonce of a service (PHub,
 * section 3.1). It says hello, is challenged, proves, and becomes a session or is sent away; an
 * administrator says another hello, and is answered by `Administrator`. Invariants: whether a
 * namespace exists cannot be told from the answers; a proof is good for one connection only, so a
 * replayed one is worth nothing.
 */
import { PeerError, TributaryError } from '../../base/index.ts';
import { keyOfNonce, Transcript } from '../../sockets/index.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Header, Incoming, MessageStream, StreamUser } from '../wire/message-stream.ts';
import { readHello, readProof, SERVER_PROTOCOL_VERSION } from '../wire/messages.ts';
import type { Hello, Proof, Welcome } from '../wire/messages.ts';
import { Administrator } from './administrator.ts';
import type { AdministratorDesk } from './administrator.ts';
import { packedForOthers } from './refusals.ts';

export const SERVER_PURPOSE = 'parameter server';

/**
 * What the request of an administrator may take more, until the answer was taken; it may wait for a
 * disk.
 */
const ADMINISTRATION_MS = 120_000;
/** Services in a line of the log. */
const MAX_NAMED = 8;

export interface Doorkeeper extends AdministratorDesk {
  /** The nonce of a namespace, or something that nobody knows. */
  nonceOf(namespace: string): string;
  /** The namespaces that there are, for the log. */
  readonly namespaces: readonly string[];
  /** Whether it does something for the namespace now in which nobody may come. */
  isBusy(namespace: string): boolean;
  /** The other side knows the nonce. Returns the answer to it; throws an error that is sent instead. */
  admit(hello: Hello, proof: Proof, stream: MessageStream): Omit<Welcome, 'proof'>;
}

export class Stranger implements StreamUser {
  readonly #deadlineMs: number;
  stream!: MessageStream;
  /** That of the TLS connection; undefined without TLS. Known before the first message. */
  channel: string | undefined;
  readonly #doorkeeper: Doorkeeper;
  readonly #nonce: string;
  #hello: Hello | undefined;
  #transcript: Transcript | undefined;
  /** It has proved itself, and is let in when nothing is in the way. */
  #enter: (() => void) | undefined;
  #administrator: Administrator | undefined;

  /** `nonce`: a fresh one, for this connection only. */
  constructor(doorkeeper: Doorkeeper, nonce: string, deadlineMs: number) {
    this.#doorkeeper = doorkeeper;
    this.#nonce = nonce;
    this.#deadlineMs = deadlineMs;
  }

  /** When it is sent away, by the clock. */
  get deadlineMs(): number {
    return this.#deadlineMs + (this.#administrator?.hasAsked ? ADMINISTRATION_MS : 0);
  }

  /**
   * Whether it waits to be let in, or for what it has asked as an administrator. Nothing more is
   * read from it then.
   */
  get isPaused(): boolean {
    return this.#enter !== undefined || this.#administrator?.hasAsked === true;
  }

  get hasWork(): boolean {
    return this.#enter !== undefined && !this.#doorkeeper.isBusy(this.#hello!.namespace);
  }

  goOn(): void {
    if (!this.hasWork) return;
    const enter = this.#enter!;
    this.#enter = undefined;
    try {
      enter();
    } catch (error) {
      if (!(error instanceof ProtocolFault)) throw error;
      this.stream.ended ??= error;
    }
  }

  receive(header: Header): Incoming {
    return { into: undefined, done: () => this.#take(header) };
  }

  #take(header: Header): void {
    if (this.#administrator) return this.#administrator.ask(header);
    if (this.#hello) return this.#prove(header);
    if (header.kind !== 'administer') return this.#greet(header);
    const { channel } = this;
    const nonce = this.#nonce;
    this.#administrator = new Administrator(this.#doorkeeper, this.stream, header, { nonce, channel });
  }

  #greet(header: Header): void {
    const hello = readHello(header);
    if (hello.version !== SERVER_PROTOCOL_VERSION) throw otherVersion(hello.version);
    this.#hello = hello;
    const purpose = `${SERVER_PURPOSE} ${hello.namespace}`;
    this.#transcript = new Transcript(purpose, SERVER_PROTOCOL_VERSION, this.channel);
    const asked = { kind: 'challenge', version: SERVER_PROTOCOL_VERSION, nonce: this.#nonce };
    this.#transcript.add(header);
    this.#transcript.add(asked);
    this.stream.send(asked);
  }

  #prove(header: Header): void {
    const proof = readProof(header);
    const transcript = this.#transcript!;
    const key = keyOfNonce(this.#doorkeeper.nonceOf(this.#hello!.namespace));
    transcript.add(header);
    if (!transcript.verify(key, 'caller', proof.proof)) {
      this.stream.send({ kind: 'refused' });
      throw new ProtocolFault(this.#faultOf(this.#hello!.namespace));
    }
    this.#enter = () => this.#admit(proof, transcript, key);
    this.goOn();
  }

  #admit(proof: Proof, transcript: Transcript, key: Uint8Array): void {
    const say = (message: object): void => {
      transcript.add(message);
      this.stream.send({ ...message, proof: transcript.answer(key, 'listener') });
    };
    let welcome: Omit<Welcome, 'proof'>;
    try {
      welcome = this.#doorkeeper.admit(this.#hello!, proof, this.stream);
    } catch (error) {
      if (!(error instanceof TributaryError)) throw error;
      // Final, so it must be proved: the worker does not believe anybody else.
      say({ kind: 'refused', error: packedForOthers(error) });
      throw new ProtocolFault(`was refused: ${error.message}`);
    }
    say({ kind: 'welcome', ...welcome });
  }

  /** Read by the owner of the server only. */
  #faultOf(namespace: string): string {
    const { namespaces } = this.#doorkeeper;
    if (namespaces.includes(namespace)) return `does not know the nonce of namespace '${namespace}'`;
    const named = namespaces.slice(0, MAX_NAMED).join(', ') || 'none';
    const more = namespaces.length > MAX_NAMED ? ` and ${namespaces.length - MAX_NAMED} more` : '';
    return `asked for service '${namespace}', which is not here; services: ${named}${more}`;
  }
}

function otherVersion(version: number): PeerError {
  return new PeerError(
    'REFUSED',
    `the worker speaks version ${version} of the protocol of parameter servers, and the server version ${SERVER_PROTOCOL_VERSION}; use one version of Tributary everywhere`,
    { version, serverVersion: SERVER_PROTOCOL_VERSION },
  );
}
