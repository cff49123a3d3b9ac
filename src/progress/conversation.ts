/**
 * What engines tell each other outside operations: that one left, that ranks disagree, who waits for whom, who is out
 * of data. It ends operations only through its host. Invariant: whatever a peer says, in whatever order, at most one
 * answer follows from each notice, so that a conversation always ends.
 */
import type { OperationKey, Transport } from '../transport/index.ts';
import { Dispute } from './dispute.ts';
import { EndedGroups } from './ended-groups.ts';
import type { GroupState } from './group-state.ts';
import { clip, parseNotice } from './notices.ts';
import type { AbandonNotice, AnswerNotice, CallNotice, JoinNotice, Notice } from './notices.ts';
import { abandoned, asError } from './operation-errors.ts';
import { keyOf, nameOf } from './operation.ts';
import type { Members, Operation, Steps } from './operation.ts';
import { ANSWER_MS, Stall } from './stall.ts';
import type { StallReport } from './stall.ts';
import type { TributaryError } from '../base/index.ts';

/** Starts the operation that another rank called, with nothing to contribute; throws if that cannot be. */
export type CallHandler = (group: Members, spec: CallNotice['spec'], sequence: number) => void;

export interface ConversationHost {
  readonly transport: Transport;
  readonly inFlight: readonly Operation[];
  readonly nowMs: number;
  stateOf(group: number): GroupState | undefined;
  isLost(member: number): boolean;
  fail(operation: Operation, error: TributaryError): void;
}

/** Operations that others have spoken of before they began here; the oldest is dropped when there are more. */
const MAX_EARLY = 4096;

export class Conversation {
  onCall: CallHandler | undefined;
  readonly #host: ConversationHost;
  readonly #stallAfterMs: number;
  readonly #onStall: (report: StallReport) => void;
  readonly #early = new Map<string, { member: number; notice: AbandonNotice }>();
  readonly #disputes = new Map<string, Dispute>();
  readonly #stalls = new Map<Operation, Stall>();
  readonly #ended = new EndedGroups();

  constructor(host: ConversationHost, stallAfterMs: number, onStall: (report: StallReport) => void) {
    this.#host = host;
    this.#stallAfterMs = stallAfterMs;
    this.#onStall = onStall;
  }

  tellGroup(group: Members, notice: Notice): void {
    const text = JSON.stringify(notice);
    for (const member of this.#others(group)) this.#host.transport.notify(member, text);
  }

  hear(member: number, text: string): void {
    const notice = parseNotice(text);
    if (!notice) return;
    const state = this.#host.stateOf(notice.group);
    if (state && !state.group.members.includes(member)) return;
    switch (notice.kind) {
      case 'abandon':
        return this.#hearAbandon(member, notice, state);
      case 'dispute':
        return this.#hearDispute(member, notice, notice.called, state);
      case 'inquiry':
        return this.#answer(member, notice, state);
      case 'answer':
        return this.#hearAnswer(member, notice);
      case 'join':
        return state && this.#hearJoin(state, member, notice);
      case 'call':
        return state && this.#hearCall(state, notice);
    }
  }

  /** This rank takes no further part in an operation: the group learns why, and messages of it are dropped. */
  abandon(group: Members, key: OperationKey, { code, message }: TributaryError): void {
    this.#host.stateOf(group.id)?.leave(group.members[group.rank]!, key);
    this.tellGroup(group, { kind: 'abandon', ...key, code, reason: clip(message) });
    this.#host.transport.forget(key);
  }

  /** An operation begins; if others have spoken of it, it fails or is disputed, and true says so. */
  hasBeenSpokenOf(operation: Operation): boolean {
    if (this.#early.size === 0 && this.#disputes.size === 0) return false;
    const name = nameOf(keyOf(operation));
    const early = this.#early.get(name);
    if (early) {
      this.#early.delete(name);
      this.#host.fail(operation, abandoned(operation, early.member, early.notice));
      return true;
    }
    if (!this.#disputes.has(name)) return false;
    this.#speak(operation);
    return true;
  }

  /** Whether others have spoken of operations with this tag that have not begun here, or disagree about any. */
  hasNewsOf(group: number, tag: number): boolean {
    if (this.#early.size === 0 && this.#disputes.size === 0) return false;
    const start = `${group}/${tag}/`;
    return [...this.#early.keys(), ...this.#disputes.keys()].some((name) => name.startsWith(start));
  }

  /** Whether ranks disagree about the operation, so that it must not go on. */
  isDisputed(operation: Operation): boolean {
    return this.#disputes.size > 0 && this.#disputes.has(nameOf(keyOf(operation)));
  }

  /** A message that should have been ours is of another call. */
  mismatch(key: OperationKey): void {
    const operation = this.#find(key);
    if (operation) this.#speak(operation);
  }

  /** The operation has ended: nothing more is asked about it. */
  end(operation: Operation): void {
    this.#stalls.delete(operation);
    if (this.#disputes.size > 0) this.#disputes.delete(nameOf(keyOf(operation)));
  }

  /** The group has ended here: what was said about it goes, and what is still said is not kept. */
  endGroup(id: number): void {
    this.#ended.add(id);
    for (const spoken of [this.#early, this.#disputes]) {
      for (const name of spoken.keys()) if (name.startsWith(`${id}/`)) spoken.delete(name);
    }
  }

  stallOf(operation: Operation): Stall | undefined {
    return this.#stalls.get(operation);
  }

  /** Disputes and reports that are due. */
  lookAfter(operation: Operation, nowMs: number): void {
    this.#settleDispute(operation, nowMs);
    if (operation.settled) return;
    this.#missThoseWhoLeft(operation);
    const stall = this.#stalls.get(operation);
    if (stall && operation.reportMs === Infinity && stall.isDue(nowMs)) {
      const isLong = nowMs - operation.startedMs >= this.#stallAfterMs;
      operation.reportMs = (isLong ? stall.askedMs : operation.startedMs) + this.#stallAfterMs;
      if (isLong) this.#onStall(stall.report(nowMs));
    } else if (nowMs >= operation.reportMs) {
      // At the deadline, answers of the last time say more than questions that nobody had the time to answer.
      if (stall && operation.deadlineMs - nowMs < ANSWER_MS) {
        operation.reportMs = operation.deadlineMs;
        return;
      }
      operation.reportMs = Infinity;
      const { transport } = this.#host;
      this.#stalls.set(operation, new Stall(operation, nowMs, (member) => transport.hasLeft(member)));
      this.#inquire(operation);
    }
  }

  /** This rank has no more data in the group; ends once all ranks have said so. */
  *join(state: GroupState, operation: Operation): Steps {
    const { group } = state;
    const key = keyOf(operation);
    const until = (isOver: () => boolean) => ({
      get peer() {
        return group.members.find((member) => !state.joined.has(member)) ?? group.members[group.rank]!;
      },
      get done() {
        return isOver();
      },
    });
    // An earlier join of this rank comes first.
    yield until(() => !state.isJoining);
    this.tellGroup(group, { kind: 'join', ...key, from: state.join(key) });
    this.#checkAllJoined(state);
    yield until(() => state.round > key.sequence);
  }

  /** Asks those without data to take part in an operation that has begun here. */
  callJoined(state: GroupState, operation: Operation): void {
    const { group } = state;
    for (const member of state.joined.keys()) {
      if (member === group.members[group.rank]) continue;
      if (state.contributes(member, operation.tag, operation.sequence)) continue;
      const notice = { kind: 'call', ...keyOf(operation), spec: operation.call.spec } satisfies Notice;
      this.#host.transport.notify(member, JSON.stringify(notice));
    }
  }

  /** Not all waits are for messages. Whoever has left and is waited for is asked: that finds it lost. */
  #missThoseWhoLeft(operation: Operation): void {
    const { transport } = this.#host;
    const left = this.#others(operation.group).filter((member) => transport.hasLeft(member));
    if (left.length === 0) return;
    const awaited = operation.waitsFor().map((rank) => operation.group.members[rank]!);
    for (const member of left)
      if (awaited.includes(member)) transport.notify(member, inquiryAbout(operation));
  }

  #inquire(operation: Operation): void {
    const { transport } = this.#host;
    for (const member of this.#others(operation.group)) {
      if (!transport.hasLeft(member)) transport.notify(member, inquiryAbout(operation));
    }
  }

  #hearAbandon(member: number, notice: AbandonNotice, state: GroupState | undefined): void {
    const operation = this.#find(notice);
    if (operation) this.#host.fail(operation, abandoned(operation, member, notice));
    // Only now: a join of this rank would take the end of its round for success.
    state?.leave(member, notice);
    if (operation || this.#isOver(notice, state)) return;
    dropOldest(this.#early);
    this.#early.set(nameOf(notice), { member, notice });
  }

  #hearDispute(member: number, key: OperationKey, called: string, state: GroupState | undefined): void {
    const operation = this.#find(key);
    if (!operation && this.#isOver(key, state)) return;
    this.#disputeAbout(key).says(member, called);
    if (!operation) return;
    this.#speak(operation);
    this.#settleDispute(operation, this.#host.nowMs);
  }

  /** Where two calls differ so much that no message of one meets a receive of the other, the answer tells. */
  #hearAnswer(member: number, notice: AnswerNotice): void {
    const operation = this.#find(notice);
    if (!operation) return;
    this.#stalls.get(operation)?.answer(member, notice);
    if (notice.state === 'waiting' && notice.signature !== operation.call.signature) this.#speak(operation);
  }

  /** Says what this rank called, once; opens the dispute if it is the first to notice. */
  #speak(operation: Operation): void {
    const key = keyOf(operation);
    const dispute = this.#disputeAbout(key);
    const { group, call } = operation;
    const self = group.members[group.rank]!;
    if (dispute.hasSpoken(self)) return;
    const called = clip(call.describe());
    dispute.says(self, called);
    this.tellGroup(group, { kind: 'dispute', ...key, called });
    this.#settleDispute(operation, this.#host.nowMs);
  }

  #disputeAbout(key: OperationKey): Dispute {
    const name = nameOf(key);
    const known = this.#disputes.get(name);
    if (known) return known;
    const dispute = new Dispute(this.#host.nowMs);
    dropOldest(this.#disputes);
    this.#disputes.set(name, dispute);
    return dispute;
  }

  #settleDispute(operation: Operation, nowMs: number): void {
    if (this.#disputes.size === 0) return;
    const dispute = this.#disputes.get(nameOf(keyOf(operation)));
    if (dispute?.isDue(operation.group, nowMs)) this.#host.fail(operation, dispute.error(operation.group));
  }

  #answer(member: number, { group, tag, sequence }: OperationKey, state: GroupState | undefined): void {
    const operation = this.#find({ group, tag, sequence });
    const begun = state?.hasBegun(tag, sequence) ?? false;
    const others = this.#host.inFlight.map((other) => other.call.describe()).join(', ');
    const elsewhere = others === '' ? 'it is in no operation' : `it is in ${others}`;
    const notice = {
      kind: 'answer',
      group,
      tag,
      sequence,
      state: operation ? 'waiting' : begun ? 'ended' : 'not started',
      signature: operation?.call.signature ?? 0,
      waitsFor: operation?.waitsFor().map((rank) => operation.group.members[rank]!) ?? [],
      doing: clip(operation ? operation.call.describe() : elsewhere),
    } satisfies Notice;
    // Whoever asked and has left since is done; an answer would count as something that is expected of it.
    if (!this.#host.transport.hasLeft(member)) this.#host.transport.notify(member, JSON.stringify(notice));
  }

  /** A rank that cannot take part says so at once: the caller knows no other way to learn of it but its deadline. */
  #hearCall(state: GroupState, { tag, sequence, spec }: CallNotice): void {
    if (state.hasBegun(tag, sequence) || !(state.isJoining || state.broken)) return;
    const { group } = state;
    try {
      if (state.broken) throw state.broken;
      this.onCall?.(group, spec, sequence);
    } catch (error) {
      // It counts as begun and failed, so that the next one has the same number on all ranks.
      state.begin(tag, sequence);
      this.abandon(group, { group: group.id, tag, sequence }, asError(error));
    }
  }

  #hearJoin(state: GroupState, member: number, notice: JoinNotice): void {
    if (!state.hear(member, notice)) return;
    for (const operation of this.#host.inFlight) {
      if (operation.group.id === state.group.id) this.callJoined(state, operation);
    }
    this.#checkAllJoined(state);
  }

  #checkAllJoined(state: GroupState): void {
    if (state.joined.size === state.group.size) state.endRound();
  }

  /** Whether an operation that is not in flight cannot begin here any more. */
  #isOver({ group, tag, sequence }: OperationKey, state: GroupState | undefined): boolean {
    return state ? state.hasBegun(tag, sequence) : this.#ended.has(group);
  }

  #others({ members, rank }: Members): number[] {
    return members.filter((member, i) => i !== rank && !this.#host.isLost(member));
  }

  #find(key: OperationKey): Operation | undefined {
    return this.#host.inFlight.find(
      ({ sequence, tag, group }) => sequence === key.sequence && tag === key.tag && group.id === key.group,
    );
  }
}

function inquiryAbout(operation: Operation): string {
  return JSON.stringify({ kind: 'inquiry', ...keyOf(operation) } satisfies Notice);
}

function dropOldest(map: Map<string, unknown>): void {
  if (map.size >= MAX_EARLY) map.delete(map.keys().next().value!);
}
