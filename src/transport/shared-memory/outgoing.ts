/**
 * One entry on its way out, which is also the `Transfer` that a sender holds. Plain data; `Link` writes it. Invariant:
 * `source` lies in the transport's own space, `payload` on the heap, and an entry has at most one of them.
 */
import type { Region } from '../../memory/index.ts';
import type { Envelope, Transfer } from '../transport.ts';
import { dtypeCode, EntryKind } from './layout.ts';
import type { StagingPiece } from './staging.ts';

const NO_ENVELOPE: Envelope = { group: 0, tag: 0, sequence: 0, step: 0, signature: 0, weight: 0 };

export class Outgoing implements Transfer {
  readonly peer: number;
  readonly kind: number;
  readonly envelope: Envelope;
  done = false;
  dtype = 0;
  length = 0;
  /** Bytes of `source` or `payload`. */
  payloadBytes = 0;
  source: Region | undefined = undefined;
  payload: Uint8Array | undefined = undefined;
  slot = 0;
  offset = 0;
  id = 0;
  /** Copied there, so that the send is done before it is acknowledged. */
  staged: StagingPiece | undefined = undefined;
  /** Its operation was forgotten: nobody waits for it. */
  forgotten = false;

  constructor(peer: number, kind: number, envelope: Envelope) {
    this.peer = peer;
    this.kind = kind;
    this.envelope = envelope;
  }
}

export function inlineMessage(peer: number, envelope: Envelope, region: Region, bytes: number): Outgoing {
  const outgoing = new Outgoing(peer, EntryKind.INLINE, envelope);
  outgoing.dtype = dtypeCode(region.dtype);
  outgoing.length = region.length;
  outgoing.source = region;
  outgoing.payloadBytes = bytes;
  return outgoing;
}

/** A message or a lent region that stays where it is: at a byte of an announced segment. */
export function inPlaceEntry(
  peer: number,
  kind: typeof EntryKind.IN_PLACE | typeof EntryKind.LENT,
  envelope: Envelope,
  region: Region,
  place: { readonly slot: number; readonly offset: number },
): Outgoing {
  const outgoing = new Outgoing(peer, kind, envelope);
  outgoing.dtype = dtypeCode(region.dtype);
  outgoing.length = region.length;
  outgoing.slot = place.slot;
  outgoing.offset = place.offset;
  return outgoing;
}

export function acknowledgement(peer: number, id: number): Outgoing {
  const outgoing = new Outgoing(peer, EntryKind.ACKNOWLEDGEMENT, NO_ENVELOPE);
  outgoing.id = id;
  return outgoing;
}

export function textEntry(
  peer: number,
  kind: typeof EntryKind.NOTICE | typeof EntryKind.SEGMENT,
  payload: Uint8Array,
  slot = 0,
): Outgoing {
  const outgoing = new Outgoing(peer, kind, NO_ENVELOPE);
  outgoing.payload = payload;
  outgoing.payloadBytes = payload.length;
  outgoing.slot = slot;
  return outgoing;
}
