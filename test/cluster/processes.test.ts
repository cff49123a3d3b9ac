/** Members as processes of their own: killed, ended, blocked; what the others see of it. */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { hostIdentity, Membership, Scheduler } from '../../src/cluster/index.ts';
import type { World } from '../../src/cluster/index.ts';
import { programOf } from '../support/test-program.ts';
import { SECRET } from '../support/secrets.ts';

const MEMBER = fileURLToPath(new URL('./member.ts', import.meta.url));
const opened: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close();
});

class MemberProcess {
  readonly child: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  constructor(role: string, scheduler: Scheduler, rank?: number) {
    const args = [role, scheduler.address, SECRET, ...(rank === undefined ? [] : [String(rank)])];
    this.child = spawn(process.execPath, [...programOf(MEMBER), ...args], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#lines = createInterface(this.child.stdout!)[Symbol.asyncIterator]();
    opened.push(() => this.child.kill('SIGKILL'));
  }

  /** The value of the next line, which must be of this kind. */
  async said<T>(what: string): Promise<T> {
    const next = await this.#lines.next();
    if (next.done) throw new Error(`the process ended before it said '${what}'`);
    const line = JSON.parse(next.value) as { what: string; value: T };
    expect(line.what).toBe(what);
    return line.value;
  }

  async ended(): Promise<number | null> {
    if (this.child.exitCode === null) await once(this.child, 'exit');
    return this.child.exitCode;
  }
}

async function start(size: number, lostAfterMs = 10_000): Promise<Scheduler> {
  const heartbeatMs = Math.min(1000, lostAfterMs / 10);
  const scheduler = await Scheduler.start({ size, secret: SECRET, heartbeatMs, lostAfterMs });
  opened.push(() => scheduler.close());
  return scheduler;
}

async function join(scheduler: Scheduler, wantedRank?: number): Promise<Membership> {
  const membership = await Membership.join({
    scheduler: scheduler.address,
    secret: SECRET,
    title: 'the test',
    host: hostIdentity(),
    address: {},
    wantedRank,
  });
  opened.push(() => membership.leave());
  return membership;
}

describe('member processes', () => {
  it('hear of a kill -9 while they are blocked, and regroup without it and with a newcomer', async () => {
    const scheduler = await start(3);
    const victim = new MemberProcess('stay', scheduler, 0);
    const blocked = new MemberProcess('block', scheduler, 1);
    const here = await join(scheduler, 2);
    expect(await victim.said('joined')).toBe(0);
    expect(await blocked.said('joined')).toBe(1);
    expect(here.members.map(({ address }) => address)).toEqual([
      { localAddress: '127.0.0.1' },
      { localAddress: '127.0.0.1' },
      {},
    ]);
    expect(new Set(here.members.map(({ host }) => host)).size).toBe(1);

    const left = once(here, 'left');
    victim.child.kill('SIGKILL');
    const event = { member: 0, title: `process ${victim.child.pid}`, reason: 'lost' };
    expect(await left).toEqual([event]);
    expect(here.lostMembers()).toEqual([0]);
    expect(await blocked.said('lost')).toEqual([0]);
    expect(await blocked.said('left')).toEqual(event);

    const joined = once(here, 'joined');
    const newcomer = join(scheduler);
    expect(await joined).toEqual([{ title: 'the test', newcomers: 1 }]);
    expect(here.liveness.newcomers).toBe(1);
    const world = await here.regroup();
    expect(world).toMatchObject({ added: [3], lost: [0] });
    expect(world.members.map(({ member }) => member)).toEqual([1, 2, 3]);
    expect(await blocked.said<World>('world')).toEqual(world);
    expect((await newcomer).member).toBe(3);
    expect((await newcomer).world).toEqual(world);
    expect(here.liveness.newcomers).toBe(0);
    expect(await blocked.ended()).toBe(0);
  });

  it.each([
    ['exit', 'lost'],
    ['end', 'lost'],
    ['leave', 'closed'],
  ])('that %s are gone as %s, and end by themselves', async (role, reason) => {
    const scheduler = await start(2);
    const other = new MemberProcess(role, scheduler, 1);
    const here = await join(scheduler, 0);
    const left = once(here, 'left');
    expect(await left).toMatchObject([{ member: 1, reason }]);
    expect(here.liveness.reasonOf(1)).toBe(reason);
    expect(await other.ended()).toBe(0);
  });

  it('that block their main thread longer than silence is borne stay members', async () => {
    const scheduler = await start(2, 700);
    const deaf = new MemberProcess('deaf', scheduler, 1);
    const here = await join(scheduler, 0);
    const left = once(here, 'left');
    expect(await deaf.said('joined')).toBe(1);
    expect(await deaf.said('awake')).toEqual([]);
    expect(await left).toMatchObject([{ member: 1, reason: 'closed' }]);
  });

  it('that are stopped fall silent', async () => {
    const scheduler = await start(2, 700);
    const stopped = new MemberProcess('stay', scheduler, 1);
    const here = await join(scheduler, 0);
    await stopped.said('joined');
    const left = once(here, 'left');
    stopped.child.kill('SIGSTOP');
    expect(await left).toMatchObject([{ member: 1, reason: 'silent' }]);
  });
});
