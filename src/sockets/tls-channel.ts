/**
 * What names one TLS connection, for both of its ends and for nobody else: the channel binding `tls-exporter` of RFC 9266. A proof
 * over it is worth nothing on any other connection, so that whoever stands between two ends, even with a certificate that
 * both trust, cannot pass the proofs of one on to the other. Pure.
 */
import type { TLSSocket } from 'node:tls';

const LABEL = 'EXPORTER-Channel-Binding';
const BYTES = 32;

/** In hexadecimal; only after the handshake. */
export function channelOf(socket: TLSSocket): string {
  return socket.exportKeyingMaterial(BYTES, LABEL, Buffer.alloc(0)).toString('hex');
}
