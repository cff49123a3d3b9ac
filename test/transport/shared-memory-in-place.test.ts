import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { TributaryError } from '../../src/base/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { Segment } from '../../src/memory/index.ts';
import type { Receiving } from '../../src/transport/index.ts';
import { addressOf, closeSides, connectedSides, envelope, makeSide, settle } from './shared-memory-pair.ts';
import type { Side } from './shared-memory-pair.ts';

describe.skipIf(!hasSharedMemory())('shared memory in place', () => {
  let directory = '';
  let sides: Side[] = [];
  let a: Side;
  let b: Side;

  beforeEach(async () => {
    directory = mkdtempSync('/dev/shm/test-tributary-');
    sides = await connectedSides(2, directory, { forgetTimeoutMs: 20, closeTimeoutMs: 20 });
    [a, b] = sides as [Side, Side];
  });
  afterEach(async () => {
    await closeSides(sides);
    const left = readdirSync(directory);
    rmSync(directory, { recursive: true, force: true });
    expect(left).toEqual([]);
  });

  it('gives a small message back at once and a large one when it was released', () => {
    const small = a.transport.send(1, envelope(), a.segment.allocate('float32', 10));
    const large = a.transport.send(1, envelope({ step: 9 }), a.segment.allocate('float32', 10_000));
    expect([small.done, large.done]).toEqual([true, false]);
    const receiving = b.transport.receive(0, envelope({ step: 9 }), b.segment.allocate('float32', 10_000));
    settle(sides);
    expect([receiving.done, large.done, a.transport.idle]).toEqual([true, false, false]);
    receiving.release();
    receiving.release();
    settle(sides);
    expect([large.done, a.transport.idle]).toEqual([true, true]);
    expect(a.told.lost).toEqual([]);
  });

  it('shows the sender’s memory itself, not a copy', () => {
    const region = a.segment.allocate('float32', 10_000);
    a.transport.send(1, envelope(), region);
    const receiving = b.transport.receive(0, envelope(), b.segment.allocate('float32', 10_000));
    settle(sides);
    region.view[7] = 42;
    expect(receiving.region.view[7]).toBe(42);
    receiving.release();
  });

  it('lets the borrower write into a lent region', () => {
    const region = a.segment.allocate('int32', 8);
    expect(a.transport.inPlace.isShareable(region)).toBe(true);
    const borrowing = b.transport.inPlace.borrow(0, envelope(), 'int32', 8);
    expect(() => borrowing.region).toThrow(expect.objectContaining({ code: 'BROKEN_INVARIANT' }));
    expect(a.transport.inPlace.lend(1, envelope(), region.slice(2, 6)).done).toBe(true);
    settle(sides);
    expect(borrowing.done).toBe(false);
    expect(b.told.mismatches).toHaveLength(1);

    const again = b.transport.inPlace.borrow(0, envelope({ step: 5 }), 'int32', 6);
    a.transport.inPlace.lend(1, envelope({ step: 5 }), region.slice(2, 6));
    settle(sides);
    expect(again.weight).toBe(6);
    (again.region.view as Int32Array).fill(7);
    again.release();
    expect(Array.from(region.view)).toEqual([0, 0, 7, 7, 7, 7, 7, 7]);
    expect(a.transport.idle).toBe(true);
  });

  it('does not take a message for a lent region, nor the other way round', () => {
    const region = a.segment.allocate('int32', 8);
    const borrowing = b.transport.inPlace.borrow(0, envelope(), 'int32', 8);
    const receiving = b.transport.receive(0, envelope({ step: 5 }), b.segment.allocate('int32', 8));
    a.transport.send(1, envelope(), region);
    a.transport.inPlace.lend(1, envelope({ step: 5 }), region);
    settle(sides);
    expect([borrowing.done, receiving.done]).toEqual([false, false]);
    expect(b.told.mismatches.map((told) => told.payloadBytes)).toEqual([32, 32]);
  });

  it('refuses to lend private memory and regions of another space', () => {
    const region = a.space.allocate(4096).allocate('int32', 8);
    expect(a.transport.inPlace.isShareable(region)).toBe(false);
    expect(() => a.transport.inPlace.lend(1, envelope(), region)).toThrow(
      expect.objectContaining({ code: 'BROKEN_INVARIANT' }),
    );
    const foreign = b.segment.allocate('int32', 8);
    expect(() => a.transport.send(1, envelope(), foreign)).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT' }),
    );
  });

  it('reads from more segments than it has room or slots for, and keeps one that is in use', () => {
    const into = b.segment.allocate('int32', 80_000);
    const used: Segment[] = [];
    let held: Receiving | undefined;
    for (let i = 0; i < 300; i++) {
      const segment = a.space.createSegment(`many-${i}-${process.pid}`, 320_000, { directory });
      used.push(segment);
      const region = segment.allocate('int32', 80_000);
      region.view.fill(i);
      const sending = a.transport.send(1, envelope({ sequence: i }), region);
      const receiving = b.transport.receive(0, envelope({ sequence: i }), into);
      settle(sides);
      expect([receiving.done && receiving.region.view[79_999], b.told.lost]).toEqual([i, []]);
      if (i === 0) {
        held = receiving;
        continue;
      }
      receiving.release();
      settle(sides);
      expect(sending.done).toBe(true);
      segment.close();
    }
    expect(held!.region.view[79_999]).toBe(0);
    held!.release();
    settle(sides);
    expect(a.transport.idle).toBe(true);
    for (const segment of used) segment.close();
  });

  it('lets go of a segment of the peer when the peer has, once nobody reads it', () => {
    const taken = (): number => {
      try {
        b.space.allocate(b.space.capacityBytes).close();
      } catch (error) {
        return (error as TributaryError).facts['usedBytes'] as number;
      }
      return 0;
    };
    const into = b.segment.allocate('int32', 80_000);
    const before = taken();
    for (const sequence of [1, 2]) {
      const segment = a.space.createSegment(`freed-${sequence}-${process.pid}`, 320_000, { directory });
      const region = segment.allocate('int32', 80_000);
      region.view.fill(sequence);
      a.transport.send(1, envelope({ sequence }), region);
      const receiving = b.transport.receive(0, envelope({ sequence }), into);
      settle(sides);
      segment.close();
      a.transport.letGo(segment);
      a.transport.letGo(segment);
      settle(sides);
      expect(receiving.region.view[79_999]).toBe(sequence);
      expect(taken()).toBeGreaterThan(before);
      receiving.release();
      expect(taken()).toBe(before);
      settle(sides);
    }
    expect([a.told.lost, b.told.lost]).toEqual([[], []]);
  });

  it('uses staging memory again once it was read', () => {
    const region = a.space.allocate(2 ** 20).allocate('float32', 200_000);
    const into = b.segment.allocate('float32', 200_000);
    for (let i = 0; i < 30; i++) {
      region.view.fill(i);
      const sending = a.transport.send(1, envelope({ sequence: i }), region);
      expect(sending.done).toBe(true);
      region.view.fill(-1);
      const receiving = b.transport.receive(0, envelope({ sequence: i }), into);
      settle(sides);
      expect(receiving.region.view[199_999]).toBe(i);
      receiving.release();
      settle(sides);
    }
    expect(readdirSync(directory).filter((name) => name.includes('staging'))).toHaveLength(1);
  });

  it('tells of a peer that does not stop writing for a forgotten operation', () => {
    b.transport.inPlace.enter(envelope({ sequence: 8 }));
    a.transport.forget(envelope());
    expect(a.transport.poll()).toBe(false);
    b.transport.inPlace.leave();
    a.transport.forget(envelope({ sequence: 8 }));
    b.transport.inPlace.enter(envelope({ sequence: 9 }));
    a.transport.forget(envelope({ sequence: 9 }));
    expect(a.told.lost).toEqual([]);
    a.transport.poll();
    expect(a.told.lost.map(({ error }) => error.message)).toEqual([
      expect.stringContaining('member 1 (side 1') as string,
    ]);
  });

  it('does not send what was queued for an operation that is forgotten', () => {
    const region = a.segment.allocate('uint8', 16_000);
    const sends = Array.from({ length: 20 }, (_, step) => a.transport.send(1, envelope({ step }), region));
    const waiting = sends.filter(({ done }) => !done);
    expect(waiting.length).toBeGreaterThan(0);
    a.transport.forget(envelope());
    expect(a.transport.idle).toBe(true);
    settle(sides);
    expect(waiting.some(({ done }) => done)).toBe(false);
    const after = b.transport.receive(
      0,
      envelope({ tag: 1, weight: 0 }),
      b.segment.allocate('uint8', 16_000),
    );
    a.transport.send(1, envelope({ tag: 1 }), region);
    settle(sides);
    expect(after.done).toBe(true);
  });

  it('does not look for the memory of an operation that both sides have forgotten', () => {
    const segment = a.space.createSegment(`freed-${process.pid}`, 65_536, { directory });
    const sending = a.transport.send(1, envelope(), segment.allocate('uint8', 60_000));
    a.transport.inPlace.lend(1, envelope({ step: 9 }), segment.region('uint8', 0, 10));
    for (const { transport } of sides) transport.forget(envelope());
    segment.close();
    settle(sides);
    expect([a.told.lost, b.told.lost, a.transport.idle]).toEqual([[], [], true]);
    expect(sending.done).toBe(true);
  });

  it('tells once that a peer closed of which something is expected, after what it had sent', async () => {
    const receiving = b.transport.receive(0, envelope(), b.segment.allocate('int32', 3));
    a.transport.send(1, envelope(), a.segment.allocate('int32', 3));
    a.transport.notify(1, 'goodbye');
    await a.transport.close();
    b.transport.block(1000);
    expect([receiving.done, b.told.notices, b.told.lost]).toEqual([false, [], []]);
    b.transport.poll();
    expect(receiving.done).toBe(true);
    b.transport.checkPeers();
    expect([b.transport.hasLeft(0), b.told.lost]).toEqual([true, []]);
    b.transport.send(0, envelope({ step: 1 }), b.segment.allocate('int32', 3));
    b.transport.block(1000);
    b.transport.checkPeers();
    expect(b.told.notices).toEqual([{ peer: 0, text: 'goodbye' }]);
    expect(b.told.lost.map(({ peer, error }) => [peer, error.code, error.facts.pid])).toEqual([
      [0, 'PEER_LOST', process.pid],
    ]);
    const late = b.transport.send(0, envelope(), b.segment.allocate('int32', 3));
    b.transport.poll();
    expect([late.done, b.transport.idle]).toEqual([false, true]);
  });

  it('tells that a peer aborted', () => {
    a.transport.abort(new Error('test'));
    b.transport.block(1000);
    expect(b.told.lost[0]?.error.message).toContain('has aborted');
  });

  it('says who cannot be connected, and leaves nothing behind', async () => {
    const before = readdirSync(directory).sort();
    const stranger = makeSide(7, directory);
    await expect(
      a.transport.connect(0, [addressOf(stranger)], { connectTimeoutMs: 5 }),
    ).rejects.toMatchObject({ code: 'UNREACHABLE', facts: { member: 7 } });
    const stopped = a.transport.connect(0, [addressOf(stranger)], { signal: AbortSignal.abort() });
    await expect(stopped).rejects.toMatchObject({ code: 'CANCELLED' });
    await closeSides([stranger]);
    await expect(a.transport.connect(0, [addressOf(stranger)])).rejects.toMatchObject({
      code: 'UNREACHABLE',
    });
    expect(readdirSync(directory).sort()).toEqual(before);
  });

  it('refuses addresses that no transport gives', async () => {
    const good = addressOf(b).address;
    for (const [change, code] of [
      [{ version: 1 }, 'REFUSED'],
      [{ version: undefined }, 'REFUSED'],
      [{ control: '../../etc/passwd' }, 'PROTOCOL_VIOLATION'],
      [{ control: 5 }, 'PROTOCOL_VIOLATION'],
      [{ pid: -1 }, 'PROTOCOL_VIOLATION'],
      [{ pid: '1' }, 'PROTOCOL_VIOLATION'],
      [{ startTicks: 'x' }, 'PROTOCOL_VIOLATION'],
      [{ pidNamespace: null }, 'PROTOCOL_VIOLATION'],
      [{ control: 'side-0123456789abcdef' }, 'UNREACHABLE'],
    ] as const) {
      const address = { ...good, ...change };
      const attempt = a.transport.connect(0, [{ ...addressOf(b), member: 9, address }]);
      await expect(attempt).rejects.toMatchObject({ code, facts: { member: 9 } });
    }
  });
});
