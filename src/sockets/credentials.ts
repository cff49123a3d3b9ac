/**
 * Proof that both ends of a connection know the same secret, without sending it: each end gives a nonce, and answers
 * with an HMAC-SHA256 over its role, both nonces, the purpose and the version. Pure functions; no sockets, no state.
 * Invariant: an answer is good for one exchange and one role only, so it can be neither replayed nor reflected.
 * It does not protect what is sent afterwards from someone who can alter packets; TLS does.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

const NONCE_BYTES = 32;
const HEX_256_BITS = /^[0-9a-f]{64}$/;

/** The one that opened the connection, or the one that accepted it. */
export type Role = 'caller' | 'listener';

/** What both ends know of an exchange before either answers. */
export interface Exchange {
  /** Keeps answers of one protocol from being worth anything in another that has the same secret. */
  readonly purpose: string;
  readonly version: number;
  readonly callerNonce: string;
  readonly listenerNonce: string;
}

/** A fresh nonce: 256 random bits in hexadecimal. */
export function challenge(): string {
  return randomBytes(NONCE_BYTES).toString('hex');
}

export function isNonce(value: unknown): value is string {
  return typeof value === 'string' && HEX_256_BITS.test(value);
}

/** The proof that the one in this role knows the secret. */
export function answer(secret: string, role: Role, exchange: Exchange): string {
  const { purpose, version, callerNonce, listenerNonce } = exchange;
  // JSON keeps the parts apart: no two exchanges give the same text.
  const text = JSON.stringify(['tributary', purpose, version, role, callerNonce, listenerNonce]);
  return createHmac('sha256', secret).update(text).digest('hex');
}

/** Whether a proof is that of the one in this role; takes the same time wherever it is wrong. */
export function verify(secret: string, role: Role, exchange: Exchange, proof: unknown): boolean {
  if (typeof proof !== 'string' || !HEX_256_BITS.test(proof)) return false;
  return timingSafeEqual(Buffer.from(proof, 'hex'), Buffer.from(answer(secret, role, exchange), 'hex'));
}
