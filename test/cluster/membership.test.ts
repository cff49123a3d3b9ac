/** A process's side of the cluster, by real sockets and threads: joining, requests, and what their errors say. */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join as joinPath } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { hostIdentity, LivenessView, Membership, Scheduler } from '../../src/cluster/index.ts';
import type { JoinOptions, SchedulerOptions, WaitingReport } from '../../src/cluster/index.ts';
import { encodeFrame } from '../../src/cluster/frames.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { OTHER_SECRET, SECRET } from '../support/secrets.ts';
import { TlsRelay } from '../support/tls-relay.ts';

const opened: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close();
});

async function start(size: number, options: Partial<SchedulerOptions> = {}): Promise<Scheduler> {
  const scheduler = await Scheduler.start({ size, secret: SECRET, ...options });
  opened.push(() => scheduler.close());
  return scheduler;
}

async function join(scheduler: string, options: Partial<JoinOptions> = {}): Promise<Membership> {
  const membership = await Membership.join({
    scheduler,
    secret: SECRET,
    title: `test ${options.wantedRank ?? 'without rank'}`,
    host: 'h',
    address: {},
    ...options,
  });
  opened.push(() => membership.leave());
  return membership;
}

async function joinAll(size: number): Promise<{ scheduler: Scheduler; all: Membership[] }> {
  const scheduler = await start(size);
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  const all = await Promise.all(ranks.map((wantedRank) => join(scheduler.address, { wantedRank })));
  return { scheduler, all };
}

/** What listens, and does as it is told with each connection. */
async function pretender(speak: (socket: Socket) => void): Promise<string> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    opened.push(() => socket.destroy());
    speak(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  opened.push(() => server.close());
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

describe('joining', () => {
  it('gives each its number, all addresses, and the way it reached the scheduler', async () => {
    const scheduler = await start(3);
    const address = { port: 7, nested: { list: [1, 'two'] } };
    const all = await Promise.all([
      join(scheduler.address, { wantedRank: 2, address }),
      join(scheduler.address, { wantedRank: 0 }),
      join(scheduler.address),
    ]);
    expect(all.map(({ member }) => member)).toEqual([2, 0, 1]);
    expect(all[1].members).toEqual(all[0].members);
    expect(all[0].members[2]).toEqual({ member: 2, title: 'test 2', host: 'h', address });
    expect(all[0].world).toMatchObject({ group: 1, added: [0, 1, 2], lost: [] });
    expect(all[0].localAddress).toBe('127.0.0.1');
    expect(all[0].titleOf(1)).toBe('test without rank');
  });

  it('with another secret, or a rank that is taken, is REFUSED and says why', async () => {
    const scheduler = await start(2);
    await expect(join(scheduler.address, { secret: OTHER_SECRET })).rejects.toMatchObject({
      code: 'REFUSED',
      facts: { reason: 'secret' },
    });
    const first = join(scheduler.address, { wantedRank: 0 });
    await once(scheduler, 'joined');
    await expect(join(scheduler.address, { wantedRank: 0 })).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringContaining('rank 0 is taken by test 0') as string,
    });
    await expect(join(scheduler.address, { title: 'a\nb' })).rejects.toMatchObject({ code: 'REFUSED' });
    await Promise.all([first, join(scheduler.address)]);
  });

  it('does not believe a scheduler that does not know the secret, nor tell it anything', async () => {
    let heard = '';
    const nonce = 'a'.repeat(64);
    const fake = await pretender((socket) => {
      socket.on('data', (chunk) => (heard += chunk.toString()));
      socket.write(encodeFrame({ kind: 'challenge', version: 1, nonce }));
      socket.write(encodeFrame({ kind: 'accepted', proof: nonce, heartbeatMs: 1, lostAfterMs: 2 }));
    });
    await expect(join(fake, { title: 'shy' })).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringContaining('could not prove that it knows the secret') as string,
    });
    expect(heard).not.toContain('shy');
    expect(heard).not.toContain(SECRET);
  });

  it('is a PROTOCOL_VIOLATION where something else listens', async () => {
    const strange = await pretender((socket) => socket.write(encodeFrame({ kind: 'world', members: [] })));
    await expect(join(strange)).rejects.toMatchObject({ code: 'PROTOCOL_VIOLATION' });
  });

  it('retries until the deadline and then is UNREACHABLE, naming address and reason', async () => {
    const reports: WaitingReport[] = [];
    const onWaiting = (report: WaitingReport) => reports.push(report);
    const port = await freePort();
    const options = { joinTimeoutMs: 2000, reportAfterMs: 50, onWaiting };
    await expect(join(`127.0.0.1:${port}`, options)).rejects.toMatchObject({
      code: 'UNREACHABLE',
      message: expect.stringMatching(new RegExp(`127\\.0\\.0\\.1:${port}.*ECONNREFUSED`)) as string,
    });
    expect(reports.length).toBeGreaterThan(0);
  });

  it('finds a scheduler that starts later', async () => {
    const port = await freePort();
    let trying = (): void => undefined;
    const tried = new Promise<void>((resolve) => (trying = resolve));
    const joined = join(`127.0.0.1:${port}`, { reportAfterMs: 20, onWaiting: () => trying() });
    await tried;
    await start(1, { port });
    expect((await joined).member).toBe(0);
  });

  it('begins anew when the scheduler is started again before all have come', async () => {
    const first = await start(2);
    const joined = join(first.address);
    await once(first, 'joined');
    await first.close();
    await start(1, { port: Number(first.address.split(':')[1]) });
    expect((await joined).member).toBe(0);
  });

  it('succeeds for all that come at once, however few places the door has', async () => {
    const scheduler = await start(8, { maxPending: 2 });
    const all = await Promise.all(Array.from({ length: 8 }, () => join(scheduler.address)));
    expect(all.map(({ member }) => member).sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it('with an address that is too long is REFUSED and says so', async () => {
    const scheduler = await start(1);
    await expect(join(scheduler.address, { address: { long: 'x'.repeat(9000) } })).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringMatching(/frame of 9\d{3} bytes/) as string,
    });
  });

  it('reports who is missing, and at the deadline is a TIMEOUT that says so', async () => {
    const scheduler = await start(4);
    const controller = new AbortController();
    const patient = join(scheduler.address, { wantedRank: 0, signal: controller.signal });
    await once(scheduler, 'joined');
    const reports: WaitingReport[] = [];
    const onWaiting = (report: WaitingReport) => reports.push(report);
    const options = { wantedRank: 2, joinTimeoutMs: 1500, reportAfterMs: 100, onWaiting };
    await expect(join(scheduler.address, options)).rejects.toMatchObject({
      code: 'TIMEOUT',
      facts: { present: 2, size: 4, missingRanks: [1, 3] },
      message: expect.stringContaining('2 of 4 processes have come') as string,
    });
    expect(reports.at(-1)!.text).toContain('2 missing: ranks 1, 3');
    expect(reports.at(-1)!.waiting).toMatchObject({ present: 2, missingRanks: [1, 3] });
    controller.abort();
    await expect(patient).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  it('can be cancelled, before and while it waits', async () => {
    const scheduler = await start(2);
    await expect(join(scheduler.address, { signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'CANCELLED',
    });
    const controller = new AbortController();
    const joined = join(scheduler.address, { signal: controller.signal });
    await once(scheduler, 'joined');
    controller.abort();
    await expect(joined).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  it.each(['host', 'host:', ':80', 'host:99999', 'a:b:80'])('refuses %j as an address', async (address) => {
    await expect(join(address)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
  });
});

describe('requests', () => {
  it('form overlapping groups at the same time, in the order of the list', async () => {
    const { all } = await joinAll(3);
    const [a, b, c] = all as [Membership, Membership, Membership];
    const ids = await Promise.all([
      a.form([0, 1]),
      b.form([0, 1]),
      b.form([2, 1]),
      c.form([2, 1]),
      a.form([0, 1]),
      b.form([0, 1]),
      c.form([2]),
    ]);
    expect(ids[0]).toBe(ids[1]);
    expect(ids[2]).toBe(ids[3]);
    expect(ids[4]).toBe(ids[5]);
    expect(new Set([...ids, a.world.group]).size).toBe(5);
  });

  it('wait at a barrier until all have come', async () => {
    const { all } = await joinAll(2);
    const come: number[] = [];
    const first = all[0]!.barrier('connected', [0, 1]).then(() => come.push(0));
    await all[0]!.form([0]);
    expect(come).toEqual([]);
    await all[1]!.barrier('connected', [0, 1]);
    await first;
    expect(come).toEqual([0]);
  });

  it('are PEER_LOST when a member of the list is lost, before and after', async () => {
    const { all } = await joinAll(3);
    const requests = [all[0]!.form([0, 1, 2]), all[1]!.barrier('b', [0, 1, 2])];
    const told = Promise.allSettled(requests);
    await all[2]!.abort();
    for (const outcome of await told) {
      expect(outcome).toMatchObject({
        status: 'rejected',
        reason: {
          code: 'PEER_LOST',
          facts: { member: 2 },
          message: expect.stringContaining('member 2 (test 2)') as string,
        },
      });
    }
    await expect(all[0]!.form([0, 2])).rejects.toMatchObject({ code: 'PEER_LOST' });
    expect(all[0]!.liveness.reasonOf(2)).toBe('lost');
  });

  it('are a TIMEOUT that names who did not ask, and leave nothing behind', async () => {
    const { all } = await joinAll(3);
    const asked = all[1]!.form([0, 1, 2]);
    await expect(all[0]!.form([0, 1, 2], { timeoutMs: 200 })).rejects.toMatchObject({
      code: 'TIMEOUT',
      facts: { missing: [2] },
      message: expect.stringContaining('member 2 (test 2) did not ask') as string,
    });
    const ids = await Promise.all([asked, all[0]!.form([0, 1, 2]), all[2]!.form([0, 1, 2])]);
    expect(new Set(ids).size).toBe(1);
    await expect(all[0]!.regroup({ timeoutMs: 100 })).rejects.toMatchObject({ facts: { missing: [1, 2] } });
  });

  it('can be cancelled', async () => {
    const { all } = await joinAll(2);
    const controller = new AbortController();
    const request = all[0]!.form([0, 1], { signal: controller.signal });
    controller.abort();
    await expect(request).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  it('regroup without one that left, twice in a row', async () => {
    const { all } = await joinAll(3);
    const left = once(all[0]!, 'left');
    await all[1]!.leave();
    expect(await left).toEqual([{ member: 1, title: 'test 1', reason: 'closed' }]);
    const rest = [all[0]!, all[2]!];
    const worlds = await Promise.all(rest.flatMap((member) => [member.regroup(), member.regroup()]));
    expect(worlds.map(({ lost }) => lost)).toEqual([[1], [], [1], []]);
    expect(worlds[0]).toEqual(worlds[2]);
    expect(worlds[0]!.group).not.toBe(worlds[1]!.group);
    expect(rest[0]!.members.map(({ member }) => member)).toEqual([0, 2]);
  });

  it.each([[[]], [[1]], [[0, 0]], [[0, -1]], [[0, 4096]]])('refuse the list %j', async (members) => {
    const { all } = await joinAll(1);
    await expect(all[0]!.form(members)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
  });

  it('are UNREACHABLE after leaving', async () => {
    const { all } = await joinAll(1);
    await all[0]!.leave();
    await expect(all[0]!.regroup()).rejects.toMatchObject({ code: 'UNREACHABLE' });
  });
});

describe('a lost scheduler', () => {
  it('is told once; requests under way and new ones are UNREACHABLE, and nobody is lost by it', async () => {
    const { scheduler, all } = await joinAll(2);
    const epoch = all[0]!.epoch;
    const told = once(all[0]!, 'scheduler-lost');
    const request = expect(all[0]!.form([0, 1])).rejects.toMatchObject({ code: 'UNREACHABLE' });
    await scheduler.close();
    await request;
    await told;
    expect(all[0]!.liveness.schedulerLost).toBe(true);
    expect(all[0]!.epoch).not.toBe(epoch);
    expect(all[0]!.lostMembers()).toEqual([]);
    await expect(all[0]!.regroup()).rejects.toMatchObject({
      code: 'UNREACHABLE',
      message: expect.stringContaining(scheduler.address) as string,
    });
  });
});

describe('the shared view', () => {
  it('is the same from another view of its buffer', async () => {
    const { all } = await joinAll(2);
    const other = new LivenessView(all[0]!.liveness.buffer);
    const left = once(all[0]!, 'left');
    await all[1]!.abort();
    await left;
    expect(other.lostMembers()).toEqual([1]);
    expect(other.epoch).toBe(all[0]!.epoch);
    expect(other.waitForChange(other.epoch - 1, 0)).toBe(true);
    expect(other.waitForChange(other.epoch, 0)).toBe(false);
  });
});

describe.skipIf(!hasOpenssl)('with TLS (needs the openssl command)', () => {
  it('members join over it, and neither plain members nor those without trust do', async () => {
    const folder = mkdtempSync(joinPath(tmpdir(), 'tributary-tls-'));
    opened.push(() => rmSync(folder, { recursive: true }));
    const tls = makeCertificates(folder, 'scheduler');
    const scheduler = await start(2, { tls, handshakeTimeoutMs: 2000 });

    const refused = once(scheduler, 'refused');
    await expect(join(scheduler.address, { joinTimeoutMs: 3000 })).rejects.toMatchObject({
      code: 'UNREACHABLE',
    });
    expect(await refused).toMatchObject([{ remote: expect.stringContaining('127.0.0.1') as string }]);
    await expect(join(scheduler.address, { joinTimeoutMs: 3000, tls: {} })).rejects.toMatchObject({
      code: 'UNREACHABLE',
      message: expect.stringContaining('certificate') as string,
    });
    const trust = { ca: tls.ca };
    const between = await TlsRelay.listen(tls, Number(scheduler.address.split(':')[1]));
    await expect(
      join(`127.0.0.1:${between.port}`, { tls: trust, joinTimeoutMs: 30_000 }),
    ).rejects.toMatchObject({ code: 'REFUSED', facts: { reason: 'secret' } });
    await between.close();
    const all = await Promise.all(
      [0, 1].map((wantedRank) => join(scheduler.address, { wantedRank, tls: trust })),
    );
    const left = once(all[0]!, 'left');
    await all[1]!.leave();
    expect(await left).toMatchObject([{ member: 1, reason: 'closed' }]);
  });
});

describe('the host identity', () => {
  it('is the same each time, and plain text that a join can carry', () => {
    expect(hostIdentity()).toBe(hostIdentity());
    expect(hostIdentity()).toMatch(/^[\x20-\x7e]{10,1024}$/);
  });
});

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
