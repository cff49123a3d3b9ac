/**
 * The scheduler's side of the handshake with one stranger: hello, challenge, answer, accepted, join. No sockets and no
 * clock. Invariant: nothing but a refusal or a challenge is said to someone who has not proved to know the secret,
 * and nobody who has not proved it gets as far as the roster.
 */
import { challenge, Transcript } from '../sockets/index.ts';
import { ProtocolFault } from './frames.ts';
import { PROTOCOL_VERSION, PURPOSE, readMemberMessage } from './messages.ts';
import type { Join, MemberMessage, RefusalReason, SchedulerMessage } from './messages.ts';

export interface AdmissionTerms {
  /** Made of the secret. */
  readonly key: Uint8Array;
  readonly heartbeatMs: number;
  readonly lostAfterMs: number;
}

export type AdmissionStep =
  | { readonly reply: SchedulerMessage }
  | { readonly refuse: RefusalReason; readonly text: string }
  | { readonly join: Join };

export class Admission {
  readonly #terms: AdmissionTerms;
  #transcript: Transcript | undefined;
  #proved = false;

  constructor(terms: AdmissionTerms) {
    this.#terms = terms;
  }

  /** What follows from a frame; `channel` is that of the TLS connection, if it is one. Throws `ProtocolFault`. */
  step(frame: unknown, channel: string | undefined): AdmissionStep {
    const message = readMemberMessage(frame);
    if (message.kind === 'beat' && this.#proved) return { reply: { kind: 'beat' } };
    if (message.kind === 'hello' && !this.#transcript) return this.#greet(message, channel);
    if (message.kind === 'answer' && this.#transcript && !this.#proved) {
      return this.#judge(this.#transcript, message);
    }
    if (message.kind === 'join' && this.#proved) return this.#join(this.#transcript!, message);
    throw new ProtocolFault('sent a message that does not belong into a handshake, or not here');
  }

  #greet(hello: MemberMessageOf<'hello'>, channel: string | undefined): AdmissionStep {
    const { version } = hello;
    if (version !== PROTOCOL_VERSION) {
      const text = `it speaks version ${version} of the protocol and the scheduler version ${PROTOCOL_VERSION}; use one version of Tributary everywhere`;
      return { refuse: 'version', text };
    }
    const reply = { kind: 'challenge', version, nonce: challenge() } as const;
    this.#transcript = new Transcript(PURPOSE, PROTOCOL_VERSION, channel);
    this.#transcript.add(hello);
    this.#transcript.add(reply);
    return { reply };
  }

  #judge(transcript: Transcript, answer: MemberMessageOf<'answer'>): AdmissionStep {
    const { key, heartbeatMs, lostAfterMs } = this.#terms;
    transcript.add(answer);
    if (!transcript.verify(key, 'caller', answer.proof)) return WRONG_SECRET;
    this.#proved = true;
    const reply = { kind: 'accepted', heartbeatMs, lostAfterMs } as const;
    transcript.add(reply);
    return { reply: { ...reply, proof: transcript.answer(key, 'listener') } };
  }

  #join(transcript: Transcript, join: MemberMessageOf<'join'>): AdmissionStep {
    transcript.add(join);
    return transcript.verify(this.#terms.key, 'caller', join.proof) ? { join } : WRONG_SECRET;
  }
}

type MemberMessageOf<Kind extends MemberMessage['kind']> = Extract<MemberMessage, { kind: Kind }>;

/** Or somebody changes what is said on its way, which is the same to the scheduler. */
const WRONG_SECRET: AdmissionStep = {
  refuse: 'secret',
  text: 'it has another secret; start all processes with the same one',
};
