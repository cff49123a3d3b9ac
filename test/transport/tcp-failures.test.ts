/** Peers that die, leave, lag or are forgotten, over TCP. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { networkInterfaces } from 'node:os';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { PeerError, UsageError } from '../../src/base/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { systemHost } from '../../src/sockets/index.ts';
import { createTcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import { closeEnds, envelope, memberAddress, openEnd, openEnds, SECRET, until } from './tcp-pair.ts';
import type { End } from './tcp-pair.ts';
import { programOf } from '../support/test-program.ts';
import { OTHER_SECRET } from '../support/secrets.ts';

const PEER = fileURLToPath(new URL('./tcp-peer.ts', import.meta.url));

describe.skipIf(!hasSharedMemory())('the TCP transport', () => {
  const ends: End[] = [];
  afterEach(async () => closeEnds(ends.splice(0)));

  async function open(count: number, options = {}): Promise<End[]> {
    ends.push(...(await openEnds(count, options)));
    return ends;
  }

  function bytes(end: End, length: number, value = 0): Region<'uint8'> {
    const region = end.space.allocate(Math.max(1, length)).allocate('uint8', length);
    region.view.fill(value);
    return region;
  }

  it('names a process that was killed while it was sending', async () => {
    const end = await openEnd();
    ends.push(end);
    const child = spawn(
      process.execPath,
      [...programOf(PEER), SECRET, JSON.stringify(end.transport.address)],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
    try {
      const [line] = (await once(child.stdout, 'data')) as [Buffer];
      const address = JSON.parse(line.toString()) as Record<string, unknown>;
      await end.transport.connect(0, [memberAddress(1, { address })]);
      const region = bytes(end, 2 ** 20);
      for (let sequence = 0; sequence < 5; sequence++) {
        const receiving = end.transport.receive(1, envelope({ sequence }), region);
        await until([end], () => receiving.done);
        receiving.release();
      }
      const last = end.transport.receive(1, envelope({ sequence: 1_000_000 }), region);
      child.kill('SIGKILL');
      await until([end], () => end.told.lost.length > 0);
      const [{ peer, error }] = end.told.lost as [(typeof end.told.lost)[number]];
      expect([peer, error.code]).toEqual([1, 'PEER_LOST']);
      expect(error.message).toContain(`member 1 (member 1 of the test) at 127.0.0.1:`);
      expect(last.done).toBe(false);
      expect(end.transport.idle).toBe(true);
      // Told once, and what is sent to it afterwards never completes.
      const sending = end.transport.send(1, envelope(), region);
      for (let i = 0; i < 200; i++) end.transport.poll();
      expect([end.told.lost.length, sending.done]).toEqual([1, false]);
    } finally {
      child.kill('SIGKILL');
    }
  });

  it('delivers all that was sent before a goodbye, and takes the goodbye for no loss', async () => {
    const [a, b] = (await open(2)) as [End, End];
    const length = 3 * 2 ** 20;
    // Unread bytes at the side that leaves make its kernel reset the connection.
    b.transport.send(0, envelope({ tag: 9 }), bytes(b, 1000));
    const sent = a.transport.send(1, envelope(), bytes(a, length, 5));
    a.transport.notify(1, 'farewell');
    const closing = a.transport.close();
    const into = bytes(b, length);
    const receiving = b.transport.receive(0, envelope(), into);
    await until([b], () => receiving.done);
    await closing;
    await until([b], () => b.told.notices.length === 1);
    for (let i = 0; i < 300; i++) b.transport.poll();
    expect(sent.done).toBe(true);
    expect(into.view.every((value) => value === 5)).toBe(true);
    expect(b.told.lost).toEqual([]);
    // Whoever still wants something of it learns that it has left.
    b.transport.receive(0, envelope({ sequence: 1 }), into);
    await until([b], () => b.told.lost.length === 1);
    expect(b.told.lost[0]!.error.message).toContain('has left');
  });

  it('tells of a loss when a peer leaves or aborts while something is expected of it', async () => {
    const [a, b, c] = (await open(3)) as [End, End, End];
    b.transport.receive(0, envelope(), bytes(b, 10));
    await a.transport.close();
    c.transport.abort(new Error('enough'));
    await until([b], () => b.told.lost.length === 2);
    expect(b.told.lost.map(({ peer }) => peer).sort()).toEqual([0, 2]);
    expect(b.told.lost.every(({ error }) => error.code === 'PEER_LOST')).toBe(true);
  });

  it.each([0, 1])('is dialled again when the kernel takes only a part of its answer %i', async (which) => {
    let answers = 0;
    const { libc } = systemHost;
    const sendBytes: typeof libc.sendBytes = (fd, sent) =>
      libc.sendBytes(fd, answers++ === which ? sent.subarray(0, 20) : sent);
    const listening = await openEnd({}, { ...systemHost, libc: { ...libc, sendBytes } });
    ends.push(listening, await openEnd());
    const [a, b] = ends as [End, End];
    const [first, second] = ends.map(({ transport }, member) => memberAddress(member, transport));
    await Promise.all([a.transport.connect(0, [second!]), b.transport.connect(1, [first!])]);
    a.transport.send(1, envelope(), bytes(a, 10, 3));
    const into = bytes(b, 10);
    const receiving = b.transport.receive(0, envelope(), into);
    await until(ends, () => receiving.done);
    expect([a.transport.refused.garbage, into.view[9], b.told.lost.length]).toEqual([1, 3, 0]);
    expect(a.lines.join()).toMatch(/it cannot be answered: 20 of \d+ bytes were taken/);
  });

  it('pauses reading at maxUnexpectedBytes and goes on when receives are posted', async () => {
    const lines: string[] = [];
    const log = (line: string) => void lines.push(line);
    const [a, b] = (await open(2, { maxUnexpectedBytes: 300_000, log })) as [End, End];
    const sends = [0, 1, 2, 3, 4, 5].map((step) =>
      a.transport.send(1, envelope({ step }), bytes(a, 2_000_000, step + 1)),
    );
    const small = a.transport.send(1, envelope({ step: 6 }), bytes(a, 10, 7));
    for (let i = 0; i < 500; i++) for (const { transport } of ends) transport.poll();
    expect(sends.at(-1)!.done).toBe(false);
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatch(
      /member 1 has stopped reading from member 0 .* 2000000 more .*maxUnexpectedBytes/,
    );
    for (const step of [6, 3, 0, 5, 1, 2, 4]) {
      const into = bytes(b, step === 6 ? 10 : 2_000_000);
      const receiving = b.transport.receive(0, envelope({ step }), into);
      b.transport.poll();
      if (step === 4) await until(ends, () => receiving.done && small.done);
    }
    await until(ends, () => b.transport.idle && sends.every(({ done }) => done));
    expect(b.told.mismatches).toEqual([]);
  });

  it('notices the end of a peer whose messages fill all the room there is', async () => {
    const [a, b] = (await open(2, { maxUnexpectedBytes: 15_000 })) as [End, End];
    const expected = b.transport.receive(0, envelope({ tag: 2 }), bytes(b, 10));
    for (let step = 0; step < 5; step++) a.transport.send(1, envelope({ step }), bytes(a, 10_000));
    for (let i = 0; i < 100; i++) for (const { transport } of ends) transport.poll();
    a.transport.abort(new Error('enough'));
    await until([b], () => b.told.lost.length > 0);
    expect([b.told.lost[0]!.peer, expected.done]).toEqual([0, false]);
  });

  it('takes as many connections as the other side dials', async () => {
    const a = await openEnd({ connectionsPerPeer: 1 });
    const b = await openEnd({ connectionsPerPeer: 4 });
    ends.push(a, b);
    await Promise.all([
      a.transport.connect(0, [memberAddress(1, b.transport)]),
      b.transport.connect(1, [memberAddress(0, a.transport)]),
    ]);
    const length = 5_000_001;
    const receiving = b.transport.receive(0, envelope(), bytes(b, length));
    a.transport.send(1, envelope(), bytes(a, length, 6));
    await until(ends, () => receiving.done);
    expect(receiving.region.view.every((value) => value === 6)).toBe(true);
  });

  it('still sends the rest of a forgotten message, and its region may change at once', async () => {
    const [a, b] = (await open(2, { connectionsPerPeer: 2 })) as [End, End];
    const length = 24 * 2 ** 20;
    const region = bytes(a, length, 3);
    const into = bytes(b, length);
    a.transport.send(1, envelope(), region);
    const receiving = b.transport.receive(0, envelope(), into);
    for (let i = 0; i < 4; i++) for (const { transport } of ends) transport.poll();
    a.transport.forget(envelope());
    region.view.fill(99);
    // Both connections had begun their part, so the message still arrives, as it was.
    await until(ends, () => a.transport.idle && receiving.done);
    expect(into.view.every((value) => value === 3)).toBe(true);
    b.transport.forget(envelope());
    expect(b.transport.idle).toBe(true);
    const again = b.transport.receive(0, envelope({ sequence: 1 }), into);
    a.transport.send(1, envelope({ sequence: 1 }), region);
    await until(ends, () => again.done);
    expect(into.view.every((value) => value === 99)).toBe(true);
  });

  it('connects to more members later, and does not mind who calls first', async () => {
    const [a, b] = (await open(2)) as [End, End];
    const c = await openEnd();
    ends.push(c);
    const calling = c.transport.connect(2, [memberAddress(0, a.transport), memberAddress(1, b.transport)]);
    let called = false;
    void calling.then(() => (called = true));
    await until([a, b], () => a.transport.pendingHandshakes + b.transport.pendingHandshakes === 2);
    expect(called).toBe(false);
    const third = memberAddress(2, c.transport);
    await Promise.all([calling, a.transport.connect(0, [third]), b.transport.connect(1, [third])]);
    const receiving = c.transport.receive(1, envelope(), bytes(c, 9));
    b.transport.send(2, envelope(), bytes(b, 9, 8));
    await until(ends, () => receiving.done);
    expect([...receiving.region.view]).toEqual(new Array(9).fill(8));
  });

  it('says who cannot be reached, where and why', async () => {
    const end = await openEnd();
    ends.push(end);
    const server = createServer();
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    await new Promise((resolve) => server.close(resolve));
    const gone = { host: '127.0.0.1', port, id: '0'.repeat(32) };
    const failure = end.transport.connect(
      3,
      [memberAddress(1, { address: gone }), memberAddress(7, { address: gone })],
      { connectTimeoutMs: 100 },
    );
    const error = await failure.catch((cause: unknown) => cause as PeerError);
    expect(error).toBeInstanceOf(PeerError);
    expect((error as PeerError).code).toBe('UNREACHABLE');
    const text = (error as PeerError).message;
    expect(text).toContain(
      `member 1 (member 1 of the test) at 127.0.0.1:${port}: the connection was refused`,
    );
    expect(text).toContain(`member 7 (member 7 of the test) at 127.0.0.1:${port}: it did not dial`);
    expect(text).toMatch(/address.*ports/);
  });

  it('is refused at once with another secret, and the secret is in no message', async () => {
    const a = await openEnd({ secret: SECRET });
    const b = await openEnd({ secret: OTHER_SECRET });
    ends.push(a, b);
    const [first, second] = await Promise.allSettled([
      a.transport.connect(0, [memberAddress(1, b.transport)], { connectTimeoutMs: 300 }),
      b.transport.connect(1, [memberAddress(0, a.transport)], { connectTimeoutMs: 20_000 }),
    ]);
    const errors = [first, second].map((one) => (one as PromiseRejectedResult).reason as PeerError);
    expect(errors.map(({ code }) => code)).toEqual(['UNREACHABLE', 'REFUSED']);
    expect(errors[0]!.message).toContain('secret 1');
    for (const { message } of errors) expect(message).not.toMatch(/right|wrong/);
  });

  it('stops connecting when it is told to, and leaves no peer behind', async () => {
    const end = await openEnd();
    ends.push(end);
    const controller = new AbortController();
    const peer = memberAddress(9, { address: { host: '127.0.0.1', port: 1, id: '0'.repeat(32) } });
    const connecting = end.transport.connect(0, [peer], { signal: controller.signal });
    controller.abort();
    await expect(connecting).rejects.toThrow(/abort/i);
    expect(() => end.transport.send(9, envelope(), bytes(end, 1))).toThrow(UsageError);
  });

  it('leaves no descriptor behind, however it ends', async () => {
    const count = (): number => readdirSync('/proc/self/fd').length;
    const before = count();
    const [a, b, c] = await openEnds(3, { connectionsPerPeer: 2 });
    a!.transport.disconnect(1);
    b!.transport.abort(new Error('enough'));
    const failed = a!.transport.connect(0, [memberAddress(9, b!.transport)], { connectTimeoutMs: 1 });
    await expect(failed).rejects.toThrow(PeerError);
    await until([a!, c!], () => c!.told.lost.length === 1);
    const closing = a!.transport.close();
    a!.transport.abort(new Error('faster'));
    await closing;
    await closeEnds([a!, b!, c!]);
    expect(count()).toBe(before);
    expect(() => a!.transport.notify(2, 'late')).toThrow('closed');
    expect(a!.transport.poll()).toBe(false);
  });

  it('refuses addresses of members that make no sense', async () => {
    const end = await openEnd();
    ends.push(end);
    for (const address of [
      {},
      { host: 5, port: 80, id: '0'.repeat(32) },
      { host: 'a b', port: 80, id: '0'.repeat(32) },
      { host: '127.0.0.1', port: 70_000, id: '0'.repeat(32) },
      { host: '127.0.0.1', port: 80, id: 'xyz' },
    ]) {
      const connecting = end.transport.connect(0, [memberAddress(1, { address })]);
      await expect(connecting).rejects.toMatchObject({ code: 'UNREACHABLE' });
    }
  });

  it('listens within its range of ports and says when none is free', async () => {
    const taken = await openEnd();
    ends.push(taken);
    const { port } = taken.transport.address;
    const { space } = taken;
    await expect(createTcpTransport({ space, secret: SECRET, ports: [port, port] })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining(`none of the ports ${port} to ${port}`) as string,
    });
    const next = await openEnd({ ports: [port, Math.min(65_535, port + 50)] });
    ends.push(next);
    expect(next.transport.address.port).toBeGreaterThan(port);
    await expect(createTcpTransport({ space, secret: SECRET, address: '203.0.113.7' })).rejects.toMatchObject(
      {
        message: expect.stringContaining('does not belong to this host') as string,
      },
    );
    await expect(createTcpTransport({ space, secret: '' })).rejects.toThrow('secret');
    await expect(createTcpTransport({ space, secret: SECRET, address: '0.0.0.0' })).rejects.toThrow('reach');
  });

  const hasIpv6 = Object.values(networkInterfaces()).some((list) =>
    list?.some(({ address }) => address === '::1'),
  );
  it.skipIf(!hasIpv6)('speaks IPv6', async () => {
    const six = await open(2, { address: '::1' });
    const receiving = six[0]!.transport.receive(1, envelope(), bytes(six[0]!, 100));
    six[1]!.transport.send(0, envelope(), bytes(six[1]!, 100, 4));
    await until(six, () => receiving.done);
  });
});
