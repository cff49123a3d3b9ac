/**
 * An administrator who speaks the protocol by hand, for those who misbehave: what is said can
 * differ from what is proved.
 */
import { administratorKeyOf } from '../../src/server/service-access.ts';
import { ADMINISTRATION_PURPOSE, ADMINISTRATION_VERSION } from '../../src/server/wire/administration.ts';
import { challenge, keyOfNonce, Transcript } from '../../src/sockets/index.ts';
import { RawWorker } from './raw-worker.ts';
import type { Heard, Listening } from './raw-worker.ts';

export interface Asked {
  /** The key that proofs are made with. */
  readonly key: string;
  readonly purpose?: string;
  /** Said in the request's message otherwise than was proved. */
  readonly change?: object;
}

export const HELLO = { kind: 'administer', version: ADMINISTRATION_VERSION };

export const keyOf = administratorKeyOf;

/** One request on a connection of its own; the answer, which proves nothing to this one. */
export async function askRaw(
  at: Listening,
  request: unknown,
  { key, ...asked }: Asked,
): Promise<Heard | 'closed'> {
  const line = await RawWorker.dial(at);
  try {
    const hello = { ...HELLO, nonce: challenge() };
    line.say(hello);
    const heard = await line.hear();
    if (heard === 'closed' || heard.header.kind !== 'challenge') return heard;
    const transcript = new Transcript(
      asked.purpose ?? ADMINISTRATION_PURPOSE,
      ADMINISTRATION_VERSION,
      undefined,
    );
    const claim = { kind: 'request', request };
    for (const message of [hello, heard.header, claim]) transcript.add(message);
    line.say({ ...claim, proof: transcript.answer(keyOfNonce(key), 'caller'), ...asked.change });
    return await line.hear();
  } finally {
    await line.close();
  }
}
