/**
 * Brings messages and receives together by sender, group, tag, sequence and step, whichever comes first. Used by
 * every transport; it moves no bytes. Invariant: a key is in the table at most once, either as a receive that waits for
 * its message or as a message that waits for its receive; forgotten operations leave nothing in it.
 */
import type { Envelope } from './transport.ts';

export type OperationKey = Pick<Envelope, 'group' | 'tag' | 'sequence'>;

interface Entry<Posted, Arrived> {
  readonly peer: number;
  readonly envelope: Envelope;
  readonly posted: Posted | undefined;
  readonly arrived: Arrived | undefined;
  /** Another entry whose key has the same hash. */
  next: Entry<Posted, Arrived> | undefined;
}

/** Cancelled operations whose late messages are dropped; the oldest is dropped when there are more. */
const MAX_FORGOTTEN = 4096;

/** `Posted` is the transport's own receive, `Arrived` what it keeps of a message nobody has asked for yet. */
export class Matching<Posted, Arrived> {
  readonly #entries = new Map<number, Entry<Posted, Arrived>>();
  readonly #forgotten = new Set<string>();
  #posted = 0;

  /** Receives that wait for their message. */
  get postedCount(): number {
    return this.#posted;
  }

  /** A receive was posted: returns the message if it is there already, else remembers the receive. */
  post(peer: number, envelope: Envelope, posted: Posted): Arrived | undefined {
    const entry = this.#take(peer, envelope, 'arrived');
    if (entry) return entry.arrived;
    this.#put({ peer, envelope, posted, arrived: undefined, next: undefined });
    this.#posted++;
    return undefined;
  }

  /** A message came: returns and removes the receive that waits for it, with the envelope it was posted with. */
  arrive(
    peer: number,
    envelope: Envelope,
  ): { readonly posted: Posted; readonly envelope: Envelope } | undefined {
    const entry = this.#take(peer, envelope, 'posted');
    if (!entry) return undefined;
    this.#posted--;
    return entry as { readonly posted: Posted; readonly envelope: Envelope };
  }

  /** Keeps a message for which `arrive` found no receive. */
  keep(peer: number, envelope: Envelope, arrived: Arrived): void {
    this.#put({ peer, envelope, posted: undefined, arrived, next: undefined });
  }

  /** Drops the receives of an operation and remembers it as forgotten; returns the messages that nobody wants now. */
  forget(operation: OperationKey): Arrived[] {
    if (this.#forgotten.size >= MAX_FORGOTTEN) {
      this.#forgotten.delete(this.#forgotten.values().next().value!);
    }
    this.#forgotten.add(operationName(operation));
    return this.#remove(
      ({ envelope }) =>
        envelope.sequence === operation.sequence &&
        envelope.tag === operation.tag &&
        envelope.group === operation.group,
    );
  }

  /** Whether messages of the operation are to be dropped. */
  isForgotten(operation: OperationKey): boolean {
    return this.#forgotten.size > 0 && this.#forgotten.has(operationName(operation));
  }

  /** Whether a receive waits for a message of the peer. */
  expects(peer: number): boolean {
    if (this.#posted === 0) return false;
    for (const first of this.#entries.values()) {
      for (let entry: Entry<Posted, Arrived> | undefined = first; entry; entry = entry.next) {
        if (entry.peer === peer && entry.posted !== undefined) return true;
      }
    }
    return false;
  }

  /** Drops everything of a peer; returns the messages that nobody wants now. */
  drop(peer: number): Arrived[] {
    return this.#remove((entry) => entry.peer === peer);
  }

  #put(entry: Entry<Posted, Arrived>): void {
    const hash = hashOf(entry.peer, entry.envelope);
    entry.next = this.#entries.get(hash);
    this.#entries.set(hash, entry);
  }

  #take(peer: number, envelope: Envelope, wanted: 'posted' | 'arrived'): Entry<Posted, Arrived> | undefined {
    const hash = hashOf(peer, envelope);
    const first = this.#entries.get(hash);
    let before: Entry<Posted, Arrived> | undefined;
    for (let entry = first; entry; before = entry, entry = entry.next) {
      if (entry[wanted] === undefined || entry.peer !== peer || !sameKey(entry.envelope, envelope)) continue;
      if (before) before.next = entry.next;
      else if (entry.next) this.#entries.set(hash, entry.next);
      else this.#entries.delete(hash);
      return entry;
    }
    return undefined;
  }

  #remove(matches: (entry: Entry<Posted, Arrived>) => boolean): Arrived[] {
    const arrived: Arrived[] = [];
    for (const [hash, first] of this.#entries) {
      let kept: Entry<Posted, Arrived> | undefined;
      for (let entry: Entry<Posted, Arrived> | undefined = first; entry;) {
        const next: Entry<Posted, Arrived> | undefined = entry.next;
        if (matches(entry)) {
          if (entry.arrived !== undefined) arrived.push(entry.arrived);
          else this.#posted--;
        } else {
          entry.next = kept;
          kept = entry;
        }
        entry = next;
      }
      if (kept) this.#entries.set(hash, kept);
      else this.#entries.delete(hash);
    }
    return arrived;
  }
}

function sameKey(a: Envelope, b: Envelope): boolean {
  return a.step === b.step && a.sequence === b.sequence && a.tag === b.tag && a.group === b.group;
}

function operationName({ group, tag, sequence }: OperationKey): string {
  return `${group}/${tag}/${sequence}`;
}

/** A small whole number, which a Map finds quickest. */
function hashOf(peer: number, { group, tag, sequence, step }: Envelope): number {
  let hash = Math.imul(sequence, 0x9e3779b1) ^ step;
  hash = Math.imul(hash ^ (hash >>> 15), 0x85ebca6b) ^ tag;
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35) ^ (group << 8) ^ peer;
  return (hash ^ (hash >>> 16)) & 0x3fffffff;
}
