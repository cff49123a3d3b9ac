/** The proofs of all handshakes: what is good, and everything near it that is not; and which secrets are good enough. */
import { describe, expect, it } from 'vitest';
import {
  challenge,
  deriveNonce,
  isNonce,
  keyOfNonce,
  keyOfSecret,
  Transcript,
} from '../../src/sockets/index.ts';
import { OTHER_SECRET, SECRET } from '../support/secrets.ts';

const KEY = keyOfSecret(SECRET);
const HELLO = { kind: 'hello', nonce: challenge(), worker: 3, settings: { workers: 2 } };
const CHALLENGE = { kind: 'challenge', nonce: challenge(), ports: [1, 2] };

interface Change {
  readonly purpose?: string;
  readonly version?: number;
  readonly channel?: string;
  readonly said?: readonly object[];
}

function transcript(change: Change = {}): Transcript {
  const { purpose = 'test', version = 1, channel, said = [HELLO, CHALLENGE] } = change;
  const made = new Transcript(purpose, version, channel);
  for (const message of said) made.add(message);
  return made;
}

describe('nonces', () => {
  it('differ', () => {
    const nonces = Array.from({ length: 100 }, challenge);
    expect(nonces.every(isNonce)).toBe(true);
    expect(new Set(nonces).size).toBe(100);
  });

  it('that are made of a secret are the same for all who know it, and differ by what they are for', () => {
    const nonce = deriveNonce(SECRET, 'servers', 'a');
    expect(isNonce(nonce)).toBe(true);
    expect(deriveNonce(SECRET, 'servers', 'a')).toBe(nonce);
    for (const other of [
      deriveNonce(SECRET, 'servers', 'b'),
      deriveNonce(SECRET, 'serversa'),
      deriveNonce(OTHER_SECRET, 'servers', 'a'),
    ])
      expect(other).not.toBe(nonce);
  });
});

describe('an answer', () => {
  it('is good for the same key, role and transcript', () => {
    for (const role of ['caller', 'listener'] as const) {
      expect(transcript().verify(KEY, role, transcript().answer(KEY, role))).toBe(true);
    }
  });

  it('does not depend on the order of fields, on those without a value, or on a proof among them', () => {
    const { kind, ...rest } = HELLO;
    const said = [{ ...rest, proof: 'x', nothing: undefined, kind }, CHALLENGE];
    expect(transcript().verify(KEY, 'caller', transcript({ said }).answer(KEY, 'caller'))).toBe(true);
  });

  it.each<[string, Change]>([
    ['purpose', { purpose: 'other' }],
    ['version', { version: 2 }],
    ['TLS connection', { channel: 'ab' }],
    ['nonce of the caller', { said: [{ ...HELLO, nonce: challenge() }, CHALLENGE] }],
    ['nonce of the listener', { said: [HELLO, { ...CHALLENGE, nonce: challenge() }] }],
    ['worker', { said: [{ ...HELLO, worker: 4 }, CHALLENGE] }],
    ['setting', { said: [{ ...HELLO, settings: { workers: 1 } }, CHALLENGE] }],
    ['port', { said: [HELLO, { ...CHALLENGE, ports: [1, 3] }] }],
    ['order', { said: [CHALLENGE, HELLO] }],
    ['number of messages', { said: [HELLO, CHALLENGE, {}] }],
  ])('is not good for another %s', (_what, change) => {
    const proof = transcript().answer(KEY, 'caller');
    expect(transcript(change).verify(KEY, 'caller', proof)).toBe(false);
  });

  it('is not good for another key or role, so it cannot be reflected', () => {
    const proof = transcript().answer(KEY, 'caller');
    expect(transcript().verify(keyOfSecret(OTHER_SECRET), 'caller', proof)).toBe(false);
    expect(transcript().verify(KEY, 'listener', proof)).toBe(false);
  });

  it.each([
    undefined,
    null,
    7,
    '',
    'ab',
    'z'.repeat(64),
    'a'.repeat(63),
    'A'.repeat(64),
    {},
    ['a'.repeat(64)],
  ])('%j is none', (proof) => {
    expect(transcript().verify(KEY, 'caller', proof)).toBe(false);
  });
});

describe('a secret', () => {
  it.each<[string, string | Uint8Array]>([
    ['nothing', ''],
    ['words', 'correct horse battery staple and more of them'],
    ['31 digits', SECRET.slice(1)],
    ['an odd number of digits', `${SECRET}a`],
    ['one digit again and again', '0'.repeat(64)],
    ['a pattern', 'abcd'.repeat(16)],
    ['few bytes', Uint8Array.from({ length: 15 }, (_, i) => i)],
    ['zeros', new Uint8Array(32)],
  ])('of %s is refused, with a way to make a good one, and is not in the message', (_what, secret) => {
    expect(() => keyOfSecret(secret)).toThrow(
      expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: expect.stringContaining('openssl rand -hex 16') as string,
      }),
    );
    if (secret.length === 0 || typeof secret !== 'string') return;
    expect(() => keyOfSecret(secret)).not.toThrow(secret);
  });

  it('of 16 random bytes is used as it is, in digits of any case or as bytes', () => {
    expect(Buffer.from(KEY).toString('hex')).toBe(SECRET);
    expect(keyOfSecret(SECRET.toUpperCase())).toEqual(KEY);
    expect(keyOfSecret(Buffer.from(SECRET, 'hex'))).toEqual(KEY);
    expect(keyOfNonce(challenge())).toHaveLength(32);
  });
});
