/**
 * The contract of a transport: it moves regions of memory between the members of a cluster and says who is lost.
 * It knows nothing of collectives. Terms: a member is a process, known by a number that is never given twice; a
 * message is a region with an envelope; a notice is a small text outside all operations. Invariant: a message
 * completes exactly the receive that has the same sender, group, tag, sequence and step, whatever order they came in.
 */
import type { PeerError } from '../base/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';

/** What a message belongs to. All but `weight` are whole numbers from 0 to 2^32 - 1. */
export interface Envelope {
  readonly group: number;
  readonly tag: number;
  /** Counts the operations of a group that have the same tag. */
  readonly sequence: number;
  /** Which message of the operation it is; never twice between two members in one operation and direction. */
  readonly step: number;
  /** A hash of what the sender takes the operation for; the receiver's must be the same. */
  readonly signature: number;
  /** How much was merged into the payload: the divisor of averages. */
  readonly weight: number;
}

/** A send or receive under way. `done` changes only inside `poll`, or before the call that started it returns. */
export interface Transfer {
  readonly peer: number;
  readonly done: boolean;
}

export interface Receiving extends Transfer {
  /** Once done: the payload, in the region that was given or, where memory is shared, where the sender has it. */
  readonly region: Region;
  /** Once done: the weight of the envelope. */
  readonly weight: number;
  /** The payload has been read; the sender may have its region back. Must be called once for each done receive. */
  release(): void;
}

/** What a transport tells its user, from inside `poll` and `block`; never from inside `send` or `receive`. */
export interface TransportEvents {
  /** A notice; those of one peer come in the order in which they were sent. */
  notice(peer: number, text: string): void;
  /**
   * Nothing will come from the peer any more: it died, its connection broke, it broke the protocol, or it left while
   * something was expected of it. Told once.
   */
  lost(peer: number, error: PeerError): void;
  /** A message for a posted receive has another signature or length; it is dropped and the receive never completes. */
  mismatch(peer: number, envelope: Envelope, payloadBytes: number): void;
}

export interface MemberAddress {
  readonly member: number;
  /** For messages: 'process 4711 on host-a'. */
  readonly title: string;
  /** Members with the same host share memory. */
  readonly host: string;
  /** What the transport of that member said of itself in `address`, as it came; hostile until checked. */
  readonly address: Readonly<Record<string, unknown>>;
}

export interface ConnectOptions {
  /** Longest wait for all peers, in milliseconds. Default 30,000. */
  readonly connectTimeoutMs?: number;
  readonly signal?: AbortSignal | undefined;
}

/** Reading and writing a peer's memory in place. */
export interface InPlace {
  /**
   * Shows a region to a peer until the operation ends; the peer may write to it. There is no acknowledgement: a later
   * message of the peer tells that it has finished.
   */
  lend(peer: number, envelope: Envelope, region: Region): Transfer;
  /** Completes when the peer has lent a region of this type and length; `region` is its memory, mapped here. */
  borrow(peer: number, envelope: Envelope, dtype: Region['dtype'], length: number): Receiving;
  /**
   * Says that this process is about to write into borrowed regions of an operation. Afterwards poll once more and only
   * write if the operation is still on: whoever leaves it waits in `forget` until nobody writes.
   */
  enter(envelope: Envelope): void;
  leave(): void;
  /** Nothing in the segment is lent or sent again: peers that have mapped it give its memory back. */
  letGo?(segment: Segment): void;
  /** Whether peers can map any named segment of the shared-memory file system by its name. */
  readonly mapsNamedSegments?: boolean;
  /** Whether peers can map the region; others are copied through memory that they can map. */
  isShareable(region: Region): boolean;
}

export type NativeOperation = 'sum' | 'min' | 'max' | 'product';

/** Collectives that the library below the transport brings. They block, so all ranks must have agreed to call them. */
export interface NativeCollectives {
  /**
   * In place, among the members given, who all call it with the same list. The list must not change between calls; give
   * another one for another group.
   */
  allReduce(members: readonly number[], region: Region, operation: NativeOperation): void;
}

export interface Transport {
  readonly kind: string;
  /** This process's own number in the cluster. */
  readonly member: number;
  readonly space: SharedSpace;
  /** What others need to know to reach this process; plain data. */
  readonly address: Readonly<Record<string, unknown>>;
  /** Only where members share memory. */
  readonly inPlace?: InPlace | undefined;
  /** Only on MPI. */
  readonly native?: NativeCollectives | undefined;

  /** Reaches the peers, and is reached by them; returns when messages can flow both ways. May be called for more. */
  connect(self: number, peers: readonly MemberAddress[], options?: ConnectOptions): Promise<void>;
  /**
   * Whether the peer has closed its transport in order and all that it sent has come. What came can still be received;
   * it counts as lost only once something else is expected of it, so that whoever is done may leave before the others.
   */
  hasLeft(peer: number): boolean;
  /** Gives up the resources for a peer; nothing more comes from it, and `lost` is not told. */
  disconnect(peer: number): void;
  /** Receives events; set once, before anything is sent. */
  listen(events: TransportEvents): void;

  /** The region must not change until it is done. Messages to a lost peer never complete. */
  send(peer: number, envelope: Envelope, region: Region): Transfer;
  receive(peer: number, envelope: Envelope, into: Region): Receiving;
  /** Up to 32 KiB of text. */
  notify(peer: number, text: string): void;

  /** Moves what can be moved without waiting; true if anything changed. */
  poll(): boolean;
  /** Sleeps until `poll` may have something to do, at most so long. Looks after lost peers. */
  block(timeoutMs: number): void;
  /** Whether nothing is posted or half sent, so that waiting for this transport would be for nothing. */
  readonly idle: boolean;
  /**
   * The operation ended early: its receives are withdrawn, what still comes for it is dropped, and on return no peer
   * reads or writes its regions in a way that would harm their reuse. A peer that was stopped while it wrote to lent
   * memory is waited for only so long and then counts as lost: until its process is gone it may write once more.
   */
  forget(operation: Pick<Envelope, 'group' | 'tag' | 'sequence'>): void;

  /** Sends what was started, then lets go of everything. */
  close(): Promise<void>;
  /** Lets go of everything at once; peers see this member as lost. */
  abort(error: Error): void;
}
