/** Strangers and liars at the port of a pair that exchanges data meanwhile: refused, counted, logged, pair untouched. */
import { once } from 'node:events';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { FrameKind, FRAME_BYTES, writeFrame } from '../../src/transport/tcp/frame.ts';
import type { Frame } from '../../src/transport/tcp/frame.ts';
import { Status, writeHello } from '../../src/transport/tcp/handshake.ts';
import { closeEnds, memberAddress, openEnds, RunningPair, SECRET } from './tcp-pair.ts';
import type { End } from './tcp-pair.ts';
import { helloTo, introduce, Stranger } from './tcp-stranger.ts';
import { OTHER_SECRET } from '../support/secrets.ts';

const HANDSHAKE_TIMEOUT_MS = 300;
const MAX_PENDING = 16;

describe.skipIf(!hasSharedMemory())('a TCP pair that exchanges data', () => {
  let ends: End[];
  let pair: RunningPair;
  let target: End;

  beforeEach(async () => {
    const limits = { handshakeTimeoutMs: HANDSHAKE_TIMEOUT_MS, maxPendingHandshakes: MAX_PENDING };
    ends = await openEnds(2, limits);
    pair = new RunningPair(ends);
    target = ends[0]!;
  });
  afterEach(async () => {
    await pair.run(3);
    expect(ends.flatMap(({ told }) => told.lost)).toEqual([]);
    await closeEnds(ends);
    for (const line of target.lines) expect(line).not.toContain(SECRET);
  });

  /** Lets the pair work until the condition holds. */
  async function meanwhile(condition: () => boolean): Promise<void> {
    const deadline = performance.now() + 20_000;
    while (!condition()) {
      if (performance.now() > deadline) throw new Error('waited in vain');
      pair.step();
      await new Promise(setImmediate);
    }
  }

  async function dial(): Promise<Stranger> {
    return Stranger.dial(target.transport);
  }

  it.each([
    ['another protocol', Buffer.from('GET / HTTP/1.1\r\nHost: here\r\n\r\n')],
    ['zeros', Buffer.alloc(5000)],
    ['a single wrong byte', Buffer.from('x')],
  ])('refuses garbage: %s', async (_, bytes) => {
    const stranger = await dial();
    stranger.say(bytes);
    await meanwhile(() => stranger.isClosed);
    expect(target.transport.refused.garbage).toBe(1);
    expect(target.lines[0]).toMatch(/^refused 127\.0\.0\.1:\d+: /);
  });

  it('counts all whom it refuses, and logs some of an address', async () => {
    for (let i = 0; i < 30; i++) {
      const stranger = await dial();
      stranger.say(Buffer.from('GET / HTTP/1.1\r\n\r\n'));
      await meanwhile(() => stranger.isClosed);
    }
    expect(target.transport.refused.garbage).toBe(30);
    expect(target.lines).toHaveLength(10);
  });

  it('refuses half a hello whose sender goes away, and one whose sender falls silent', async () => {
    const half = writeHello(helloTo(target.transport, 5)).subarray(0, 50);
    const leaving = await dial();
    leaving.say(half);
    leaving.socket.end();
    await meanwhile(() => leaving.isClosed);
    expect(target.transport.refused.garbage).toBe(1);
    const silent = await dial();
    silent.say(half);
    await meanwhile(() => silent.isClosed);
    expect(target.transport.refused.timeout).toBe(1);
  });

  it('refuses another version and says so', async () => {
    const status = await introduce(await dial(), helloTo(target.transport, 5), meanwhile, { version: 99 });
    expect(status).toBe(Status.VERSION);
    expect(target.transport.refused.version).toBe(1);
    expect(target.lines[0]).toContain('version 99');
  });

  it('refuses a wrong secret', async () => {
    const status = await introduce(await dial(), helloTo(target.transport, 5), meanwhile, {
      secret: OTHER_SECRET,
    });
    expect(status).toBe(Status.SECRET);
    expect(target.transport.refused.secret).toBe(1);
  });

  it('refuses a rank twice', async () => {
    const status = await introduce(await dial(), helloTo(target.transport, 1), meanwhile);
    expect(status).toBe(Status.DUPLICATE);
    expect(target.transport.refused.duplicate).toBe(1);
    expect(target.lines[0]).toContain('member 1 is connected already');
  });

  it('takes a member that has dialled again in place of its connection before, heard to its end or not', async () => {
    for (const leaves of [false, true]) {
      const member = leaves ? 6 : 5;
      const joined = target.transport.connect(0, [memberAddress(member, ends[1]!.transport)]);
      const hello = helloTo(target.transport, member);
      const first = await dial();
      expect(await introduce(first, hello, meanwhile, { confirms: false })).toBe(Status.OK);
      if (leaves) first.close();
      const second = await dial();
      expect(await introduce(second, hello, meanwhile)).toBe(Status.OK);
      await joined;
      await meanwhile(() => first.isClosed);
      expect(await introduce(await dial(), hello, meanwhile)).toBe(Status.DUPLICATE);
      second.close();
      const { lost } = target.told;
      await meanwhile(() => lost.length > 0);
      expect(lost.splice(0).map(({ peer }) => peer)).toEqual([member]);
    }
  });

  it('refuses a member that nobody told of, and one that looks for somebody else', async () => {
    expect(await introduce(await dial(), helloTo(target.transport, 5), meanwhile)).toBe(Status.UNKNOWN);
    const lost = helloTo(target.transport, 5, { targetId: new Uint8Array(16) });
    expect(await introduce(await dial(), lost, meanwhile)).toBe(Status.UNKNOWN);
    expect(target.transport.refused.unknown).toBe(2);
  });

  it('refuses an impossible number of connections', async () => {
    const hello = helloTo(target.transport, 5, { index: 3, count: 2 });
    expect(await introduce(await dial(), hello, meanwhile)).toBe('closed');
    expect(target.transport.refused.garbage).toBe(1);
  });

  it('holds few of 10,000 connections that say nothing', async () => {
    const total = 10_000;
    const batch = 500;
    let mostPending = 0;
    for (let opened = 0; opened < total; opened += batch) {
      const sockets: Socket[] = [];
      for (let i = 0; i < batch; i++) {
        const socket = connect(target.transport.address.port, target.transport.address.host);
        socket.on('error', () => undefined);
        sockets.push(socket);
      }
      const { refused } = target.transport;
      const before = refused.tooMany + refused.timeout + refused.garbage;
      await meanwhile(() => {
        mostPending = Math.max(mostPending, target.transport.pendingHandshakes);
        const now = target.transport.refused;
        return now.tooMany + now.timeout + now.garbage - before >= batch - MAX_PENDING;
      });
      await Promise.all(
        sockets.map(async (socket) => {
          if (socket.closed) return;
          const closed = once(socket, 'close');
          socket.destroy();
          await closed;
        }),
      );
    }
    // Some were closed before they were accepted.
    await meanwhile(() => {
      const { tooMany, timeout, garbage } = target.transport.refused;
      return tooMany + timeout + garbage >= total;
    });
    expect(target.transport.pendingHandshakes).toBe(0);
    const { tooMany, timeout, garbage } = target.transport.refused;
    expect(tooMany + timeout + garbage).toBe(total);
    expect(mostPending).toBeLessThanOrEqual(MAX_PENDING);
    expect(tooMany).toBeGreaterThan(total / 2);
    expect(target.lines.some((line) => line.includes('127.0.0.1'))).toBe(true);
  });

  describe('a member that lies once it is in', () => {
    const frame: Frame = {
      kind: FrameKind.MESSAGE,
      ...{ group: 1, tag: 1, sequence: 0, step: 0, signature: 7, weight: 1 },
      ...{ totalBytes: 64, offset: 0, bytes: 64 },
    };

    function header(change: Partial<Frame> = {}, serial = 0): Uint8Array {
      const bytes = new Uint8Array(FRAME_BYTES);
      writeFrame(new DataView(bytes.buffer), 0, { ...frame, ...change }, serial);
      return bytes;
    }

    const lies: [string, () => Uint8Array, RegExp][] = [
      ['bytes that are no frame', () => new Uint8Array(64).fill(3), /magic/],
      ['a part beyond its message', () => header({ offset: 32, bytes: 33 }), /bytes: 33 at offset 32/],
      ['an empty part', () => header({ bytes: 0 }), /bytes is 0/],
      [
        'a notice that is too long',
        () => header({ kind: FrameKind.NOTICE, totalBytes: 2 ** 20, bytes: 2 ** 20 }),
        /at most 32768/,
      ],
      ['a goodbye with a payload', () => header({ kind: FrameKind.BYE }), /at most 0/],
      ['a frame out of its place', () => header({}, 5), /serial is 5, not 0/],
      ['an unknown kind', () => header({ kind: 9 as Frame['kind'] }), /kind is 9/],
      ['a flipped bit', () => header().map((byte, i) => (i === 20 ? byte ^ 4 : byte)), /checksum/],
      [
        'too many parts',
        () => new Uint8Array([...header({ bytes: 1 }), 0, ...header({ offset: 1, bytes: 1 }, 1)]),
        /more parts/,
      ],
    ];

    it.each(lies)('is lost for %s, by name, address and field', async (_, lie, field) => {
      const stranger = await dial();
      const joined = target.transport.connect(0, [memberAddress(5, ends[1]!.transport)]);
      const status = await introduce(stranger, helloTo(target.transport, 5), meanwhile);
      expect(status).toBe(Status.OK);
      await joined;
      stranger.say(lie());
      const { lost } = target.told;
      await meanwhile(() => lost.length > 0);
      const [{ peer, error }] = lost.splice(0) as [(typeof lost)[number]];
      expect(peer).toBe(5);
      expect(error.code).toBe('PROTOCOL_VIOLATION');
      expect(error.message).toContain('member 5 (member 5 of the test) at 127.0.0.1:');
      expect(error.message).toMatch(field);
      await meanwhile(() => stranger.isClosed);
    });
  });
});
