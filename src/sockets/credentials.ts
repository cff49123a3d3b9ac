/**
 * Proof that both ends of a connection know the same secret, without sending it, for every protocol of this package: each end
 * gives a nonce, and answers with an HMAC-SHA256 over its role and all that both have said (`Transcript`). No sockets.
 * Invariants: an answer is good for one exchange and one role only, so it can be neither replayed nor reflected; whoever
 * changes a word of the handshake on its way makes both answers wrong; over TLS an answer is good for that connection
 * only. It does not protect what is sent afterwards from someone who can alter packets; TLS does.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { UsageError } from '../base/index.ts';

const NONCE_BYTES = 32;
const HEX_256_BITS = /^[0-9a-f]{64}$/;
/** An HMAC that was recorded can be tried against any number of guesses, so secrets must be too many to guess. */
const SECRET_BYTES = 16;
const HEX_SECRET = /^(?:[0-9a-f]{2}){16,}$/i;
/** Random secrets have fewer different digits, or bytes, by a chance of less than one in a million. */
const DIFFERENT_SYMBOLS = 8;

/** The one that opened the connection, or the one that accepted it. */
export type Role = 'caller' | 'listener';

/** A fresh nonce: 256 random bits in hexadecimal. */
export function challenge(): string {
  return randomBytes(NONCE_BYTES).toString('hex');
}

export function isNonce(value: unknown): value is string {
  return typeof value === 'string' && HEX_256_BITS.test(value);
}

/**
 * The key of a secret: hexadecimal digits are the bytes that they stand for. Throws a `UsageError` for a secret that could
 * be guessed; the error does not hold the secret.
 */
export function keyOfSecret(secret: string | Uint8Array): Uint8Array {
  if (typeof secret === 'string') {
    if (HEX_SECRET.test(secret) && new Set(secret.toLowerCase()).size >= DIFFERENT_SYMBOLS) {
      return Uint8Array.from(Buffer.from(secret, 'hex'));
    }
  } else if (secret instanceof Uint8Array && secret.length >= SECRET_BYTES) {
    if (new Set(secret).size >= DIFFERENT_SYMBOLS) return Uint8Array.from(secret);
  }
  throw new UsageError(
    'INVALID_ARGUMENT',
    `the secret can be guessed by whoever records one handshake; give at least ${SECRET_BYTES} random bytes, as ${2 * SECRET_BYTES} or more hexadecimal digits: openssl rand -hex ${SECRET_BYTES}`,
    { leastBytes: SECRET_BYTES },
  );
}

/** The key of a service's nonce. */
export function keyOfNonce(nonce: string): Uint8Array {
  return Uint8Array.from(Buffer.from(nonce, 'hex'));
}

/** A nonce that all who know the secret come to, for what these words name. */
export function deriveNonce(secret: string | Uint8Array, ...words: readonly string[]): string {
  // A list of another beginning than that of a transcript: no proof is ever such a nonce.
  return hmac(keyOfSecret(secret), ['tributary nonce', ...words]).toString('hex');
}

/** All that two ends have said in a handshake, in order; each keeps its own, and they are the same. */
export class Transcript {
  readonly #purpose: string;
  readonly #version: number;
  readonly #channel: string | null;
  readonly #said: string[] = [];

  /**
   * `purpose` keeps answers of one protocol from being worth anything in another that has the same secret. `channel` is that
   * of the TLS connection, if it is one: see `channelOf`.
   */
  constructor(purpose: string, version: number, channel: string | undefined) {
    this.#purpose = purpose;
    this.#version = version;
    this.#channel = channel ?? null;
  }

  /** A message of either side, as it was sent; the proof in it, which is made of the rest, is left out. */
  add(message: object): void {
    const fields = Object.entries(message).filter(([name, value]) => name !== 'proof' && value !== undefined);
    this.#said.push(JSON.stringify(fields.sort(([a], [b]) => (a < b ? -1 : 1))));
  }

  /** The proof that the one in this role knows the key and has said and heard all this. */
  answer(key: Uint8Array, role: Role): string {
    return this.#answer(key, role).toString('hex');
  }

  /** Whether a proof is that of the one in this role; takes the same time wherever it is wrong. */
  verify(key: Uint8Array, role: Role, proof: unknown): boolean {
    if (!isNonce(proof)) return false;
    return timingSafeEqual(Buffer.from(proof, 'hex'), this.#answer(key, role));
  }

  #answer(key: Uint8Array, role: Role): Buffer {
    return hmac(key, ['tributary', this.#purpose, this.#version, role, this.#channel, ...this.#said]);
  }
}

/** JSON keeps the parts apart: no two lists give the same text. */
function hmac(key: Uint8Array, parts: readonly unknown[]): Buffer {
  return createHmac('sha256', key).update(JSON.stringify(parts)).digest();
}
