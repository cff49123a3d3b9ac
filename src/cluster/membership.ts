/**
 * A process's place in the cluster: its number, who the others are, requests to the scheduler, and news of who comes
 * and goes. It carries no tensors. News come twice: as events, when the main thread yields, and on shared memory
 * (`liveness`), at once, for whoever is blocked. Invariant: every request ends, with what was asked or with an error;
 * if the scheduler is lost, what exists goes on and only new requests fail.
 */
import { EventEmitter } from 'node:events';
import { PeerError, UsageError } from '../base/index.ts';
import type { MemberAddress } from '../transport/index.ts';
import { before, Late } from './deadline.ts';
import { join } from './joining.ts';
import type { Joined, JoinOptions } from './joining.ts';
import { Line } from './line.ts';
import { LivenessView } from './liveness-view.ts';
import { MAX_MEMBERS } from './messages.ts';
import type { LeaveReason, MemberMessage, SchedulerMessage, World } from './messages.ts';

export interface MembershipEvents {
  left: [event: { readonly member: number; readonly title: string; readonly reason: LeaveReason }];
  /** A process waits to be taken in by a regroup. */
  joined: [event: { readonly title: string; readonly newcomers: number }];
  'scheduler-lost': [event: { readonly reason: string }];
}

export interface RequestOptions {
  /** Longest wait for the others to ask as well, in milliseconds. Default 60,000. */
  readonly timeoutMs?: number;
  /** Takes the request back and ends it with CANCELLED. Default none. */
  readonly signal?: AbortSignal | undefined;
}

/** How long the scheduler may take to say for whom a request waited in vain. */
const WITHDRAW_TIMEOUT_MS = 1000;

interface Granted {
  readonly group: number;
  /** The world at the time of the answer. */
  readonly world: World;
}

interface Pending {
  readonly grant: (granted: Granted) => void;
  readonly fail: (error: Error) => void;
}

type Asked = Extract<MemberMessage, { kind: 'form' | 'barrier' | 'regroup' }>;
/** What a request says of itself; its number is given here. */
type Question = Asked extends infer A ? (A extends Asked ? Omit<A, 'request'> : never) : never;

/** Keeps the process alive only while it joins, asks or leaves; waiting for events does not. */
export class Membership extends EventEmitter<MembershipEvents> {
  readonly member: number;
  /** The address of this process on the way to the scheduler: likely the one at which peers reach it. */
  readonly localAddress: string;
  /** Who is gone, readable from any thread and while this one is blocked. */
  readonly liveness: LivenessView;
  readonly #scheduler: string;
  readonly #line: Line;
  readonly #pending = new Map<number, Pending>();
  readonly #titles = new Map<number, string>();
  #world: World;
  #lastRequest = 0;
  /** Why no more can be asked. */
  #over: string | undefined;
  #left = false;

  /** Joins the cluster; resolves when the first group is complete, for newcomers when a regroup took them in. */
  static async join(options: JoinOptions): Promise<Membership> {
    const liveness = new LivenessView();
    const line = new Line(liveness);
    line.hold();
    try {
      return new Membership(options.scheduler, line, liveness, await join(line, options));
    } catch (error) {
      await line.abort();
      throw error;
    } finally {
      line.release();
    }
  }

  private constructor(scheduler: string, line: Line, liveness: LivenessView, joined: Joined) {
    super();
    this.member = joined.member;
    this.localAddress = joined.localAddress;
    this.liveness = liveness;
    this.#scheduler = scheduler;
    this.#line = line;
    this.#world = joined.world;
    this.#remember(joined.world);
    // A later turn, so that whoever awaits `join` can listen before the first event.
    setImmediate(() =>
      line.listen({
        message: (message) => this.#take(message),
        closed: (reason) => this.#lose(reason),
      }),
    );
  }

  /** The rendezvous or the last regroup: its group of all, and who came and went. */
  get world(): World {
    return this.#world;
  }

  /** The members of the world; some may be gone since (`lostMembers`). */
  get members(): readonly MemberAddress[] {
    return this.#world.members;
  }

  /** Changes with every death and newcomer, also while this thread is blocked; compare for equality only. */
  get epoch(): number {
    return this.liveness.epoch;
  }

  /** Members that are gone since this process joined; true at once, also while this thread is blocked. */
  lostMembers(): number[] {
    return this.liveness.lostMembers();
  }

  /** What a member is called, also when it is gone. */
  titleOf(member: number): string {
    return this.#titles.get(member) ?? 'a process unknown here';
  }

  /** A group of these members, in this order; resolves to its id when all of them have asked with the same list. */
  async form(members: readonly number[], options: RequestOptions = {}): Promise<number> {
    this.#checkMembers('form', members);
    const what = `Forming a group of members ${members.join(', ')}`;
    return (await this.#ask({ kind: 'form', members }, what, options)).group;
  }

  /** A world of all who live, newcomers taken in; resolves when all living members have asked. */
  async regroup(options: RequestOptions = {}): Promise<World> {
    // The scheduler sends the world before the answer.
    return (await this.#ask({ kind: 'regroup' }, 'Regrouping', options)).world;
  }

  /** Resolves when all of these members have come to the barrier of that name. */
  async barrier(name: string, members: readonly number[], options: RequestOptions = {}): Promise<void> {
    this.#checkMembers('barrier', members);
    const what = `The barrier '${name}' of members ${members.join(', ')}`;
    await this.#ask({ kind: 'barrier', name, members }, what, options);
  }

  /** Says goodbye: to the others this member is 'closed'. Requests under way fail. */
  async leave(): Promise<void> {
    this.#finish();
    this.#line.send({ kind: 'leave' });
    await this.#line.end();
  }

  /** Lets go without a word: to the others this member is 'lost'. */
  async abort(): Promise<void> {
    this.#finish();
    await this.#line.abort();
  }

  #finish(): void {
    this.#left = true;
    this.#over ??= 'this process has left the cluster';
    this.#failAll();
  }

  async #ask(
    question: Question,
    what: string,
    { timeoutMs = 60_000, signal }: RequestOptions,
  ): Promise<Granted> {
    if (this.#over !== undefined) throw this.#unreachable(what);
    const request = ++this.#lastRequest;
    let missing: readonly number[] | undefined;
    const granted = new Promise<Granted>((grant, fail) => this.#pending.set(request, { grant, fail }));
    this.#line.hold();
    try {
      this.#line.send({ ...question, request });
      return await before(granted, timeoutMs, signal, what);
    } catch (error) {
      if (!this.#pending.has(request)) throw error;
      // The answer may be on its way: if it comes before the scheduler has taken the request back, it counts.
      this.#line.send({ kind: 'withdraw', request });
      try {
        return await before(granted, WITHDRAW_TIMEOUT_MS, undefined, what);
      } catch (second) {
        if (second instanceof Withdrawn) missing = second.missing;
        else if (!(second instanceof Late)) throw second;
      }
      throw error instanceof Late ? this.#late(what, timeoutMs, missing) : error;
    } finally {
      this.#pending.delete(request);
      this.#line.release();
    }
  }

  #take(message: SchedulerMessage): void {
    switch (message.kind) {
      case 'world':
        this.#world = message.world;
        return this.#remember(message.world);
      case 'left': {
        const { member, reason } = message;
        return void this.emit('left', { member, title: this.titleOf(member), reason });
      }
      case 'newcomers':
        if (message.title !== undefined)
          this.emit('joined', { title: message.title, newcomers: message.waiting });
        return;
      case 'formed':
        return this.#settle(message.request)?.grant({ group: message.group, world: this.#world });
      case 'failed': {
        const { request, code, text, member } = message;
        const error =
          code === 'INVALID_ARGUMENT'
            ? new UsageError(code, `The scheduler refused the request: ${text}.`)
            : new PeerError(code, `The request cannot be granted: ${text}.`, { member });
        return this.#settle(request)?.fail(error);
      }
      case 'withdrawn':
        return this.#settle(message.request)?.fail(new Withdrawn(message.missing));
      default:
        return;
    }
  }

  #settle(request: number): Pending | undefined {
    const pending = this.#pending.get(request);
    this.#pending.delete(request);
    return pending;
  }

  #lose(reason: Error): void {
    if (this.#left) return;
    this.#over ??= reason.message;
    this.#failAll();
    this.emit('scheduler-lost', { reason: reason.message });
  }

  #failAll(): void {
    const error = this.#unreachable('The request');
    for (const request of [...this.#pending.keys()]) this.#settle(request)!.fail(error);
  }

  #remember({ members }: World): void {
    for (const { member, title } of members) this.#titles.set(member, title);
  }

  #checkMembers(what: string, members: readonly number[]): void {
    const isNumber = (member: number) => Number.isInteger(member) && member >= 0 && member < MAX_MEMBERS;
    const fits = members.every(isNumber) && new Set(members).size === members.length;
    if (fits && members.includes(this.member)) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `Member ${this.member} called ${what} for members [${members.join(', ')}]; give different numbers, its own among them.`,
      { member: this.member, members },
    );
  }

  #late(what: string, timeoutMs: number, missing: readonly number[] | undefined): PeerError {
    const who = missing?.map((member) => `member ${member} (${this.titleOf(member)})`).join(', ');
    const whom = who ? `${who} did not ask for it` : 'the scheduler did not say who is missing';
    return new PeerError(
      'TIMEOUT',
      `${what} was not done on member ${this.member} after ${timeoutMs} ms: ${whom}. Make all call it alike, or raise timeoutMs.`,
      { member: this.member, missing, timeoutMs },
    );
  }

  #unreachable(what: string): PeerError {
    return new PeerError(
      'UNREACHABLE',
      `${what} cannot be granted to member ${this.member}: the scheduler at ${this.#scheduler} is out of reach (${this.#over}). Groups that exist go on; start the cluster anew for new ones.`,
      { member: this.member, scheduler: this.#scheduler },
    );
  }
}

/** The scheduler has taken a request back. */
class Withdrawn extends Error {
  override readonly name = 'Withdrawn';
  readonly missing: readonly number[];

  constructor(missing: readonly number[]) {
    super('withdrawn');
    this.missing = missing;
  }
}
