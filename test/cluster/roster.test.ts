/**
 * The scheduler's decisions, without sockets: the rules one by one, then random orders of joining, asking, dying and
 * taking back, against a model that knows only what each process has been told.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Join, SchedulerMessage } from '../../src/cluster/messages.ts';
import { Roster } from '../../src/cluster/roster.ts';
import type { Outcome } from '../../src/cluster/roster.ts';

const comer = (connection: number, wantedRank?: number): Join => ({
  title: `process ${connection}`,
  host: 'h',
  address: { port: connection },
  ...(wantedRank === undefined ? {} : { wantedRank }),
});

/** Messages to a connection, in order. */
function sentTo(outcomes: readonly Outcome[], connection: number): SchedulerMessage[] {
  return outcomes.flatMap((outcome) =>
    outcome.kind === 'send' && outcome.to.includes(connection) ? [outcome.message] : [],
  );
}

/** A roster whose connections 10, 11, ... are the members 0, 1, ... */
function rosterOf(size: number): Roster {
  const roster = new Roster(size);
  for (let i = 0; i < size; i++) roster.join(10 + i, comer(10 + i));
  return roster;
}

describe('the rendezvous', () => {
  it('is over when as many have come as are wanted, and gives wanted ranks', () => {
    const roster = new Roster(3);
    expect(sentTo(roster.join(1, comer(1)), 1)).toMatchObject([
      { kind: 'waiting', waiting: { present: 1, size: 3 } },
    ]);
    roster.join(2, comer(2, 0));
    expect(roster.waiting(1)).toEqual({ present: 2, size: 3, missingRanks: [1, 2], newcomer: false });
    const outcomes = roster.join(3, comer(3, 2));
    expect(sentTo(outcomes, 1)).toMatchObject([
      { kind: 'world', world: { group: 1, added: [0, 1, 2], lost: [] } },
      { kind: 'welcome', member: 1 },
    ]);
    expect(sentTo(outcomes, 2)[1]).toEqual({ kind: 'welcome', member: 0 });
    expect(sentTo(outcomes, 3)[1]).toEqual({ kind: 'welcome', member: 2 });
    const [world] = sentTo(outcomes, 2);
    expect(world).toMatchObject({
      world: { members: [{ member: 0, title: 'process 2', address: { port: 2 } }, {}, {}] },
    });
  });

  it('refuses a rank that is taken, outside, or wanted too late, and says why', () => {
    const roster = new Roster(2);
    roster.join(1, comer(1, 1));
    expect(roster.join(2, comer(2, 1))).toMatchObject([
      { kind: 'refuse', reason: 'rank', text: expect.stringContaining('taken by process 1') as string },
    ]);
    expect(roster.join(3, comer(3, 2))).toMatchObject([{ kind: 'refuse', reason: 'rank' }]);
    roster.join(4, comer(4));
    expect(roster.join(5, comer(5, 1))).toMatchObject([
      { kind: 'refuse', text: expect.stringContaining('was given to process 1') as string },
    ]);
  });

  it('gives the place of one who went before it was over to another', () => {
    const roster = new Roster(2);
    roster.join(1, comer(1, 0));
    expect(roster.leave(1, 'lost')).toEqual([]);
    roster.join(2, comer(2, 0));
    expect(sentTo(roster.join(3, comer(3)), 3)[1]).toEqual({ kind: 'welcome', member: 1 });
  });
});

describe('forming', () => {
  it('is granted when all of the list have asked, each time with another id', () => {
    const roster = rosterOf(3);
    expect(roster.form(10, 1, [2, 0])).toEqual([]);
    const first = roster.form(12, 7, [2, 0]);
    expect(sentTo(first, 10)).toEqual([{ kind: 'formed', request: 1, group: 2 }]);
    expect(sentTo(first, 12)).toEqual([{ kind: 'formed', request: 7, group: 2 }]);
    expect(sentTo(first, 11)).toEqual([]);
    roster.form(10, 2, [2, 0]);
    expect(sentTo(roster.form(12, 8, [2, 0]), 10)).toEqual([{ kind: 'formed', request: 2, group: 3 }]);
  });

  it('matches the requests of one member in order when it asks twice for the same', () => {
    const roster = rosterOf(2);
    roster.form(10, 1, [0, 1]);
    roster.form(10, 2, [0, 1]);
    expect(sentTo(roster.form(11, 5, [0, 1]), 10)).toEqual([{ kind: 'formed', request: 1, group: 2 }]);
    expect(sentTo(roster.form(11, 6, [0, 1]), 10)).toEqual([{ kind: 'formed', request: 2, group: 3 }]);
  });

  it('fails for all that asked when one of the list is lost, and afterwards at once, naming it', () => {
    const roster = rosterOf(3);
    roster.form(10, 1, [0, 1, 2]);
    const outcomes = roster.leave(11, 'lost');
    expect(sentTo(outcomes, 10)).toMatchObject([
      { kind: 'left', member: 1, reason: 'lost' },
      { kind: 'failed', request: 1, code: 'PEER_LOST', member: 1 },
    ]);
    expect(sentTo(roster.form(12, 3, [0, 1, 2]), 12)).toMatchObject([
      { kind: 'failed', text: expect.stringContaining('member 1 (process 11)') as string },
    ]);
  });

  it('fails for strangers, and for lists without the one who asks', () => {
    const roster = rosterOf(2);
    expect(roster.form(99, 1, [0, 1])).toEqual([]);
    expect(sentTo(roster.form(10, 1, [0, 5]), 10)).toMatchObject([
      { kind: 'failed', code: 'INVALID_ARGUMENT' },
    ]);
    expect(sentTo(roster.form(10, 2, [1]), 10)).toMatchObject([{ kind: 'failed', code: 'INVALID_ARGUMENT' }]);
  });

  it('can be taken back, and then says for whom it waited', () => {
    const roster = rosterOf(3);
    roster.form(10, 1, [0, 1, 2]);
    roster.form(11, 1, [0, 1, 2]);
    expect(sentTo(roster.withdraw(10, 1), 10)).toEqual([{ kind: 'withdrawn', request: 1, missing: [2] }]);
    expect(roster.form(12, 1, [0, 1, 2])).toEqual([]);
    expect(roster.withdraw(10, 1)).toEqual([]);
  });

  it('keeps barriers apart by name', () => {
    const roster = rosterOf(2);
    roster.barrier(10, 1, 'a', [0, 1]);
    expect(roster.barrier(11, 1, 'b', [0, 1])).toEqual([]);
    expect(sentTo(roster.barrier(11, 2, 'a', [0, 1]), 10)).toEqual([
      { kind: 'formed', request: 1, group: 0 },
    ]);
  });
});

describe('regrouping', () => {
  it('takes newcomers in and leaves the lost out', () => {
    const roster = rosterOf(3);
    const news = roster.join(20, comer(20));
    expect(sentTo(news, 10)).toEqual([{ kind: 'newcomers', waiting: 1, title: 'process 20' }]);
    expect(sentTo(news, 20)).toMatchObject([{ kind: 'waiting', waiting: { newcomer: true } }]);
    roster.regroup(10, 1);
    roster.regroup(11, 1);
    const outcomes = roster.leave(12, 'silent');
    expect(sentTo(outcomes, 10)).toMatchObject([
      { kind: 'left', member: 2, reason: 'silent' },
      { kind: 'world', world: { group: 2, added: [3], lost: [2] } },
      { kind: 'formed', request: 1, group: 2 },
    ]);
    expect(sentTo(outcomes, 20).map(({ kind }) => kind)).toEqual(['world', 'welcome']);
    expect(roster.members).toEqual([0, 1, 3]);
  });

  it('refuses newcomers when nobody is left, and later ones as well', () => {
    const roster = rosterOf(1);
    roster.join(20, comer(20));
    expect(roster.leave(10, 'closed')).toContainEqual(
      expect.objectContaining({ kind: 'refuse', connection: 20, reason: 'ended' }),
    );
    expect(roster.join(21, comer(21))).toMatchObject([{ kind: 'refuse', reason: 'ended' }]);
  });
});

/** One process as the model sees it. */
interface Peer {
  member: number | undefined;
  open: boolean;
  /** What it waits for: the members asked for by each request, or 'regroup'. */
  readonly asked: Map<number, readonly number[] | 'regroup'>;
  /** Members that it was told are gone. */
  readonly gone: Set<number>;
}

const steps = fc.array(
  fc.record({
    what: fc.constantFrom('join', 'join', 'form', 'form', 'regroup', 'regroup', 'regroup', 'die', 'withdraw'),
    who: fc.nat(50),
    other: fc.nat(50),
    wanted: fc.option(fc.nat(4), { nil: undefined }),
  }),
  { maxLength: 60 },
);

describe('any order of joining, asking, dying and taking back', () => {
  it('keeps ids unique, groups exact, and leaves nobody waiting for what can be decided', () => {
    const seed = Date.now() & 0x7fffffff;
    console.log(`orders of the roster: seed ${seed}`);
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 4 }), steps, (size, script) => play(size, script)),
      { numRuns: 5000, seed },
    );
  });
});

type Step = (typeof steps extends fc.Arbitrary<infer T> ? T : never)[number];

function play(size: number, script: readonly Step[]): void {
  const roster = new Roster(size);
  const peers = new Map<number, Peer>();
  const groups = new Set<number>();
  const numbers = new Set<number>();
  let lastRequest = 0;
  const open = () => [...peers].filter(([, peer]) => peer.open);
  const living = () => open().filter(([, peer]) => peer.member !== undefined);

  /** Applies outcomes to the model, and checks each against what the peers had asked. */
  const apply = (outcomes: readonly Outcome[]) => {
    const asked = new Map([...peers].map(([id, peer]) => [id, new Map(peer.asked)]));
    const fresh = new Set<number>();
    for (const outcome of outcomes) {
      if (outcome.kind === 'formed') {
        expect(groups.has(outcome.group), `group ${outcome.group} is new`).toBe(false);
        groups.add(outcome.group);
        fresh.add(outcome.group);
      }
      if (outcome.kind === 'refuse') peers.get(outcome.connection)!.open = false;
      if (outcome.kind !== 'send') continue;
      for (const id of outcome.to) {
        const peer = peers.get(id)!;
        expect(peer.open, 'only the living are told').toBe(true);
        const { message } = outcome;
        if (message.kind === 'welcome') {
          expect(numbers.has(message.member), `number ${message.member} is new`).toBe(false);
          numbers.add(message.member);
          peer.member = message.member;
        } else if (message.kind === 'left') {
          peer.gone.add(message.member);
        } else if (message.kind === 'formed') {
          expect(fresh.has(message.group), 'an answer belongs to a group of the same event').toBe(true);
          const members = asked.get(id)!.get(message.request)!;
          expect(peer.asked.delete(message.request)).toBe(true);
          const others = members === 'regroup' ? living().map(([, { member }]) => member!) : members;
          const granted = outcomes.flatMap((entry) =>
            entry.kind === 'send' && entry.message.kind === 'formed' && entry.message.group === message.group
              ? entry.to
              : [],
          );
          const answered = granted.map((other) => peers.get(other)!.member!).sort();
          const newcomers = outcomes.flatMap((entry) =>
            entry.kind === 'send' && entry.message.kind === 'welcome' ? [entry.message.member] : [],
          );
          const expected = others.filter((member) => members !== 'regroup' || !newcomers.includes(member));
          expect(answered).toEqual([...expected].sort());
        } else if (message.kind === 'failed') {
          expect(message.code).toBe('PEER_LOST');
          const members = peer.asked.get(message.request);
          expect(peer.asked.delete(message.request)).toBe(true);
          expect(members).toContain(message.member);
        } else if (message.kind === 'withdrawn') {
          expect(peer.asked.delete(message.request)).toBe(true);
        }
      }
    }
  };

  for (const { what, who, other, wanted } of script) {
    if (what === 'join') {
      const id = peers.size;
      peers.set(id, { member: undefined, open: true, asked: new Map(), gone: new Set() });
      apply(roster.join(id, comer(id, numbers.size === 0 ? wanted : undefined)));
    } else {
      const all = what === 'die' ? open() : living();
      const [id, peer] = all[who % Math.max(1, all.length)] ?? [];
      if (id === undefined || peer === undefined) continue;
      const request = ++lastRequest;
      if (what === 'die') {
        peer.open = false;
        apply(roster.leave(id, 'lost'));
      } else if (what === 'regroup') {
        peer.asked.set(request, 'regroup');
        apply(roster.regroup(id, request));
      } else if (what === 'form') {
        const partner = other % numbers.size;
        const members = [...new Set([peer.member!, partner])].sort();
        peer.asked.set(request, members);
        apply(roster.form(id, request, members));
      } else {
        const [oldest] = peer.asked.keys();
        if (oldest !== undefined) apply(roster.withdraw(id, oldest));
      }
    }
    expect(roster.members).toEqual(
      living()
        .map(([, { member }]) => member!)
        .sort((a, b) => a - b),
    );
    checkNobodyForgotten(living().map(([, peer]) => peer));
    const unnumbered = open().filter(([, { member }]) => member === undefined).length;
    if (numbers.size === 0) expect(unnumbered).toBeLessThan(size);
    else if (living().length === 0) expect(unnumbered).toBe(0);
  }
}

/** Whoever waits, waits for a living member that has not asked. */
function checkNobodyForgotten(living: readonly Peer[]): void {
  const byNumber = new Map(living.map((peer) => [peer.member!, peer]));
  const count = (peer: Peer | undefined, wanted: string) =>
    [...(peer?.asked.values() ?? [])].filter((members) => String(members) === wanted).length;
  for (const peer of living) {
    for (const members of peer.asked.values()) {
      const all = members === 'regroup' ? [...byNumber.keys()] : members;
      for (const member of all)
        expect(peer.gone.has(member), `${member} is gone, and it was not told`).toBe(false);
      const missing = all.filter((member) => count(byNumber.get(member), String(members)) === 0);
      expect(missing.length, `nobody is missing for ${String(members)}`).toBeGreaterThan(0);
    }
  }
}
