/**
 * The scheduler's decisions: who waits, who is a member, and which requests are granted. No sockets, no clock and no
 * chance: each call is one event and returns what follows from it, in order. A connection is a number of the caller's.
 * Invariants: member numbers and group ids are never given twice; a granted request was asked by exactly the living
 * members it names; a request that names a member that is gone is answered so at once; `left` precedes what follows from it.
 */
import type { MemberAddress } from '../transport/index.ts';
import { MAX_MEMBERS } from './messages.ts';
import type { Join, LeaveReason, RefusalReason, SchedulerMessage, Waiting, World } from './messages.ts';

export type Outcome =
  | { readonly kind: 'send'; readonly to: readonly number[]; readonly message: SchedulerMessage }
  | {
      readonly kind: 'refuse';
      readonly connection: number;
      readonly reason: RefusalReason;
      readonly text: string;
    }
  /** A process waits: for the first group, or for a regroup. */
  | {
      readonly kind: 'joined';
      readonly connection: number;
      readonly title: string;
      readonly newcomer: boolean;
    }
  | {
      readonly kind: 'left';
      readonly member: number;
      readonly title: string;
      readonly reason: LeaveReason;
    }
  | { readonly kind: 'formed'; readonly group: number; readonly members: readonly number[] };

/** More missing ranks than this help nobody. */
const MAX_MISSING_SHOWN = 32;

interface Member {
  readonly address: MemberAddress;
  readonly connection: number;
}

/** A form or barrier that some of its members have asked for. */
interface Gathering {
  readonly kind: 'form' | 'barrier';
  readonly members: readonly number[];
  readonly asks: Asks;
}

/** The requests of each member that wait, oldest first; a member without any is not in it. */
type Asks = Map<number, number[]>;

export class Roster {
  readonly size: number;
  /** By connection, in the order in which they came. */
  readonly #joiners = new Map<number, Join>();
  /** By member number, and so in its order. */
  readonly #living = new Map<number, Member>();
  readonly #memberOf = new Map<number, number>();
  /** The titles of all members that ever were; the next number is its length. */
  readonly #titles: string[] = [];
  readonly #gone = new Map<number, LeaveReason>();
  /** By kind, name and list. */
  readonly #gatherings = new Map<string, Gathering>();
  readonly #regroupAsks: Asks = new Map();
  #world: readonly number[] = [];
  /** What `waiting` says, until who waits changes. */
  #waiting: Waiting | undefined;
  #lastGroup = 0;

  constructor(size: number) {
    this.size = size;
  }

  /** Numbers of the members that live, ascending. */
  get members(): readonly number[] {
    return [...this.#living.keys()];
  }

  /** What a connection that has joined and is no member waits for; undefined for others. */
  waiting(connection: number): Waiting | undefined {
    if (!this.#joiners.has(connection)) return undefined;
    // All who wait ask with every heartbeat; the answer changes only with who they are.
    this.#waiting ??= this.#describeWait();
    return this.#waiting;
  }

  join(connection: number, join: Join): Outcome[] {
    const refused = this.#judge(join);
    if (refused) return [{ kind: 'refuse', connection, ...refused }];
    this.#joiners.set(connection, join);
    this.#waiting = undefined;
    const newcomer = this.#titles.length > 0;
    const joined: Outcome = { kind: 'joined', connection, title: join.title, newcomer };
    if (!newcomer && this.#joiners.size === this.size) return [joined, ...this.#formWorld([])];
    const told = send([connection], { kind: 'waiting', waiting: this.waiting(connection)! });
    return newcomer ? [joined, told, this.#tellNewcomers(join.title)] : [joined, told];
  }

  form(connection: number, request: number, members: readonly number[]): Outcome[] {
    return this.#gather(connection, request, 'form', '', members);
  }

  barrier(connection: number, request: number, name: string, members: readonly number[]): Outcome[] {
    return this.#gather(connection, request, 'barrier', name, members);
  }

  regroup(connection: number, request: number): Outcome[] {
    const member = this.#memberOf.get(connection);
    if (member === undefined) return [];
    ask(this.#regroupAsks, member, request);
    return this.#completeRegroups();
  }

  /** Takes a request back and says for whom it waited; a request that was answered already stays so. */
  withdraw(connection: number, request: number): Outcome[] {
    const member = this.#memberOf.get(connection);
    if (member === undefined) return [];
    const withdrawn = (missing: readonly number[]) => [
      send([connection], { kind: 'withdrawn', request, missing }),
    ];
    if (unask(this.#regroupAsks, member, request)) {
      return withdrawn(this.members.filter((other) => other !== member && !this.#regroupAsks.has(other)));
    }
    for (const [key, { asks, members }] of this.#gatherings) {
      if (!unask(asks, member, request)) continue;
      if (asks.size === 0) this.#gatherings.delete(key);
      return withdrawn(members.filter((other) => other !== member && !asks.has(other)));
    }
    return [];
  }

  /** A connection is no more. */
  leave(connection: number, reason: LeaveReason): Outcome[] {
    if (this.#joiners.delete(connection)) {
      this.#waiting = undefined;
      return this.#titles.length > 0 ? [this.#tellNewcomers()] : [];
    }
    const member = this.#memberOf.get(connection);
    if (member === undefined) return [];
    this.#memberOf.delete(connection);
    this.#living.delete(member);
    this.#gone.set(member, reason);
    this.#regroupAsks.delete(member);
    const outcomes: Outcome[] = [
      { kind: 'left', member, title: this.#titles[member]!, reason },
      send(this.#connections(), { kind: 'left', member, reason }),
    ];
    for (const [key, gathering] of this.#gatherings) {
      if (!gathering.members.includes(member)) continue;
      this.#gatherings.delete(key);
      for (const [asker, requests] of gathering.asks) {
        if (asker === member) continue;
        outcomes.push(
          ...requests.map((request) => this.#failGone(this.#connectionOf(asker), request, member)),
        );
      }
    }
    outcomes.push(...(this.#living.size > 0 ? this.#completeRegroups() : this.#refuseJoiners()));
    return outcomes;
  }

  /** Why a process may not join; undefined if it may. */
  #judge({ wantedRank }: Join): { readonly reason: RefusalReason; readonly text: string } | undefined {
    const given = this.#titles.length;
    if (given > 0 && this.#living.size === 0) return ENDED;
    if (given + this.#joiners.size >= MAX_MEMBERS) {
      return { reason: 'full', text: `all ${MAX_MEMBERS} member numbers were given; start the cluster anew` };
    }
    if (wantedRank === undefined) return undefined;
    if (given > 0) {
      const holder =
        wantedRank < given ? ` was given to ${this.#titles[wantedRank]}` : ' cannot be chosen now';
      const text = `rank ${wantedRank}${holder}; who comes after the first group joins without a wanted rank`;
      return { reason: 'rank', text };
    }
    if (wantedRank >= this.size) {
      const text = `rank ${wantedRank} is outside a group of ${this.size}; ranks go from 0 to ${this.size - 1}`;
      return { reason: 'rank', text };
    }
    for (const joiner of this.#joiners.values()) {
      if (joiner.wantedRank !== wantedRank) continue;
      return {
        reason: 'rank',
        text: `rank ${wantedRank} is taken by ${joiner.title}; give each process its own`,
      };
    }
    return undefined;
  }

  #gather(
    connection: number,
    request: number,
    kind: Gathering['kind'],
    name: string,
    members: readonly number[],
  ): Outcome[] {
    const member = this.#memberOf.get(connection);
    if (member === undefined) return [];
    const stranger = members.find((other) => other >= this.#titles.length);
    if (stranger !== undefined || !members.includes(member)) {
      const text =
        stranger === undefined
          ? `member ${member} asked for a ${kind} of members ${members.join(', ')}, to which it does not belong`
          : `there is no member ${stranger}; numbers up to ${this.#titles.length - 1} were given`;
      return [send([connection], { kind: 'failed', request, code: 'INVALID_ARGUMENT', text })];
    }
    const gone = members.find((other) => this.#gone.has(other));
    if (gone !== undefined) return [this.#failGone(connection, request, gone)];

    const key = JSON.stringify([kind, name, members]);
    const gathering = this.#gatherings.get(key) ?? { kind, members, asks: new Map<number, number[]>() };
    this.#gatherings.set(key, gathering);
    ask(gathering.asks, member, request);
    if (gathering.asks.size < members.length) return [];

    const group = kind === 'form' ? ++this.#lastGroup : 0;
    const outcomes: Outcome[] = kind === 'form' ? [{ kind: 'formed', group, members }] : [];
    outcomes.push(...this.#grant(gathering.asks, members, group));
    if (gathering.asks.size === 0) this.#gatherings.delete(key);
    return outcomes;
  }

  #completeRegroups(): Outcome[] {
    const outcomes: Outcome[] = [];
    while (this.#living.size > 0 && this.#regroupAsks.size === this.#living.size) {
      const asked = this.members;
      outcomes.push(...this.#formWorld(asked));
    }
    return outcomes;
  }

  /** Makes members of all who wait, and one group of all who live; `asked` are those who get an answer. */
  #formWorld(asked: readonly number[]): Outcome[] {
    const admitted = this.#admitJoiners();
    const before = this.#world;
    const after = this.members;
    const group = ++this.#lastGroup;
    const world: World = {
      group,
      members: [...this.#living.values()].map(({ address }) => address),
      added: after.filter((member) => !before.includes(member)),
      lost: before.filter((member) => !this.#living.has(member)),
    };
    this.#world = after;
    return [
      { kind: 'formed', group, members: after },
      send(this.#connections(), { kind: 'world', world }),
      ...admitted.map((member) => send([this.#connectionOf(member)], { kind: 'welcome', member })),
      ...this.#grant(this.#regroupAsks, asked, group),
    ];
  }

  /** Gives a number to each who waits: the wanted one, else the lowest that is free. Returns the numbers. */
  #admitJoiners(): number[] {
    const first = this.#titles.length;
    const joiners = [...this.#joiners];
    this.#joiners.clear();
    this.#waiting = undefined;
    const byRank = new Map(joiners.map((entry) => [entry[1].wantedRank, entry]));
    const anywhere = joiners.filter(([, { wantedRank }]) => wantedRank === undefined);
    return joiners.map((_, i) => {
      const member = first + i;
      const [connection, { title, host, address }] = byRank.get(member) ?? anywhere.shift()!;
      this.#titles[member] = title;
      this.#memberOf.set(connection, member);
      this.#living.set(member, { connection, address: { member, title, host, address } });
      return member;
    });
  }

  /** Answers the oldest request of each of the members. */
  #grant(asks: Asks, members: readonly number[], group: number): Outcome[] {
    return members.map((member) => {
      const request = asks.get(member)![0]!;
      unask(asks, member, request);
      return send([this.#connectionOf(member)], { kind: 'formed', request, group });
    });
  }

  #failGone(connection: number, request: number, member: number): Outcome {
    const how = {
      closed: 'has left',
      lost: 'is lost: its connection broke',
      silent: 'is lost: it fell silent',
    };
    const text = `member ${member} (${this.#titles[member]}) ${how[this.#gone.get(member)!]}; regroup without it`;
    return send([connection], { kind: 'failed', request, code: 'PEER_LOST', text, member });
  }

  #refuseJoiners(): Outcome[] {
    const refusals = [...this.#joiners.keys()].map((connection): Outcome => ({
      kind: 'refuse',
      connection,
      ...ENDED,
    }));
    this.#joiners.clear();
    return refusals;
  }

  #tellNewcomers(title?: string): Outcome {
    return send(this.#connections(), { kind: 'newcomers', waiting: this.#joiners.size, title });
  }

  #describeWait(): Waiting {
    const newcomer = this.#titles.length > 0;
    const wanted = new Set([...this.#joiners.values()].map((joiner) => joiner.wantedRank));
    const ranks = newcomer ? [] : Array.from({ length: this.size }, (_, rank) => rank);
    const missingRanks = ranks.filter((rank) => !wanted.has(rank)).slice(0, MAX_MISSING_SHOWN);
    return { present: this.#joiners.size, size: this.size, missingRanks, newcomer };
  }

  #connectionOf(member: number): number {
    return this.#living.get(member)!.connection;
  }

  #connections(): number[] {
    return [...this.#living.values()].map(({ connection }) => connection);
  }
}

const ENDED = { reason: 'ended', text: 'every member has left the cluster; start it anew' } as const;

function send(to: readonly number[], message: SchedulerMessage): Outcome {
  return { kind: 'send', to, message };
}

function ask(asks: Asks, member: number, request: number): void {
  const requests = asks.get(member);
  if (requests) requests.push(request);
  else asks.set(member, [request]);
}

function unask(asks: Asks, member: number, request: number): boolean {
  const requests = asks.get(member);
  const index = requests?.indexOf(request) ?? -1;
  if (!requests || index < 0) return false;
  requests.splice(index, 1);
  if (requests.length === 0) asks.delete(member);
  return true;
}
