/**
 * The engine that drives operations over one transport: starts them, advances them when messages come, and ends every
 * one of them, by result, failure of a peer, disagreement, cancellation or deadline. It runs in whichever thread waits
 * and has none of its own. Invariants: an operation settles exactly once; a failed one is announced to its group and
 * forgotten by the transport before its caller learns of it; no wait is without a deadline.
 */
import { systemClock, UsageError } from '../base/index.ts';
import type { Clock, PeerError, TributaryError } from '../base/index.ts';
import { yieldProcessor } from '../memory/index.ts';
import type { OperationKey, Transfer, Transport } from '../transport/index.ts';
import { Conversation } from './conversation.ts';
import type { CallHandler, ConversationHost } from './conversation.ts';
import { GroupState } from './group-state.ts';
import { asError, cancelled, late, lostDuring, lostFrom } from './operation-errors.ts';
import { keyOf, Operation } from './operation.ts';
import type { Call, Members, OperationHost, Steps } from './operation.ts';
import { Scratch } from './scratch.ts';
import type { StallReport } from './stall.ts';

export interface ProgressOptions {
  /** After how long an operation that waits is reported, and again after each such time. Default 5,000. */
  readonly stallAfterMs?: number | undefined;
  /** Longest time of an operation, in milliseconds. Default 600,000. */
  readonly deadlineMs?: number | undefined;
  /** How long a blocked thread looks again and again before it sleeps, in microseconds. Default 200. */
  readonly spinMicros?: number | undefined;
  /** Whether to hand the processor to others while looking: right with more ranks than cores. Default false. */
  readonly yieldWhileSpinning?: boolean | undefined;
  /**
   * Turns of the event loop without news before the engine looks only once a millisecond. Default
   * 2,000.
   */
  readonly eagerRounds?: number | undefined;
  /** By what it waits, and when it looks by itself. Default: the system's. */
  readonly clock?: Clock | undefined;
  /** Receives reports about operations that wait long. Default: a line on the error output. */
  readonly onStall?: ((report: StallReport) => void) | undefined;
}

export interface StartOptions {
  readonly signal?: AbortSignal | undefined;
  /** Longest time of this operation, in milliseconds. Default: that of the engine. */
  readonly deadlineMs?: number | undefined;
  /**
   * Whether waiting long is what the operation is for: no deadline, and no reports. Default false.
   */
  readonly isPatient?: boolean | undefined;
  /** Only for operations that another rank numbered: a joined rank takes part under the caller's number. */
  readonly sequence?: number | undefined;
}

export interface Loss {
  readonly member: number;
  readonly error: PeerError;
}

/** After this the others are asked for the first time: calls that differ are found out within a second. */
const FIRST_INQUIRY_MS = 300;
const BLOCK_SLICE_MS = 20;
const BACKGROUND_POLL_MS = 50;
/** Rounds without news between two looks at the clock. */
const ROUNDS_A_LOOK = 64;
/** Rounds before the processor is handed to others, where that is wanted. */
const ROUNDS_BEFORE_YIELD = 8;

type Incident =
  | { readonly kind: 'notice'; readonly member: number; readonly text: string }
  | { readonly kind: 'mismatch'; readonly key: OperationKey }
  | ({ readonly kind: 'lost' } & Loss);

export class Progress implements OperationHost, ConversationHost {
  readonly transport: Transport;
  readonly scratch: Scratch;
  readonly inFlight: Operation[] = [];
  /** Longest time of an operation, in milliseconds. */
  readonly deadlineMs: number;
  /** After how long one that waits is reported, in milliseconds. */
  readonly stallAfterMs: number;
  readonly onStall: (report: StallReport) => void;
  /** Whether the processor is handed to others while looking for news. */
  yieldsWhileSpinning: boolean;
  /** Whether looking on costs nobody a processor at the moment: then nothing sleeps, and nothing is handed to others. */
  mayKeepLooking: () => boolean = () => false;
  readonly #spinMs: number;
  readonly #conversation: Conversation;
  readonly #groups = new Map<number, GroupState>();
  readonly #lost = new Map<number, PeerError>();
  readonly #incidents: Incident[] = [];
  readonly #paused: { peer: number; done: boolean }[] = [];
  readonly #clock: Clock;
  readonly #eagerRounds: number;
  #watch: (() => readonly Loss[]) | undefined;
  #pumping = false;
  #closed = false;

  constructor(transport: Transport, options: ProgressOptions = {}) {
    this.transport = transport;
    this.scratch = new Scratch(transport.space, transport.inPlace !== undefined);
    this.deadlineMs = options.deadlineMs ?? 600_000;
    this.stallAfterMs = options.stallAfterMs ?? 5000;
    this.#spinMs = (options.spinMicros ?? 200) / 1000;
    this.yieldsWhileSpinning = options.yieldWhileSpinning ?? false;
    this.onStall = options.onStall ?? (({ text }) => void process.stderr.write(`${text}\n`));
    this.#clock = options.clock ?? systemClock;
    this.#eagerRounds = options.eagerRounds ?? 2000;
    this.#conversation = new Conversation(this, this.stallAfterMs, this.onStall);
    transport.listen({
      notice: (member, text) => this.#incidents.push({ kind: 'notice', member, text }),
      lost: (member, error) => this.#incidents.push({ kind: 'lost', member, error }),
      mismatch: (_, key) => this.#incidents.push({ kind: 'mismatch', key }),
    });
    this.#lookInBackground();
  }

  /** Whom to ask about lost members while this thread is blocked. */
  watch(losses: () => readonly Loss[]): void {
    this.#watch = losses;
  }

  /** What a rank without data does when others call an operation. */
  onCall(handler: CallHandler): void {
    this.#conversation.onCall = handler;
  }

  /** Makes a group known; its operations may be started from now on. */
  register(group: Members): void {
    const state = new GroupState(group);
    this.#groups.set(group.id, state);
    for (const [member, error] of this.#lost) this.#break(state, member, error);
  }

  /** Ends a group: its operations fail and its traces go. */
  dissolve(id: number): void {
    for (const operation of [...this.inFlight]) {
      if (operation.group.id !== id) continue;
      this.fail(operation, cancelled(operation, operation.group.rank, 'the group was dissolved'));
    }
    this.#groups.delete(id);
    this.#conversation.endGroup(id);
  }

  /** Why the group can no longer be used, or undefined. */
  broken(id: number): PeerError | undefined {
    return this.#groups.get(id)?.broken;
  }

  /** The caller is about to disconnect the member: what is under way with it ends, and nothing is said to it any more. */
  giveUp(member: number, error: PeerError): void {
    this.#onLost(member, error);
  }

  stateOf(group: number): GroupState | undefined {
    return this.#groups.get(group);
  }

  isLost(member: number): boolean {
    return this.#lost.has(member);
  }

  start(
    group: Members,
    call: Call,
    algorithm: (operation: Operation) => Steps,
    options: StartOptions = {},
  ): Operation {
    const state = this.#openState(group);
    if (state.broken) throw state.broken;
    const sequence = state.begin(call.tag, options.sequence);
    const startedMs = this.#clock.nowMs();
    const allowedMs = options.isPatient ? Infinity : (options.deadlineMs ?? this.deadlineMs);
    const operation = new Operation(this, group, call, sequence, {
      startedMs,
      deadlineMs: startedMs + allowedMs,
      // A short deadline still leaves time to ask around, so that the error can name the culprit.
      reportMs: options.isPatient
        ? Infinity
        : startedMs + Math.min(FIRST_INQUIRY_MS, this.stallAfterMs, allowedMs / 2),
    });
    this.inFlight.push(operation);
    if (options.signal) this.#obey(operation, options.signal);
    if (!operation.settled && !this.#conversation.hasBeenSpokenOf(operation))
      this.#begin(operation, algorithm);
    if (!operation.settled && state.joined.size > 0) this.#conversation.callJoined(state, operation);
    return operation;
  }

  /** The next number of the group's operations with this tag, for one that may end before it is started. */
  reserve(group: Members, tag: number): number {
    const state = this.#openState(group);
    if (state.broken) throw state.broken;
    return state.begin(tag, undefined);
  }

  /** Whether all members contribute and none has spoken of an operation with this tag ahead of this rank. */
  isQuiet(group: Members, tag = 0): boolean {
    return this.#openState(group).joined.size === 0 && !this.#conversation.hasNewsOf(group.id, tag);
  }

  /** For waits outside operations: hears what there is to hear, of members that are gone above all. */
  lookForLosses(sleepMs = 0): void {
    this.transport.block(sleepMs);
    this.poll();
    this.#lookAfter(this.#clock.nowMs());
  }

  /** This rank has no more data in the group; ends once all ranks have said so, or fails on all that have. */
  join(operation: Operation): Steps {
    return this.#conversation.join(this.#openState(operation.group), operation);
  }

  poll(): boolean {
    const paused = this.#paused.length > 0 ? this.#paused.splice(0) : undefined;
    const moved = this.transport.poll() || paused !== undefined;
    // What peers have said counts before what they sent; that they are gone counts after it.
    const losses = this.#incidents.length > 0 ? this.#handleIncidents() : undefined;
    if (paused) for (const pause of paused) pause.done = true;
    if (moved || losses) this.#advanceAll();
    if (losses) for (const { member, error } of losses) this.#onLost(member, error);
    return moved || losses !== undefined;
  }

  pause(): Transfer {
    const pause = { peer: this.transport.member, done: false };
    this.#paused.push(pause);
    return pause;
  }

  wait(operation: Operation): void {
    let rounds = 0;
    let spinUntilMs = 0;
    while (!operation.settled) {
      if (this.poll()) {
        rounds = 0;
        continue;
      }
      if (this.yieldsWhileSpinning && rounds > ROUNDS_BEFORE_YIELD) yieldProcessor();
      if (++rounds % ROUNDS_A_LOOK !== 0) continue;
      const nowMs = this.#clock.nowMs();
      if (rounds === ROUNDS_A_LOOK) spinUntilMs = nowMs + this.#spinMs;
      if (nowMs < spinUntilMs) continue;
      this.#lookAfter(nowMs);
      if (!operation.settled) this.transport.block(BLOCK_SLICE_MS);
    }
  }

  /**
   * Drives what is in flight until nothing is, `isCalled` says so or the time is over: for a thread that has other duties
   * too. Sleeps at most `blockMs` at a time, which is how long a call may have to wait.
   */
  advance(budgetMs: number, blockMs: number, isCalled: () => boolean): void {
    const endMs = this.#clock.nowMs() + budgetMs;
    let rounds = 0;
    // Answers to what has just begun come soon; without news, sleeping is better than looking.
    let spinUntilMs = (this.inFlight.at(-1)?.startedMs ?? 0) + this.#spinMs;
    for (let polls = 1; this.inFlight.length > 0 && !isCalled(); polls++) {
      if (this.poll()) rounds = 0;
      else if (++rounds > ROUNDS_BEFORE_YIELD && this.yieldsWhileSpinning && !this.mayKeepLooking())
        yieldProcessor();
      if (polls % ROUNDS_A_LOOK !== 0) continue;
      const nowMs = this.#clock.nowMs();
      if (nowMs >= endMs) break;
      if (rounds < ROUNDS_A_LOOK) spinUntilMs = nowMs + this.#spinMs;
      else if (nowMs >= spinUntilMs && !this.mayKeepLooking()) this.transport.block(blockMs);
    }
    // Without waiting: only there peers' processes are looked after.
    this.transport.block(0);
    this.#lookAfter(this.#clock.nowMs());
  }

  cancel(operation: Operation): void {
    this.fail(operation, cancelled(operation, operation.group.rank, 'cancelled'));
  }

  pump(): void {
    if (this.#pumping) return;
    this.#pumping = true;
    let idle = 0;
    const round = () => {
      if (this.#closed || this.inFlight.length === 0) {
        this.#pumping = false;
        return;
      }
      idle = this.poll() ? 0 : idle + 1;
      const slow = idle > this.#eagerRounds;
      if (slow || idle % ROUNDS_A_LOOK === ROUNDS_A_LOOK - 1) this.#lookAfter(this.#clock.nowMs());
      // Without waiting, but with a look after the peers' processes.
      if (slow) {
        this.transport.block(0);
        void this.#clock.pause(1).then(round);
      } else this.#clock.soon(round);
    };
    this.#clock.soon(round);
  }

  fail(operation: Operation, error: TributaryError): void {
    if (operation.settled) return;
    this.#remove(operation);
    // Lets go of peers' memory first: two ranks that give up at once must not wait for each other in `forget`.
    operation.stop();
    this.#conversation.abandon(operation.group, keyOf(operation), error);
    operation.settle(error);
  }

  close(): void {
    this.#closed = true;
    for (const operation of [...this.inFlight]) {
      this.fail(operation, cancelled(operation, operation.group.rank, 'its process closed the cluster'));
    }
    this.scratch.close();
  }

  get nowMs(): number {
    return this.#clock.nowMs();
  }

  /** Answers the questions of others while nobody here waits. */
  #lookInBackground(): void {
    this.#clock.after(BACKGROUND_POLL_MS, () => {
      if (this.#closed) return;
      this.#lookInBackground();
      this.poll();
    });
  }

  #begin(operation: Operation, algorithm: (operation: Operation) => Steps): void {
    try {
      operation.begin(algorithm(operation));
    } catch (error) {
      return this.fail(operation, asError(error));
    }
    this.#advance(operation);
  }

  #obey(operation: Operation, signal: AbortSignal): void {
    if (signal.aborted) return this.cancel(operation);
    const cancel = () => operation.cancel();
    signal.addEventListener('abort', cancel, { once: true });
    operation.onSettled = () => signal.removeEventListener('abort', cancel);
  }

  #advance(operation: Operation): void {
    try {
      if (!operation.advance()) return;
    } catch (error) {
      return this.fail(operation, asError(error));
    }
    this.#remove(operation);
    operation.settle();
  }

  #advanceAll(): void {
    // One operation may end others, so a copy is walked when there are several.
    const operations = this.inFlight.length === 1 ? this.inFlight : [...this.inFlight];
    for (const operation of operations) {
      if (!operation.settled && !this.#conversation.isDisputed(operation)) this.#advance(operation);
    }
  }

  #remove(operation: Operation): void {
    const at = this.inFlight.indexOf(operation);
    if (at >= 0) this.inFlight.splice(at, 1);
    this.#conversation.end(operation);
  }

  /** Returns the losses, which are handled later; undefined if there are none. */
  #handleIncidents(): Loss[] | undefined {
    let losses: Loss[] | undefined;
    for (const incident of this.#incidents.splice(0)) {
      if (incident.kind === 'notice') this.#conversation.hear(incident.member, incident.text);
      else if (incident.kind === 'mismatch') this.#conversation.mismatch(incident.key);
      else (losses ??= []).push(incident);
    }
    return losses;
  }

  #onLost(member: number, error: PeerError): void {
    if (this.#lost.has(member)) return;
    this.#lost.set(member, error);
    for (const state of this.#groups.values()) this.#break(state, member, error);
  }

  #break(state: GroupState, member: number, cause: PeerError): void {
    const { group } = state;
    if (!group.members.includes(member) || state.broken) return;
    state.broken = lostFrom(group, member, cause);
    for (const operation of [...this.inFlight]) {
      if (operation.group.id === group.id) this.fail(operation, lostDuring(operation, member, cause));
    }
  }

  /** Deadlines, reports, disputes that are due, and members that others saw die. */
  #lookAfter(nowMs: number): void {
    if (this.#watch) for (const { member, error } of this.#watch()) this.#onLost(member, error);
    for (const operation of [...this.inFlight]) {
      this.#conversation.lookAfter(operation, nowMs);
      if (operation.settled || nowMs < operation.deadlineMs) continue;
      this.fail(operation, late(operation, this.#conversation.stallOf(operation), nowMs));
    }
  }

  #openState(group: Members): GroupState {
    const state = this.#groups.get(group.id);
    if (state?.group === group) return state;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `group ${group.id} is not open here; use the groups that the cluster gave, before it was closed`,
      { group: group.id },
    );
  }
}
