/**
 * How the shared-memory segments of a tenant are named: by a hash that only those who know the nonce can compute, so that a
 * worker cannot ask a server to map the segment of somebody else. Pure.
 */
import { createHmac } from 'node:crypto';

export function segmentPrefix(namespace: string, nonce: string): string {
  return `kv-${createHmac('sha256', nonce).update(`segments of ${namespace}`).digest('hex').slice(0, 24)}-`;
}
