/**
 * A posted receive or borrow, and a message that came before its receive. They hold the payload or the way to it; they
 * match nothing. Invariant: a payload read in place is acknowledged exactly once, when it is released or dropped.
 */
import { InternalError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import type { Envelope, Receiving } from '../transport.ts';
import type { ForeignSegment } from './foreign-segments.ts';
import { EntryKind } from './layout.ts';
import type { Link } from './link.ts';

/** A payload where the sender has it, mapped here. */
export class InPlacePayload {
  readonly region: Region;
  readonly #link: Link;
  readonly #foreign: ForeignSegment;
  /** 0 for lent regions, which are not acknowledged. */
  readonly #id: number;
  #released = false;

  constructor(link: Link, foreign: ForeignSegment, region: Region, id: number) {
    this.#link = link;
    this.#foreign = foreign;
    this.region = region;
    this.#id = id;
  }

  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#foreign.release();
    if (this.#id !== 0) this.#link.acknowledge(this.#id);
  }
}

/** A message that nobody has asked for yet. */
export class EarlyMessage {
  readonly kind: number;
  readonly envelope: Envelope;
  readonly dtype: number;
  readonly length: number;
  readonly payloadBytes: number;
  /** On the heap, so that it does not hold up the ring; or where the sender has it. */
  readonly payload: Uint8Array | InPlacePayload;

  constructor(
    envelope: Envelope,
    kind: number,
    dtype: number,
    length: number,
    payloadBytes: number,
    payload: Uint8Array | InPlacePayload,
  ) {
    this.envelope = envelope;
    this.kind = kind;
    this.dtype = dtype;
    this.length = length;
    this.payloadBytes = payloadBytes;
    this.payload = payload;
  }
}

export class Receive implements Receiving {
  readonly peer: number;
  /** Undefined for a borrow. */
  readonly into: Region | undefined;
  readonly dtype: number;
  readonly length: number;
  done = false;
  weight = 0;
  #inPlace: InPlacePayload | undefined;

  constructor(peer: number, into: Region | undefined, dtype: number, length: number) {
    this.peer = peer;
    this.into = into;
    this.dtype = dtype;
    this.length = length;
  }

  get region(): Region {
    const region = this.#inPlace ? this.#inPlace.region : this.into;
    if (region && this.done) return region;
    throw new InternalError(
      'BROKEN_INVARIANT',
      `the region of a receive from member ${this.peer} was asked before it was done; wait for 'done'`,
      { peer: this.peer },
    );
  }

  /** Whether a message of this kind, type and length is what was asked for. */
  accepts(kind: number, dtype: number, length: number): boolean {
    return (
      dtype === this.dtype &&
      length === this.length &&
      (kind === EntryKind.LENT) === (this.into === undefined)
    );
  }

  complete(weight: number, inPlace?: InPlacePayload): void {
    this.#inPlace = inPlace;
    this.weight = weight;
    this.done = true;
  }

  release(): void {
    this.#inPlace?.release();
  }
}
