/**
 * The scheduler's side of the handshake with one stranger: hello, challenge, answer, accepted, join. No sockets and no
 * clock. Invariant: nothing but a refusal or a challenge is said to someone who has not proved to know the secret,
 * and nobody who has not proved it gets as far as the roster.
 */
import { answer, challenge, verify } from '../sockets/index.ts';
import type { Exchange } from '../sockets/index.ts';
import { ProtocolFault } from './frames.ts';
import { PROTOCOL_VERSION, PURPOSE, readMemberMessage } from './messages.ts';
import type { Join, RefusalReason, SchedulerMessage } from './messages.ts';

export interface AdmissionTerms {
  readonly secret: string;
  readonly heartbeatMs: number;
  readonly lostAfterMs: number;
}

export type AdmissionStep =
  | { readonly reply: SchedulerMessage }
  | { readonly refuse: RefusalReason; readonly text: string }
  | { readonly join: Join };

export class Admission {
  readonly #terms: AdmissionTerms;
  #exchange: Exchange | undefined;
  #proved = false;

  constructor(terms: AdmissionTerms) {
    this.#terms = terms;
  }

  /** What follows from a frame. Throws `ProtocolFault`. */
  step(frame: unknown): AdmissionStep {
    const message = readMemberMessage(frame);
    if (message.kind === 'hello' && !this.#exchange) return this.#greet(message.version, message.nonce);
    if (message.kind === 'answer' && this.#exchange && !this.#proved) {
      return this.#judge(this.#exchange, message.proof);
    }
    if (message.kind === 'join' && this.#proved) return { join: message };
    if (message.kind === 'beat' && this.#proved) return { reply: { kind: 'beat' } };
    throw new ProtocolFault('sent a message that does not belong into a handshake, or not here');
  }

  #greet(version: number, nonce: string): AdmissionStep {
    if (version !== PROTOCOL_VERSION) {
      const text = `it speaks version ${version} of the protocol and the scheduler version ${PROTOCOL_VERSION}; use one version of Tributary everywhere`;
      return { refuse: 'version', text };
    }
    const listenerNonce = challenge();
    this.#exchange = { purpose: PURPOSE, version, callerNonce: nonce, listenerNonce };
    return { reply: { kind: 'challenge', version, nonce: listenerNonce } };
  }

  #judge(exchange: Exchange, proof: string): AdmissionStep {
    const { secret, heartbeatMs, lostAfterMs } = this.#terms;
    if (!verify(secret, 'caller', exchange, proof)) {
      return { refuse: 'secret', text: 'it has another secret; start all processes with the same one' };
    }
    this.#proved = true;
    const own = answer(secret, 'listener', exchange);
    return { reply: { kind: 'accepted', proof: own, heartbeatMs, lostAfterMs } };
  }
}
