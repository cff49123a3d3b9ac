/**
 * The transport on Open MPI, for processes that mpirun or srun started: a member is a rank. Every message is a small MPI
 * message with the envelope; a large payload follows as an MPI message of its own, straight between the regions, and
 * stays with MPI until its receive is posted. Not elastic: MPI ends the whole job when a rank dies; `lost` tells of
 * ranks that left. Invariants: a receive is done only after all headers that came before its last byte were read, so that
 * a sender can take back what it is about to overwrite; after `close` MPI touches no region.
 */
import { UsageError } from '../../base/index.ts';
import type { PeerError } from '../../base/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { Region } from '../../memory/index.ts';
import { Matching } from '../matching.ts';
import type { OperationKey } from '../matching.ts';
import type { ConnectOptions, Envelope, MemberAddress, Receiving } from '../transport.ts';
import type { Transfer, Transport, TransportEvents } from '../transport.ts';
import { MpiChannel } from './channel.ts';
import { introduce, joinJob } from './job.ts';
import type { MpiJob } from './job.ts';
import { loadMpi, MAX_COUNT, SUCCESS } from './library.ts';
import type { MpiLibrary } from './library.ts';
import { brokenError, foreignError, goneError, leftError, stalledError } from './losses.ts';
import { bytesOf, INLINE_BYTES, MessageKind } from './message-slot.ts';
import type { MessageSlot } from './message-slot.ts';
import { OpenMpiCollectives } from './native-collectives.ts';
import type { NativeCollectives } from './native-collectives.ts';
import { NoticeReader, noticeParts } from './notices.ts';
import { isWanted, MessageReceiving, MessageSending, sameOperation } from './transfers.ts';
import type { ArrivedMessage, Owner } from './transfers.ts';

export interface MpiTransportOptions {
  /** Memory for small messages, and of the regions. Default: a space of its own. */
  readonly space?: SharedSpace | undefined;
  /** Open MPI's library, as the system's loader takes it. Default 'libmpi.so.40'. */
  readonly libraryPath?: string | undefined;
  /** Longest wait of `close` for sends and for the other ranks to close too, in milliseconds. Default 10,000. */
  readonly closeTimeoutMs?: number | undefined;
  /** Longest wait of `forget` for a payload that is arriving, in milliseconds; its sender then counts as lost. Default 5,000. */
  readonly forgetTimeoutMs?: number | undefined;
}

export interface MpiTransport extends Transport {
  readonly kind: 'mpi';
  /** Ranks of the job. */
  readonly size: number;
  /** Open MPI's own collectives. */
  readonly native: NativeCollectives;
  /** What each rank says of itself, by rank. Blocks until all have called it. */
  introduce(text: string): readonly string[];
}

/** Must be called by all ranks of the job, once in each process: it starts MPI, which meets. */
export function createMpiTransport(options: MpiTransportOptions = {}): MpiTransport {
  return new OpenMpiTransport(loadMpi(options.libraryPath ?? 'libmpi.so.40'), options);
}

/** Spinning costs a processor that others may need; sleeping costs the next message its latency. */
const SPIN_MS = 0.05;
const SLEEP_MICROSECONDS = 50;
const NO_ENVELOPE: Envelope = { group: 0, tag: 0, sequence: 0, step: 0, signature: 0, weight: 0 };

class OpenMpiTransport implements MpiTransport {
  readonly kind = 'mpi';
  readonly member: number;
  readonly size: number;
  readonly space: SharedSpace;
  readonly address = {};
  readonly native: NativeCollectives;
  readonly #mpi: MpiLibrary;
  readonly #job: MpiJob;
  readonly #closeTimeoutMs: number;
  readonly #forgetTimeoutMs: number;
  readonly #channel: MpiChannel;
  readonly #matching = new Matching<MessageReceiving, ArrivedMessage>();
  /** Messages that nobody has asked for and whose payload is still with MPI. */
  readonly #keptLarge = new Set<ArrivedMessage>();
  readonly #notices = new NoticeReader();
  readonly #connected = new Set<number>();
  readonly #disconnected = new Set<number>();
  readonly #lost = new Set<number>();
  /** Those that said goodbye, with the error for whoever still expects something of them. */
  readonly #left = new Map<number, PeerError>();
  /** MPI is done with them; they are finished once the slots that came before were read. */
  #landed: readonly Owner[] = [];
  /** What happened outside `poll`; the next one emits it. */
  #untold: (() => void)[] = [];
  #events: TransportEvents | undefined;
  #state: 'open' | 'closing' | 'closed' = 'open';

  constructor(mpi: MpiLibrary, options: MpiTransportOptions) {
    this.#mpi = mpi;
    this.#closeTimeoutMs = options.closeTimeoutMs ?? 10_000;
    this.#forgetTimeoutMs = options.forgetTimeoutMs ?? 5_000;
    this.#job = joinJob(mpi);
    this.member = this.#job.rank;
    this.size = this.#job.size;
    this.space = options.space ?? SharedSpace.create();
    this.#channel = new MpiChannel(mpi, this.#job.messages, this.space);
    this.native = new OpenMpiCollectives(mpi, this.#job.collectives, this.member, this.size);
  }

  introduce(text: string): readonly string[] {
    return introduce(this.#mpi, this.#job, text);
  }

  /** MPI has connected everyone already; this only checks who is meant. */
  connect(self: number, peers: readonly MemberAddress[], options: ConnectOptions = {}): Promise<void> {
    return Promise.resolve().then(() => {
      options.signal?.throwIfAborted();
      if (self !== this.member) {
        throw new UsageError(
          'INVALID_ARGUMENT',
          `this process is rank ${this.member} of MPI but was to be member ${self}; number the members by their MPI ranks`,
          { rank: this.member, self },
        );
      }
      for (const { member, title } of peers) {
        this.#checkPeer(member, title);
        if (this.#lost.has(member) || this.#left.has(member)) throw goneError(member);
        this.#connected.add(member);
        this.#disconnected.delete(member);
      }
    });
  }

  hasLeft(peer: number): boolean {
    if (!this.#left.has(peer) || this.#lost.has(peer)) return false;
    // Its goodbye may be read before the payload of what came before it.
    return !this.#unfinished().some(
      (owner) => owner.kind === 'receive' && owner.peer === peer && !owner.withdrawn,
    );
  }

  disconnect(peer: number): void {
    this.#checkPeer(peer);
    this.#connected.delete(peer);
    this.#disconnected.add(peer);
    for (const arrived of this.#matching.drop(peer)) this.#drop(arrived);
    this.#withdraw((transfer) => transfer.peer === peer);
  }

  listen(events: TransportEvents): void {
    if (this.#events)
      throw new UsageError('INVALID_ARGUMENT', 'the transport has a listener already; listen once');
    this.#events = events;
  }

  send(peer: number, envelope: Envelope, region: Region): Transfer {
    const sending = new MessageSending(peer, { ...envelope });
    if (!this.#reaches(peer) || this.#isMissed(peer)) return sending;
    const payloadBytes = region.byteLength;
    const header = { kind: MessageKind.message, envelope, payloadBytes, payloadTag: 0, more: false };
    if (payloadBytes <= INLINE_BYTES) {
      this.#channel.sendSlot(peer, header, bytesOf(region));
      sending.done = true;
      return sending;
    }
    if (payloadBytes > MAX_COUNT) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `a message of ${payloadBytes} bytes to rank ${peer} is more than the ${MAX_COUNT} that MPI counts; send it in parts`,
        { peer, payloadBytes },
      );
    }
    const payloadTag = this.#channel.nextPayloadTag();
    this.#channel.sendSlot(peer, { ...header, payloadTag });
    this.#channel.sendPayload(sending, region, payloadTag);
    return sending;
  }

  receive(peer: number, envelope: Envelope, into: Region): Receiving {
    const receiving = new MessageReceiving(peer, { ...envelope }, into);
    if (!this.#reaches(peer)) return receiving;
    const arrived = this.#matching.post(peer, receiving.envelope, receiving);
    if (arrived) this.#meet(receiving, arrived, (tell) => this.#untold.push(tell));
    else this.#isMissed(peer);
    return receiving;
  }

  notify(peer: number, text: string): void {
    if (!this.#reaches(peer) || this.#isMissed(peer)) return;
    for (const { bytes, more } of noticeParts(text, INLINE_BYTES))
      this.#sendControl(peer, MessageKind.notice, { bytes, more });
  }

  poll(): boolean {
    if (this.#state === 'closed') return false;
    this.#landed = this.#channel.takeLanded();
    const came = this.#channel.readSlots((source, slot) => this.#take(source, slot));
    for (const owner of this.#landed) this.#finish(owner);
    const changed = came || this.#landed.length > 0 || this.#untold.length > 0;
    this.#landed = [];
    for (const tell of this.#untold.splice(0)) tell();
    return changed;
  }

  block(timeoutMs: number): void {
    if (this.#state === 'closed') return;
    const start = performance.now();
    while (!this.#channel.test() && this.#untold.length === 0) {
      const waitedMs = performance.now() - start;
      if (waitedMs >= timeoutMs) return;
      if (waitedMs < SPIN_MS) this.#mpi.yieldProcessor();
      else this.#mpi.sleep(SLEEP_MICROSECONDS);
    }
  }

  get idle(): boolean {
    return this.#matching.postedCount === 0 && !this.#channel.underWay.some(isWanted);
  }

  forget(operation: OperationKey): void {
    for (const arrived of this.#matching.forget(operation)) this.#drop(arrived);
    const sentTo = this.#withdraw(({ envelope }) => sameOperation(envelope, operation));
    const envelope = { ...NO_ENVELOPE, ...operation };
    for (const peer of sentTo) this.#sendControl(peer, MessageKind.withdraw, { envelope });
  }

  async close(): Promise<void> {
    if (this.#state !== 'open') return;
    this.#state = 'closing';
    const deadline = performance.now() + this.#closeTimeoutMs;
    const until = async (condition: () => boolean): Promise<boolean> => {
      while (!condition()) {
        if (performance.now() > deadline) return false;
        this.poll();
        await new Promise(setImmediate);
      }
      return true;
    };
    for (let peer = 0; peer < this.size; peer++) {
      for (const arrived of this.#matching.drop(peer)) this.#drop(arrived);
    }
    await until(() => !this.#channel.underWay.some(isWanted));
    this.#sayBye(MessageKind.bye, 'it closed its transport');
    const meeting = this.#channel.beginMeeting(this.member);
    const allHere = await until(() => meeting.landed && this.#channel.underWay.length === 0);
    this.#state = 'closed';
    // Without the others MPI_Finalize would wait for ever, and what MPI may still write to must stay where it is.
    if (!allHere) return;
    this.#channel.close();
    if (this.#job.startedHere) this.#mpi.check(this.#mpi.call.MPI_Finalize(), 'MPI_Finalize');
  }

  abort(error: Error): void {
    if (this.#state === 'closed') return;
    this.#state = 'closing';
    this.#sayBye(MessageKind.aborted, error.message);
    // Small messages leave at once or with MPI's next steps; nothing more can be promised to peers without waiting.
    for (let i = 0; i < 100 && this.#channel.underWay.some(({ kind }) => kind === 'slot'); i++) this.poll();
    this.#state = 'closed';
  }

  #sayBye(kind: MessageKind, reason: string): void {
    const bytes = Buffer.from(reason).subarray(0, INLINE_BYTES);
    for (const peer of this.#connected) {
      if (!this.#lost.has(peer)) this.#sendControl(peer, kind, { bytes });
    }
  }

  #sendControl(
    peer: number,
    kind: MessageKind,
    content: { readonly envelope?: Envelope; readonly bytes?: Uint8Array; readonly more?: boolean },
  ): void {
    const { envelope = NO_ENVELOPE, bytes = new Uint8Array(), more = false } = content;
    const header = { kind, envelope, payloadBytes: bytes.length, payloadTag: 0, more };
    this.#channel.sendSlot(peer, header, bytes);
  }

  /** Reads one slot that came. */
  #take(peer: number, slot: MessageSlot): void {
    const header = slot.read();
    if (!header) {
      this.#lose(peer, foreignError(peer));
      return;
    }
    const { kind, envelope, payloadBytes, payloadTag } = header;
    const inline = slot.inline.subarray(0, payloadTag === 0 ? payloadBytes : 0);
    const unwanted = this.#state !== 'open' || !this.#reaches(peer);
    if (kind === MessageKind.message) {
      const arrived = { peer, envelope, payloadBytes, payloadTag, inline, withdrawn: false };
      if (unwanted || this.#matching.isForgotten(envelope)) this.#drop(arrived);
      else this.#match(arrived);
    } else if (unwanted) {
      return;
    } else if (kind === MessageKind.notice) {
      const text = this.#notices.add(peer, inline, header.more);
      if (text !== undefined) this.#events?.notice(peer, text);
    } else if (kind === MessageKind.withdraw) {
      this.#takeBack(peer, envelope);
    } else if (kind === MessageKind.bye || kind === MessageKind.aborted) {
      const error = leftError(peer, Buffer.from(inline).toString('utf8'));
      if (kind === MessageKind.aborted || this.#matching.expects(peer)) this.#lose(peer, error);
      else this.#left.set(peer, error);
    }
  }

  #match(arrived: ArrivedMessage): void {
    const { peer, envelope, payloadTag, inline } = arrived;
    const match = this.#matching.arrive(peer, envelope);
    if (match) return this.#meet(match.posted, arrived, (tell) => tell());
    // The slot is posted again after this; what is kept needs a copy.
    const kept = { ...arrived, inline: inline.slice() };
    this.#matching.keep(peer, envelope, kept);
    if (payloadTag !== 0) this.#keptLarge.add(kept);
  }

  /** A receive and its message have found each other. */
  #meet(receiving: MessageReceiving, arrived: ArrivedMessage, tell: (event: () => void) => void): void {
    const { peer, envelope, payloadBytes, payloadTag, inline, withdrawn } = arrived;
    if (withdrawn) return this.#drop(arrived);
    const { region, envelope: expected } = receiving;
    if (envelope.signature !== expected.signature || payloadBytes !== region.byteLength) {
      this.#drop(arrived);
      tell(() => this.#events?.mismatch(peer, envelope, payloadBytes));
      return;
    }
    receiving.weight = envelope.weight;
    if (payloadTag === 0) {
      bytesOf(region).set(inline);
      receiving.done = true;
      return;
    }
    this.#keptLarge.delete(arrived);
    this.#channel.receivePayload(receiving, payloadTag);
  }

  #drop(arrived: ArrivedMessage): void {
    const { peer, payloadTag, payloadBytes } = arrived;
    this.#keptLarge.delete(arrived);
    if (payloadTag !== 0) this.#channel.dropPayload(peer, payloadTag, payloadBytes);
  }

  /** The peer ended an operation: what it has not sent yet may be overwritten by now. */
  #takeBack(peer: number, operation: OperationKey): void {
    for (const arrived of this.#keptLarge) {
      if (arrived.peer === peer && sameOperation(arrived.envelope, operation)) arrived.withdrawn = true;
    }
    for (const owner of this.#unfinished()) {
      if (owner.kind === 'receive' && owner.peer === peer && sameOperation(owner.envelope, operation))
        owner.withdrawn = true;
    }
  }

  /** MPI is done with the memory of the owner. */
  #finish(owner: Owner): void {
    if (owner.code !== SUCCESS) {
      const { peer, code } = owner;
      this.#lose(peer, brokenError(this.member, peer, code, this.#mpi.errorText(code)));
    } else if ((owner.kind === 'send' || owner.kind === 'receive') && !owner.withdrawn) {
      owner.done = true;
    }
  }

  /**
   * Takes transfers back: none of them will be done, and on return no receive among them is written to. Returns the
   * peers whom something was being sent to.
   */
  #withdraw(matches: (transfer: MessageSending | MessageReceiving) => boolean): ReadonlySet<number> {
    const receives: MessageReceiving[] = [];
    const sentTo = new Set<number>();
    for (const owner of this.#unfinished()) {
      if ((owner.kind !== 'send' && owner.kind !== 'receive') || owner.withdrawn || !matches(owner)) continue;
      owner.withdrawn = true;
      if (owner.kind === 'send') sentTo.add(owner.peer);
      else receives.push(owner);
    }
    const deadline = performance.now() + this.#forgetTimeoutMs;
    for (const { peer, region } of receives.filter((receiving) => !this.#lands(receiving, deadline))) {
      const error = stalledError(peer, region.byteLength, this.#forgetTimeoutMs);
      this.#untold.push(() => this.#lose(peer, error));
    }
    return sentTo;
  }

  /** Waits without telling anybody anything: what comes meanwhile is for `poll`. */
  #lands(receiving: MessageReceiving, deadline: number): boolean {
    while (!receiving.landed && performance.now() < deadline) {
      this.#channel.test();
      this.#mpi.yieldProcessor();
    }
    return receiving.landed;
  }

  /** Everything that may still become done, landed or not. */
  #unfinished(): readonly Owner[] {
    return [...this.#landed, ...this.#channel.landed, ...this.#channel.underWay];
  }

  /** Something is expected of a peer; if it has left, it is lost from now on. */
  #isMissed(peer: number): boolean {
    const error = this.#left.get(peer);
    if (error) this.#untold.push(() => this.#lose(peer, error));
    return error !== undefined;
  }

  #lose(peer: number, error: PeerError): void {
    if (this.#lost.has(peer)) return;
    this.#lost.add(peer);
    for (const arrived of this.#matching.drop(peer)) this.#keptLarge.delete(arrived);
    for (const owner of this.#unfinished()) {
      if ((owner.kind === 'send' || owner.kind === 'receive') && owner.peer === peer) owner.withdrawn = true;
    }
    if (this.#state === 'open' && this.#connected.has(peer)) this.#events?.lost(peer, error);
  }

  #checkPeer(peer: number, title = 'a peer'): void {
    if (Number.isInteger(peer) && peer >= 0 && peer < this.size) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${title} (member ${peer}) is no rank of this MPI job, which has ${this.size}; number the members from 0 to ${this.size - 1}`,
      { peer, size: this.size },
    );
  }

  /** False for peers that are lost or disconnected: nothing goes to them or comes from them. */
  #reaches(peer: number): boolean {
    if (this.#state !== 'open') {
      const message = `the MPI transport of rank ${this.member} is closed; create it once, close it last`;
      throw new UsageError('INVALID_ARGUMENT', message, { rank: this.member });
    }
    this.#checkPeer(peer);
    return !this.#lost.has(peer) && !this.#disconnected.has(peer);
  }
}
