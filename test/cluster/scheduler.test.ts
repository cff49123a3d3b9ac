/** The scheduler against strangers and faulty members, by real sockets; members that behave must not notice. */
import { once } from 'node:events';
import { afterEach, describe, expect, it } from 'vitest';
import { Scheduler } from '../../src/cluster/index.ts';
import type { RefusalReason, SchedulerOptions } from '../../src/cluster/index.ts';
import { encodeFrame } from '../../src/cluster/frames.ts';
import { RawClient } from './raw-client.ts';
import { OTHER_SECRET, SECRET } from '../support/secrets.ts';

const opened: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of opened.splice(0).reverse()) await close();
});

async function start(options: Partial<SchedulerOptions> = {}): Promise<Scheduler> {
  const scheduler = await Scheduler.start({ size: 1, secret: SECRET, ...options });
  opened.push(() => scheduler.close());
  return scheduler;
}

async function connect(scheduler: Scheduler): Promise<RawClient> {
  const client = await RawClient.connect(scheduler);
  opened.push(() => client.destroy());
  return client;
}

/** A member that is there before the strangers come, and a check that it still is a member. */
async function bystander(scheduler: Scheduler): Promise<() => Promise<void>> {
  const client = await connect(scheduler);
  await client.join(SECRET);
  const { member } = await client.until('welcome');
  return async () => {
    expect(scheduler.members).toContain(member);
    client.send({ kind: 'form', request: 1, members: [member] });
    expect((await client.until('formed')).request).toBe(1);
  };
}

function expectRefused(scheduler: Scheduler, expected: Partial<Record<RefusalReason, number>>): void {
  const none = { secret: 0, version: 0, protocol: 0, silent: 0, busy: 0, rank: 0, full: 0, ended: 0 };
  expect(scheduler.refused).toEqual({ ...none, ...expected });
}

describe('a stranger', () => {
  it.each([
    ['title', { title: 'somebody else' }],
    ['address', { address: { host: '10.0.0.1' } }],
    ['rank', { wantedRank: 1 }],
  ])('whose %s was changed on its way is refused', async (_what, change) => {
    const scheduler = await start({ size: 2 });
    const client = await connect(scheduler);
    await client.join(SECRET, 0, change);
    expect(await client.until('refused')).toMatchObject({ reason: 'secret' });
    expect(scheduler.members).toEqual([]);
  });

  it('with another secret is refused, counted and logged with its address, and the secret is nowhere', async () => {
    const lines: string[] = [];
    const scheduler = await start({ log: (line) => lines.push(line) });
    const untouched = await bystander(scheduler);
    const client = await connect(scheduler);
    const event = once(scheduler, 'refused');
    await client.prove(OTHER_SECRET);
    expect(await client.until('refused')).toMatchObject({ reason: 'secret' });
    await client.closed();
    const port = client.socket.localPort;
    expect(await event).toMatchObject([{ reason: 'secret' }]);
    expect(lines.filter((line) => line.includes('refused'))).toEqual([
      expect.stringMatching(/refused 127\.0\.0\.1:\d+ \(secret\)/),
    ]);
    expect(lines.join()).not.toContain(SECRET);
    expect(port === undefined || lines.join().includes(String(port))).toBe(true);
    expectRefused(scheduler, { secret: 1 });
    await untouched();
  });

  it('is counted each time, and fills neither a log nor a terminal', async () => {
    const lines: string[] = [];
    let events = 0;
    const scheduler = await start({ log: (line) => lines.push(line) });
    scheduler.on('refused', () => events++);
    for (let i = 0; i < 30; i++) {
      const client = await connect(scheduler);
      client.socket.write('GET / HTTP/1.1\r\n\r\n');
      await client.closed();
    }
    expectRefused(scheduler, { protocol: 30 });
    expect(lines).toHaveLength(10);
    await new Promise(setImmediate);
    expect(events).toBe(10);
  });

  it('of another version is told so, whatever else its hello holds', async () => {
    const scheduler = await start();
    const client = await connect(scheduler);
    client.send({ kind: 'hello', version: 7, something: 'else' });
    expect(await client.until('refused')).toMatchObject({
      reason: 'version',
      text: expect.stringContaining('version 7') as string,
    });
    expectRefused(scheduler, { version: 1 });
  });

  it.each<[string, (client: RawClient) => void]>([
    ['garbage', ({ socket }) => void socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n')],
    [
      'a frame that is too long',
      ({ socket }) => void socket.write(Buffer.from([0xff, 0xff, 0xff, 0xff, 1, 2])),
    ],
    ['an empty frame', ({ socket }) => void socket.write(Buffer.alloc(4))],
    ['a frame that is not JSON', ({ socket }) => void socket.write(Buffer.from([0, 0, 0, 2, 0x7b, 0x7b]))],
    [
      'a join before it has proved anything',
      (c) => c.send({ kind: 'join', title: 't', host: 'h', address: {} }),
    ],
    ['an answer before the challenge', (client) => client.send({ kind: 'answer', proof: 'a'.repeat(64) })],
    ['a request', (client) => client.send({ kind: 'regroup', request: 1 })],
  ])('that sends %s is refused', async (_what, speak) => {
    const scheduler = await start();
    const untouched = await bystander(scheduler);
    const client = await connect(scheduler);
    speak(client);
    expect(await client.until('refused')).toMatchObject({ reason: 'protocol' });
    expectRefused(scheduler, { protocol: 1 });
    await untouched();
  });

  it('that ends in the middle of a frame, or without a word, is counted', async () => {
    const scheduler = await start();
    const untouched = await bystander(scheduler);
    const half = await connect(scheduler);
    const first = once(scheduler, 'refused');
    half.socket.end(Buffer.from([0, 0, 1, 0, 0x7b]));
    expect(await first).toMatchObject([{ reason: 'protocol' }]);
    const mute = await connect(scheduler);
    const second = once(scheduler, 'refused');
    mute.socket.end();
    expect(await second).toMatchObject([{ reason: 'silent' }]);
    await untouched();
  });

  it('that says nothing is sent away when its time is over', async () => {
    const scheduler = await start({ handshakeTimeoutMs: 50 });
    const untouched = await bystander(scheduler);
    const client = await connect(scheduler);
    expect(await client.until('refused')).toMatchObject({ reason: 'silent' });
    await client.closed();
    expectRefused(scheduler, { silent: 1 });
    await untouched();
  });

  it('wants a rank that is taken and is refused, and the rendezvous goes on', async () => {
    const scheduler = await start({ size: 2 });
    const [first, second, third] = [
      await connect(scheduler),
      await connect(scheduler),
      await connect(scheduler),
    ];
    await first.join(SECRET, 1);
    await first.until('waiting');
    await second.join(SECRET, 1);
    expect(await second.until('refused')).toMatchObject({ reason: 'rank' });
    await third.join(SECRET, 0);
    expect((await first.until('welcome')).member).toBe(1);
    expect((await third.until('welcome')).member).toBe(0);
    expectRefused(scheduler, { rank: 1 });
  });
});

describe('thousands of strangers', () => {
  it('that say nothing cost at most maxPending connections, and members join all the same', async () => {
    const scheduler = await start({ size: 2, maxPending: 16 });
    const first = await connect(scheduler);
    await first.join(SECRET);
    await first.until('waiting');
    const silent: RawClient[] = [];
    for (let batch = 0; batch < 20; batch++) {
      silent.push(...(await Promise.all(Array.from({ length: 150 }, () => RawClient.connect(scheduler)))));
    }
    opened.push(() => silent.forEach((client) => client.destroy()));
    const second = await connect(scheduler);
    await second.join(SECRET);
    expect((await second.until('welcome')).member).toBe(1);
    expect((await first.until('welcome')).member).toBe(0);
    // All but the last sixteen were sent away; the member took the place of one of those.
    await Promise.all(silent.slice(0, -16).map((client) => client.closed()));
    expect(scheduler.refused.busy).toBe(3000 - 15);
  });

  it('that send mutated frames are refused, and the member that was there stays', async () => {
    const scheduler = await start({ maxPending: 256 });
    const untouched = await bystander(scheduler);
    const seed = Date.now() & 0x7fffffff;
    console.log(`fuzz of connections: seed ${seed}`);
    let state = seed;
    const random = (below: number) => {
      state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
      return (state >>> 8) % below;
    };
    const hello = Buffer.from(JSON.stringify({ kind: 'hello', version: 1, nonce: 'a'.repeat(64) }));
    for (let batch = 0; batch < 10; batch++) {
      const clients = await Promise.all(Array.from({ length: 100 }, () => RawClient.connect(scheduler)));
      for (const { socket } of clients) {
        const frame = Buffer.alloc(4 + hello.length);
        frame.writeUInt32BE(hello.length);
        hello.copy(frame, 4);
        for (let flips = random(4) + 1; flips > 0; flips--) frame[random(frame.length)] = random(256);
        socket.end(frame.subarray(0, frame.length - random(3)));
      }
      await Promise.all(clients.map((client) => client.closed()));
    }
    const counts = Object.values(scheduler.refused);
    expect(counts.reduce((a, b) => a + b)).toBe(1000);
    expect(scheduler.refused.secret).toBe(0);
    await untouched();
  });
});

describe('a member', () => {
  it('whose connection breaks is lost, one that says so has left, one that is not heard is silent', async () => {
    const scheduler = await start({ size: 4, heartbeatMs: 20, lostAfterMs: 400 });
    const clients: RawClient[] = [];
    for (let i = 0; i < 4; i++) clients.push(await connect(scheduler));
    await Promise.all(clients.map((client, rank) => client.join(SECRET, rank)));
    await Promise.all(clients.map((client) => client.until('welcome')));
    const [watcher, breaks, leaves, mute] = clients as [RawClient, RawClient, RawClient, RawClient];
    const beat = setInterval(() => watcher.send({ kind: 'beat' }), 20);
    opened.push(() => clearInterval(beat));
    breaks.socket.resetAndDestroy();
    expect(await watcher.until('left')).toMatchObject({ member: 1, reason: 'lost' });
    leaves.send({ kind: 'leave' });
    expect(await watcher.until('left')).toMatchObject({ member: 2, reason: 'closed' });
    expect(await watcher.until('left')).toMatchObject({ member: 3, reason: 'silent' });
    await mute.closed();
    expect(scheduler.members).toEqual([0]);
    expectRefused(scheduler, {});
  });

  it('is not blamed for a time in which the scheduler itself stood still', async () => {
    const scheduler = await start({ size: 1, heartbeatMs: 20, lostAfterMs: 200 });
    const client = await connect(scheduler);
    await client.join(SECRET);
    await client.until('welcome');
    // The whole process stands still, as a virtual machine does that is moved to another host.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
    client.send({ kind: 'beat' });
    expect(await client.next()).toEqual({ kind: 'beat' });
    expect(scheduler.members).toEqual([0]);
  });

  it.each(['before it has joined', 'as a member'])(
    'that reads nothing of what it asks for is dropped, %s',
    async (when) => {
      const scheduler = await start({
        size: 1,
        maxBacklogBytes: 100_000,
        handshakeTimeoutMs: 60_000,
        lostAfterMs: 60_000,
      });
      const client = await connect(scheduler);
      if (when === 'as a member') {
        await client.join(SECRET);
        await client.until('welcome');
      } else {
        await client.prove(SECRET);
        await client.until('accepted');
      }
      client.socket.pause();
      // The answers to so many fill the buffers of both kernels several times over.
      const beats = Buffer.concat(Array.from({ length: 10_000 }, () => encodeFrame({ kind: 'beat' })));
      const closed = client.closed();
      let isClosed = false;
      void closed.then(() => (isClosed = true));
      const flood = (): void => {
        if (!isClosed) client.socket.write(beats, () => setImmediate(flood));
      };
      flood();
      await closed;
      expect(scheduler.members).toEqual([]);
    },
  );

  it('that breaks the protocol is lost to the others', async () => {
    const scheduler = await start({ size: 2 });
    const [good, bad] = [await connect(scheduler), await connect(scheduler)];
    await Promise.all([good.join(SECRET, 0), bad.join(SECRET, 1)]);
    await Promise.all([good.until('welcome'), bad.until('welcome')]);
    bad.send({ kind: 'hello', version: 2, nonce: 'a'.repeat(64) });
    expect(await good.until('left')).toMatchObject({ member: 1, reason: 'lost' });
  });
});

describe('the port', () => {
  it('is the first free one of a range, and a range without one is an error that names it', async () => {
    const first = await start();
    const taken = Number(first.address.split(':')[1]);
    await expect(start({ ports: [taken, taken] })).rejects.toThrow(`port ${taken}`);
    const next = await start({ ports: [taken, Math.min(taken + 20, 65_535)] });
    expect(Number(next.address.split(':')[1])).toBeGreaterThan(taken);
  });

  it.each([
    [{ size: 0 }, 'size 0'],
    [{ size: 5000 }, 'size 5000'],
    [{ secret: '' }, 'openssl rand -hex 16'],
    [{ secret: 'a secret of some words' }, 'openssl rand -hex 16'],
    [{ heartbeatMs: 100, lostAfterMs: 150 }, 'lostAfterMs 150'],
    [{ ports: [7000, 6000] as [number, number] }, 'the last port 6000'],
  ])('and the other options are checked: %j', async (options, text) => {
    await expect(start(options)).rejects.toThrow(text);
  });
});
