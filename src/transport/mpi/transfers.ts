/**
 * What the MPI transport has under way: messages out, messages in, and payloads that nobody wants. They only hold state;
 * mpi-transport.ts moves them on. Invariant: `landed` says that MPI is done with the memory, `done` what the user may
 * see of it; a transfer that was withdrawn lands but is never done.
 */
import type { Region } from '../../memory/index.ts';
import type { OperationKey } from '../matching.ts';
import type { Envelope, Receiving, Transfer } from '../transport.ts';
import type { MessageSlot } from './message-slot.ts';
import type { RequestOwner } from './request-table.ts';

/** A slot on its way out. */
export class SlotSending implements RequestOwner {
  readonly kind = 'slot';
  readonly peer: number;
  readonly slot: MessageSlot;
  landed = false;
  code = 0;

  constructor(peer: number, slot: MessageSlot) {
    this.peer = peer;
    this.slot = slot;
  }
}

/** A message out. One with a small payload is done when it is in its slot. */
export class MessageSending implements RequestOwner, Transfer {
  readonly kind = 'send';
  readonly peer: number;
  readonly envelope: Envelope;
  landed = false;
  code = 0;
  done = false;
  withdrawn = false;

  constructor(peer: number, envelope: Envelope) {
    this.peer = peer;
    this.envelope = envelope;
  }
}

/** A receive, from its posting on. */
export class MessageReceiving implements RequestOwner, Receiving {
  readonly kind = 'receive';
  readonly peer: number;
  readonly envelope: Envelope;
  readonly region: Region;
  landed = false;
  code = 0;
  done = false;
  withdrawn = false;
  weight = 0;

  constructor(peer: number, envelope: Envelope, region: Region) {
    this.peer = peer;
    this.envelope = envelope;
    this.region = region;
  }

  /** The payload is the receiver's own copy; the sender waits for nothing. */
  release(): void {}
}

/** A payload that is taken from MPI into memory of its own, only to be thrown away. */
export class PayloadDropped implements RequestOwner {
  readonly kind = 'drop';
  readonly peer: number;
  readonly address: number;
  landed = false;
  code = 0;

  constructor(peer: number, address: number) {
    this.peer = peer;
    this.address = address;
  }
}

/** All ranks of the job, meeting. */
export class Meeting implements RequestOwner {
  readonly kind = 'meeting';
  readonly peer: number;
  landed = false;
  code = 0;

  constructor(self: number) {
    this.peer = self;
  }
}

export type Owner = SlotSending | MessageSending | MessageReceiving | PayloadDropped | Meeting;

/** A message that nobody has asked for yet: its payload is here if it was small, else still with MPI. */
export interface ArrivedMessage {
  readonly peer: number;
  readonly envelope: Envelope;
  readonly payloadBytes: number;
  readonly payloadTag: number;
  /** The payload if its tag is 0, else empty. */
  readonly inline: Uint8Array;
  /** Its sender took it back. */
  withdrawn: boolean;
}

/** Whether somebody still waits for it. */
export function isWanted(owner: Owner): boolean {
  return owner.kind === 'slot' || ((owner.kind === 'send' || owner.kind === 'receive') && !owner.withdrawn);
}

export function sameOperation(envelope: Envelope, { group, tag, sequence }: OperationKey): boolean {
  return envelope.sequence === sequence && envelope.tag === tag && envelope.group === group;
}
