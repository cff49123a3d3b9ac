/**
 * What the engine and the thread of a TLS tunnel tell each other: how the thread is started, what it reports, and the record that
 * each connection between them begins with: JSON, padded with zeros. Pure. Invariant: a record has always the same
 * length, so that its end is known before it is read.
 */
import type { TlsOptions } from './tls-options.ts';

export interface TunnelData {
  readonly tls: TlsOptions;
  /** Where others call, and the local socket at which the engine takes the calls; undefined: nobody can call. */
  readonly listening:
    | {
        readonly host: string;
        readonly ports: readonly [number, number];
        readonly enginePath: string;
      }
    | undefined;
  /** The local socket at which the thread takes the engine's calls. */
  readonly dialPath: string;
  readonly handshakeTimeoutMs: number;
  readonly maxPendingHandshakes: number;
  /** Shared words, see `TunnelWord`. */
  readonly words: Int32Array;
}

/** Words that the thread writes and the engine reads, also while its thread is blocked. */
export const TunnelWord = {
  /** Strangers that TLS refused. */
  REFUSED: 0,
  /** 1 when the thread has ended. */
  ENDED: 1,
} as const;

export type TunnelMessage =
  /** The port that others dial; 0 where nobody can. */
  | { readonly kind: 'listening'; readonly port: number }
  | { readonly kind: 'failed'; readonly reason: string }
  | { readonly kind: 'log'; readonly line: string };

export const TUNNEL_RECORD_BYTES = 512;

/** From the engine: whom to reach. */
export interface DialRecord {
  readonly host: string;
  readonly port: number;
}

/** From the thread: how the call ended, or who has called. */
export interface ChannelRecord {
  /** Why there is no connection; undefined: there is one. */
  readonly problem?: string | undefined;
  /** Who has called, 'host:port'; undefined for a connection that was dialled. */
  readonly remote?: string | undefined;
  /** What only the two ends of this TLS connection know (RFC 9266), in hexadecimal. */
  readonly channel?: string | undefined;
}

/** Longest problem text in a record; the rest of the record is far shorter. */
const MAX_PROBLEM = 100;

export function writeTunnelRecord(record: DialRecord | ChannelRecord): Uint8Array {
  const bytes = new Uint8Array(TUNNEL_RECORD_BYTES);
  const problem = 'problem' in record ? { problem: record.problem?.slice(0, MAX_PROBLEM) } : {};
  new TextEncoder().encodeInto(JSON.stringify({ ...record, ...problem }), bytes);
  return bytes;
}

/** Both sides are this process, so the fields are as they were written. */
export function readTunnelRecord(record: Uint8Array): DialRecord & ChannelRecord {
  const end = record.indexOf(0);
  const text = new TextDecoder().decode(record.subarray(0, end < 0 ? TUNNEL_RECORD_BYTES : end));
  return JSON.parse(text) as DialRecord & ChannelRecord;
}
