/**
 * The transport between processes of one host. Small messages are copied through a ring in shared memory, large ones
 * are read where the sender has them, so that a message costs what touching its bytes costs. It spins for nobody:
 * `poll` looks, `block` sleeps on a futex. Invariant: whatever a peer writes into shared memory or however it ends,
 * this process goes on and says which member it was.
 */
import { randomBytes } from 'node:crypto';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { InternalError, UsageError } from '../../base/index.ts';
import { currentProcess, defaultSegmentDirectory, isAlive, yieldProcessor } from '../../memory/index.ts';
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import type { OperationKey } from '../matching.ts';
import type {
  ConnectOptions,
  Envelope,
  InPlace,
  MemberAddress,
  Receiving,
  Transfer,
  Transport,
  TransportEvents,
} from '../transport.ts';
import { Arrivals } from './arrivals.ts';
import type { Fault } from './arrivals.ts';
import { describeSelf, reachPeers } from './connecting.ts';
import { Control } from './control.ts';
import { CONTROL_BYTES, dtypeCode, EntryKind, MAX_NOTICE_BYTES, MemberState } from './layout.ts';
import { Link } from './link.ts';
import { copyBytesIn } from './memory-copy.ts';
import type { CopyBytes } from './memory-copy.ts';
import { checkOptions } from './options.ts';
import type { CheckedOptions, SharedMemoryOptions } from './options.ts';
import { inlineMessage, inPlaceEntry, Outgoing, textEntry } from './outgoing.ts';
import { Receive } from './receive.ts';
import { Staging } from './staging.ts';

/** How often the processes of the peers are looked at while blocked. */
const LIVENESS_PAUSE_MS = 50;
/** Between two looks at the process of a writer for which `forget` waits: on a busy machine a turn takes milliseconds. */
const FORGET_LIVENESS_PAUSE_MS = 5;
const WITHOUT_IT = 'form a new group without it';

export class SharedMemoryTransport implements Transport, InPlace {
  readonly kind = 'shared-memory';
  readonly space: SharedSpace;
  readonly address: Readonly<Record<string, unknown>>;
  readonly #options: CheckedOptions;
  readonly #controlName: string;
  readonly #control: Control;
  readonly #copyBytes: CopyBytes;
  readonly #arrivals: Arrivals;
  readonly #staging: Staging;
  readonly #links = new Map<number, Link>();
  /** Links that are neither lost nor over, in a form that is quick to go through. */
  #active: Link[] = [];
  readonly #gone = new Set<number>();
  #member = -1;
  #events: TransportEvents | undefined;
  #untold: ((to: TransportEvents) => void)[] = [];
  #lastLivenessMs = 0;
  #ended = false;
  readonly #hasWork = (): boolean => this.#findWork();

  /** Use `createSharedMemoryTransport`. */
  constructor(options: CheckedOptions) {
    this.#options = options;
    this.space = options.space;
    this.#controlName = `${options.session}-${randomBytes(8).toString('hex')}`;
    this.#control = new Control(this.#createSegment(this.#controlName, CONTROL_BYTES));
    this.address = Object.freeze(describeSelf(this.#controlName, currentProcess()));
    this.#copyBytes = copyBytesIn(this.space);
    this.#arrivals = new Arrivals(this.space, this.#copyBytes, (event) => this.#untold.push(event));
    this.#staging = new Staging((number, byteLength) =>
      this.#createSegment(`${this.#controlName}-staging-${number}`, byteLength),
    );
  }

  get member(): number {
    return this.#member;
  }

  get inPlace(): InPlace {
    return this;
  }

  get idle(): boolean {
    if (this.#arrivals.postedCount > 0) return false;
    for (const link of this.#active) if (!link.idle) return false;
    return true;
  }

  async connect(self: number, peers: readonly MemberAddress[], options: ConnectOptions = {}): Promise<void> {
    this.#checkOpen();
    this.#member = self;
    const fresh = peers.filter(({ member }) => member !== self && !this.#links.has(member));
    const { directory, ringBytes } = this.#options;
    const parts = await reachPeers(
      fresh,
      { space: this.space, directory, ringBytes, ownControlName: this.#controlName },
      { timeoutMs: options.connectTimeoutMs ?? 30_000, signal: options.signal },
    );
    const surroundings = {
      space: this.space,
      directory,
      copyBytes: this.#copyBytes,
      staging: this.#staging,
    };
    const links = parts.map((part) => new Link(part, surroundings));
    if (this.#ended) for (const link of links) link.close();
    this.#checkOpen();
    for (const link of links) {
      this.#links.set(link.member, link);
      this.#gone.delete(link.member);
    }
    this.#active = [...this.#links.values()].filter((link) => !link.lost && !link.isOver);
  }

  hasLeft(peer: number): boolean {
    const link = this.#links.get(peer);
    return link !== undefined && link.isOver && !link.lost;
  }

  disconnect(peer: number): void {
    const link = this.#links.get(peer);
    if (!link) return;
    this.#links.delete(peer);
    this.#gone.add(peer);
    this.#active = this.#active.filter((other) => other !== link);
    link.lose();
    this.#arrivals.dropPeer(peer);
    link.close();
  }

  listen(events: TransportEvents): void {
    this.#events = events;
  }

  send(peer: number, envelope: Envelope, region: Region): Transfer {
    this.#checkSpace(region);
    const link = this.#linkTo(peer);
    const bytes = region.byteLength;
    if (link && bytes > this.#options.inlineBytes) return this.#sendInPlace(link, envelope, region);
    const outgoing = inlineMessage(peer, envelope, region, bytes);
    link?.push(outgoing);
    return outgoing;
  }

  receive(peer: number, envelope: Envelope, into: Region): Receiving {
    this.#checkSpace(into);
    return this.#post(envelope, new Receive(peer, into, dtypeCode(into.dtype), into.length));
  }

  notify(peer: number, text: string): void {
    const payload = Buffer.from(text, 'utf8');
    if (payload.length > MAX_NOTICE_BYTES) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `a notice to member ${peer} has ${payload.length} bytes, at most ${MAX_NOTICE_BYTES} are allowed; send it as a message`,
        { peer, bytes: payload.length },
      );
    }
    this.#linkTo(peer)?.push(textEntry(peer, EntryKind.NOTICE, payload));
  }

  poll(): boolean {
    let changed = false;
    for (const link of this.#active) {
      if (link.reader.hasEntries) {
        changed = true;
        const fault = this.#arrivals.drain(link);
        if (fault) this.#failProtocol(link, fault);
      }
      if (link.hasQueue) changed = this.#flush(link) || changed;
    }
    return this.#tell() || changed;
  }

  block(timeoutMs: number): void {
    const deadline = performance.now() + timeoutMs;
    for (let now = performance.now(); ; now = performance.now()) {
      const left = Math.max(0, deadline - now);
      this.#control.sleep(this.#hasWork, Math.min(left, LIVENESS_PAUSE_MS));
      if (
        performance.now() - this.#lastLivenessMs >= LIVENESS_PAUSE_MS ||
        this.#active.some((link) => link.hasLeft)
      ) {
        this.#findLost();
      }
      if (this.#tell() || this.#findWork() || performance.now() >= deadline) return;
    }
  }

  /** Looks after every peer's process now. Those that are gone are reported as lost, once `poll` has taken what they sent. */
  checkPeers(): void {
    this.#findLost();
    this.#tell();
  }

  forget(operation: OperationKey): void {
    this.#arrivals.forget(operation);
    for (const link of this.#active) link.forget(operation);
    const hash = hashOf(operation);
    const { forgetTimeoutMs } = this.#options;
    const deadline = performance.now() + forgetTimeoutMs;
    // Whoever writes has said so before it last looked for notices (see `enter`), so what was said must be out first.
    for (const link of this.#active) {
      for (let lookMs = performance.now(); link.hasQueue || link.control.writing === hash;) {
        if (link.hasQueue) link.flush();
        yieldProcessor();
        const nowMs = performance.now();
        if (nowMs >= lookMs && !isAlive(link.identity)) break;
        if (nowMs >= lookMs) lookMs = nowMs + FORGET_LIVENESS_PAUSE_MS;
        if (nowMs < deadline) continue;
        const doing = link.hasQueue ? 'had not read its ring' : 'was still writing';
        const what = `${doing} ${forgetTimeoutMs} ms after an operation was forgotten`;
        const advice =
          'find out what stopped it and form a new group; until it is gone it may still write to lent memory';
        this.#fail(link, link.error('PEER_LOST', what, advice));
        break;
      }
    }
  }

  async close(): Promise<void> {
    const deadline = performance.now() + this.#options.closeTimeoutMs;
    while (!this.#ended && this.#active.some((link) => !link.drained) && performance.now() < deadline) {
      if (!this.poll()) this.block(0);
      await nextTurn();
    }
    this.#letGoOfAll(MemberState.CLOSED);
  }

  abort(_error: Error): void {
    this.#letGoOfAll(MemberState.ABORTED);
  }

  lend(peer: number, envelope: Envelope, region: Region): Transfer {
    const link = this.#linkTo(peer);
    const segment = this.#shareableSegment(region);
    if (!segment) {
      throw new InternalError(
        'BROKEN_INVARIANT',
        `a region of private memory was lent to member ${peer}, which cannot map it; ask isShareable first`,
        { peer, dtype: region.dtype, length: region.length },
      );
    }
    if (!link) return new Outgoing(peer, EntryKind.LENT, envelope);
    const place = { slot: link.slotOf(segment), offset: segment.offsetOf(region) };
    const outgoing = inPlaceEntry(peer, EntryKind.LENT, envelope, region, place);
    link.push(outgoing);
    return outgoing;
  }

  borrow(peer: number, envelope: Envelope, dtype: Region['dtype'], length: number): Receiving {
    return this.#post(envelope, new Receive(peer, undefined, dtypeCode(dtype), length));
  }

  enter(envelope: Envelope): void {
    this.#control.writing = hashOf(envelope);
  }

  leave(): void {
    this.#control.writing = 0;
  }

  letGo(segment: Segment): void {
    for (const link of this.#links.values()) link.letGo(segment);
  }

  get mapsNamedSegments(): boolean {
    return this.#options.directory === defaultSegmentDirectory();
  }

  isShareable(region: Region): boolean {
    return this.#shareableSegment(region) !== undefined;
  }

  #sendInPlace(link: Link, envelope: Envelope, region: Region): Transfer {
    let segment = this.#shareableSegment(region);
    let place = region;
    let staged;
    if (!segment) {
      staged = this.#staging.take(region.byteLength);
      this.#copyBytes(staged.byteOffset, region.byteOffset, region.byteLength);
      place = staged;
      segment = this.space.segmentAt(staged)!;
    }
    const offset = segment.offsetOf(place);
    const slot = link.slotOf(segment);
    const outgoing = inPlaceEntry(link.member, EntryKind.IN_PLACE, envelope, region, { slot, offset });
    outgoing.staged = staged;
    link.expectAcknowledgement(outgoing);
    link.push(outgoing);
    return outgoing;
  }

  #post(envelope: Envelope, receive: Receive): Receive {
    const link = this.#links.get(receive.peer) ?? this.#linkTo(receive.peer);
    if (!link || link.lost) return receive;
    this.#arrivals.post(envelope, receive);
    if (link.isOver && !receive.done) this.#lose(link);
    return receive;
  }

  #shareableSegment(region: Region): Segment | undefined {
    const segment = this.space.segmentAt(region);
    return segment?.directory === this.#options.directory ? segment : undefined;
  }

  /** Undefined for a peer that is lost, has left or was disconnected, to which nothing is sent any more. */
  #linkTo(peer: number): Link | undefined {
    const link = this.#links.get(peer);
    if (link?.isOver) this.#lose(link);
    if (link) return link.lost ? undefined : link;
    if (this.#gone.has(peer)) return undefined;
    throw new InternalError('BROKEN_INVARIANT', `member ${peer} was never connected; connect it first`, {
      peer,
      member: this.#member,
    });
  }

  #checkOpen(): void {
    if (!this.#ended) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the transport of member ${this.#member} is closed; make a new one to connect`,
      { member: this.#member },
    );
  }

  #checkSpace(region: Region): void {
    if (region.space.buffer === this.space.buffer) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      'the region lies in another space than the transport; allocate it in the space that the transport was made with',
      { dtype: region.dtype, length: region.length },
    );
  }

  #flush(link: Link): boolean {
    if (link.flush()) return true;
    const what = link.writerFault;
    if (what !== undefined) this.#failProtocol(link, { what });
    return what !== undefined;
  }

  #findWork(): boolean {
    if (this.#untold.length > 0) return true;
    for (const link of this.#active) {
      if (link.reader.hasEntries || link.canFlush || link.hasLeft) return true;
    }
    return false;
  }

  #findLost(): void {
    this.#lastLivenessMs = performance.now();
    for (const link of this.#active) {
      if (link.findEnding() === undefined || link.reader.hasEntries) continue;
      const isInOrder = link.hasClosed && link.idle && !this.#arrivals.expects(link.member);
      if (isInOrder) this.#end(link);
      else this.#lose(link);
    }
  }

  /** It is done, and nobody here waits for it. */
  #end(link: Link): void {
    link.end();
    this.#active = this.#active.filter((other) => other !== link);
  }

  /** It has ended, and something is expected of it. */
  #lose(link: Link): void {
    this.#fail(link, link.error('PEER_LOST', link.findEnding() ?? 'is gone', WITHOUT_IT));
  }

  /** A process that has ended takes its segments along; what then looks like a violation is none. */
  #failProtocol(link: Link, { what, cause }: Fault): void {
    const ending = link.findEnding();
    const error =
      ending === undefined
        ? link.error('PROTOCOL_VIOLATION', what, WITHOUT_IT, cause)
        : link.error('PEER_LOST', ending, WITHOUT_IT, cause);
    this.#fail(link, error);
  }

  #fail(link: Link, error: ReturnType<Link['error']>): void {
    if (link.lost) return;
    link.lose();
    this.#active = this.#active.filter((other) => other !== link);
    this.#arrivals.dropPeer(link.member);
    this.#untold.push((to) => to.lost(link.member, error));
  }

  /** Only here is the user called, when every structure is in order again: it may call anything from there. */
  #tell(): boolean {
    if (this.#untold.length === 0 || !this.#events) return false;
    for (let event = this.#untold.shift(); event; event = this.#untold.shift()) event(this.#events);
    return true;
  }

  #createSegment(name: string, byteLength: number): Segment {
    return this.space.createSegment(name, byteLength, { directory: this.#options.directory });
  }

  #letGoOfAll(state: (typeof MemberState)['CLOSED' | 'ABORTED']): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#control.end(state);
    for (const [member, link] of this.#links) {
      link.control.ring();
      link.lose();
      this.#arrivals.dropPeer(member);
      link.close();
      this.#gone.add(member);
    }
    this.#links.clear();
    this.#active = [];
    this.#staging.close();
    this.#control.segment.close();
  }
}

export function createSharedMemoryTransport(options: SharedMemoryOptions): SharedMemoryTransport {
  return new SharedMemoryTransport(checkOptions(options));
}

/** Never 0, which stands for no operation. */
function hashOf({ group, tag, sequence }: OperationKey): number {
  let hash = Math.imul(sequence, 0x9e3779b1) ^ tag;
  hash = Math.imul(hash ^ (hash >>> 15), 0x85ebca6b) ^ group;
  return Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35) | 1;
}
