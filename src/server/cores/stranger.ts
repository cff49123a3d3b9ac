/**
 * A connection whose other side has not yet proved that it knows the nonce of a service (PHub, section 3.1). It says hello,
 * is challenged, proves, and becomes a session or is sent away. Invariants: whether a namespace exists cannot be told
 * from the answers; a proof is good for one connection only, so a replayed one is worth nothing.
 */
import { answer, verify } from '../../sockets/index.ts';
import type { Exchange } from '../../sockets/index.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Header, Incoming, MessageStream, StreamUser } from '../wire/message-stream.ts';
import { readHello, readProof, SERVER_PROTOCOL_VERSION } from '../wire/messages.ts';
import type { Hello, Proof, Welcome } from '../wire/messages.ts';

export const SERVER_PURPOSE = 'parameter server';

export interface Doorkeeper {
  /** The nonce of a namespace, or something that nobody knows. */
  nonceOf(namespace: string): string;
  /** The other side knows the nonce. Returns what it is told; throws an error that it is told instead. */
  admit(hello: Hello, proof: Proof, stream: MessageStream): Omit<Welcome, 'proof'>;
}

export class Stranger implements StreamUser {
  /** When it is sent away, by the clock. */
  readonly deadlineMs: number;
  stream!: MessageStream;
  readonly #doorkeeper: Doorkeeper;
  readonly #nonce: string;
  #hello: Hello | undefined;
  #exchange: Exchange | undefined;

  /** `nonce`: a fresh one, for this connection only. */
  constructor(doorkeeper: Doorkeeper, nonce: string, deadlineMs: number) {
    this.#doorkeeper = doorkeeper;
    this.#nonce = nonce;
    this.deadlineMs = deadlineMs;
  }

  receive(header: Header): Incoming {
    return { into: undefined, done: () => (this.#hello ? this.#prove(header) : this.#greet(header)) };
  }

  #greet(header: Header): void {
    this.#hello = readHello(header);
    this.#exchange = {
      purpose: `${SERVER_PURPOSE} ${this.#hello.namespace}`,
      version: SERVER_PROTOCOL_VERSION,
      callerNonce: this.#hello.nonce,
      listenerNonce: this.#nonce,
    };
    this.stream.send({ kind: 'challenge', nonce: this.#exchange.listenerNonce });
  }

  #prove(header: Header): void {
    const proof = readProof(header);
    const nonce = this.#doorkeeper.nonceOf(this.#hello!.namespace);
    if (!verify(nonce, 'caller', this.#exchange!, proof.proof)) {
      this.stream.send({ kind: 'refused' });
      throw new ProtocolFault(`does not know the nonce of namespace '${this.#hello!.namespace}'`);
    }
    const welcome = this.#doorkeeper.admit(this.#hello!, proof, this.stream);
    this.stream.send({ kind: 'welcome', proof: answer(nonce, 'listener', this.#exchange!), ...welcome });
  }
}
