/**
 * What a worker must know to use a service, and how those who share a secret come to the same. Pure. Invariant: whoever does not
 * know the secret cannot find the nonce, and the nonces of two services tell nothing of each other.
 */
import { deriveNonce } from '../sockets/index.ts';

export interface ServiceAccess {
  readonly namespace: string;
  readonly nonce: string;
}

/** That of a service in the processes of those who know the secret; `job` keeps jobs with the same secret apart. */
export function accessBySecret(secret: string, job: string, namespace: string): ServiceAccess {
  return { namespace, nonce: deriveNonce(secret, 'parameter servers', job, namespace) };
}

/**
 * That of a service that an administrator created: the salt travels, the secret and the nonce never
 * do. Whoever has the nonce of one service comes to that of no other, nor to what administrators
 * prove.
 */
export function accessByAdministrator(
  secret: string | Uint8Array,
  namespace: string,
  salt: string,
): ServiceAccess {
  return { namespace, nonce: deriveNonce(secret, 'service of an administrator', namespace, salt) };
}

/** What administrators and servers prove to each other. */
export function administratorKeyOf(secret: string | Uint8Array): string {
  return deriveNonce(secret, 'administrator');
}
