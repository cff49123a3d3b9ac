/**
 * A connection whose other side wants to administrate: it says hello, is challenged, and proves
 * that it knows the secret of the administrator with the one request that the connection is for.
 * What requests do is the office's business. Invariants: nothing of a request is looked at before
 * its proof was checked; the answer is covered by a proof of the server, and the connection ends
 * with it.
 */
import { PeerError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import { isNonce, keyOfNonce, Transcript } from '../../sockets/index.ts';
import {
  ADMINISTRATION_PURPOSE,
  ADMINISTRATION_VERSION,
  readAdministration,
  readAdministratorHello,
} from '../wire/administration.ts';
import type { AdministrationAnswer, AdministrationRequest } from '../wire/administration.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Header, MessageStream } from '../wire/message-stream.ts';
import { faultOf, packedForOthers } from './refusals.ts';

export interface AdministratorDesk {
  /**
   * What administrators must know; undefined: nobody administrates this server over the network.
   */
  readonly administratorKey: string | undefined;
  /** The other side has proved itself. Calls one of the two, once. */
  administrate(
    request: AdministrationRequest,
    stream: MessageStream,
    take: (answer: AdministrationAnswer) => void,
    fail: (error: TributaryError) => void,
  ): void;
}

export class Administrator {
  readonly #desk: AdministratorDesk;
  readonly #stream: MessageStream;
  readonly #key: Uint8Array;
  readonly #transcript: Transcript;
  #hasAsked = false;

  /**
   * `nonce`: a fresh one; `channel`: of the TLS connection. Throws where nobody may administrate.
   */
  constructor(
    desk: AdministratorDesk,
    stream: MessageStream,
    hello: Header,
    { nonce, channel }: { readonly nonce: string; readonly channel: string | undefined },
  ) {
    const version = readAdministratorHello(hello);
    if (version !== ADMINISTRATION_VERSION) throw otherVersion(version);
    if (desk.administratorKey === undefined) throw nobodyMay();
    this.#desk = desk;
    this.#stream = stream;
    this.#key = keyOfNonce(desk.administratorKey);
    this.#transcript = new Transcript(ADMINISTRATION_PURPOSE, ADMINISTRATION_VERSION, channel);
    const asked = { kind: 'challenge', version: ADMINISTRATION_VERSION, nonce };
    this.#transcript.add(hello);
    this.#transcript.add(asked);
    stream.send(asked);
  }

  /**
   * Whether its request is being carried out, or its answer sent. Nothing more is read from it
   * then.
   */
  get hasAsked(): boolean {
    return this.#hasAsked;
  }

  ask(header: Header): void {
    const { kind, proof } = header;
    if (kind !== 'request' || !isNonce(proof)) throw new ProtocolFault('sent no request with a proof');
    this.#transcript.add(header);
    if (!this.#transcript.verify(this.#key, 'caller', proof)) {
      this.#stream.send({ kind: 'refused' });
      throw new ProtocolFault("does not know the administrator's secret of this server");
    }
    this.#hasAsked = true;
    const take = (answer: AdministrationAnswer) => this.#say({ kind: 'answer', answer });
    const fail = (error: TributaryError) => this.#say({ kind: 'refused', error: packedForOthers(error) });
    try {
      this.#desk.administrate(readAdministration(header.request), this.#stream, take, fail);
    } catch (error) {
      if (!(error instanceof ProtocolFault)) throw error;
      fail(faultOf('the administrator', error));
      throw error;
    }
  }

  /** The last word. */
  #say(message: object): void {
    const stream = this.#stream;
    if (stream.ended !== undefined) return;
    this.#transcript.add(message);
    stream.send({ ...message, proof: this.#transcript.answer(this.#key, 'listener') }, [], () => {
      stream.ended ??= 'closed';
    });
  }
}

function nobodyMay(): PeerError {
  return new PeerError(
    'REFUSED',
    'this server has no administrator: start it with --admin-secret-file FILE, and services can be created and ended over the network',
  );
}

function otherVersion(version: number): PeerError {
  return new PeerError(
    'REFUSED',
    `the administrator speaks version ${version} of the protocol of administration, and the server version ${ADMINISTRATION_VERSION}; use one version of Tributary everywhere`,
    { version, serverVersion: ADMINISTRATION_VERSION },
  );
}
