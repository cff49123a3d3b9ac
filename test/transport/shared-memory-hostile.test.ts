import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { Arrivals } from '../../src/transport/shared-memory/arrivals.ts';
import { Control } from '../../src/transport/shared-memory/control.ts';
import {
  EntryKind,
  EntryWord,
  MIN_RING_BYTES,
  RING_DATA_BYTES,
  RingWord,
} from '../../src/transport/shared-memory/layout.ts';
import { copyBytesIn } from '../../src/transport/shared-memory/memory-copy.ts';
import { inlineMessage, inPlaceEntry, textEntry } from '../../src/transport/shared-memory/outgoing.ts';
import { Receive } from '../../src/transport/shared-memory/receive.ts';
import { closeSides, connectedSides, envelope, loopLink, settle } from './shared-memory-pair.ts';
import type { Side } from './shared-memory-pair.ts';

const FIRST = RING_DATA_BYTES / 4;

describe.skipIf(!hasSharedMemory())('a hostile peer in shared memory', () => {
  let directory = '';
  let sides: Side[] = [];
  let attacker: SharedSpace;

  beforeEach(async () => {
    directory = mkdtempSync('/dev/shm/test-tributary-');
    sides = await connectedSides(3, directory, { closeTimeoutMs: 20 });
    attacker = SharedSpace.create({ maxBytes: 16 * 2 ** 20 });
  });
  afterEach(async () => {
    await closeSides(sides);
    const left = readdirSync(directory);
    rmSync(directory, { recursive: true, force: true });
    expect(left).toEqual([]);
  });

  /** The words of the ring between two sides, as the attacker maps it. */
  function ringWords(from: number, to: number): Int32Array {
    const controlOf = (member: number): string => sides[member]!.transport.address.control as string;
    const segment = attacker.attachSegment(`${controlOf(from)}-to-${controlOf(to).slice(-16)}`, {
      directory,
    });
    return segment.region('int32', 0, segment.byteLength / 4).view;
  }

  /** Publishes one entry with these header words from member 0 to member 1. */
  function publish(header: Partial<Record<keyof typeof EntryWord, number>>, bytes = 64): void {
    const words = ringWords(0, 1);
    words[FIRST + EntryWord.ENTRY_BYTES] = bytes;
    for (const [name, value] of Object.entries(header)) {
      words[FIRST + EntryWord[name as keyof typeof EntryWord]] = value;
    }
    Atomics.store(words, RingWord.TAIL, bytes);
  }

  function expectViolation(victim: number, culprit: number, what: string): void {
    const [, , third] = sides as [Side, Side, Side];
    const side = sides[victim]!;
    settle(sides);
    expect(side.told.lost.map(({ peer, error }) => [peer, error.code])).toEqual([
      [culprit, 'PROTOCOL_VIOLATION'],
    ]);
    const { message } = side.told.lost[0]!.error;
    expect(message).toContain(`member ${culprit} (side ${culprit}, process ${process.pid})`);
    expect(message).toContain(what);
    // The others are untouched.
    const receiving = side.transport.receive(2, envelope(), side.segment.allocate('int32', 3));
    third.transport.send(victim, envelope(), third.segment.allocate('int32', 3));
    settle(sides);
    expect(receiving.done).toBe(true);
  }

  const { INLINE, IN_PLACE, LENT, NOTICE, SEGMENT, ACKNOWLEDGEMENT } = EntryKind;
  const cases: [string, Parameters<typeof publish>, string][] = [
    ['an unknown kind', [{ KIND: 99 }], 'unknown kind 99'],
    ['kind 0', [{ KIND: 0 }], 'unknown kind 0'],
    ['an entry of no bytes', [{ KIND: INLINE, ENTRY_BYTES: 0 }], 'does not lie in its ring'],
    ['an entry of odd size', [{ KIND: INLINE, ENTRY_BYTES: 65 }], 'does not lie in its ring'],
    ['an entry of negative size', [{ KIND: INLINE, ENTRY_BYTES: -64 }], 'does not lie in its ring'],
    ['an entry beyond the tail', [{ KIND: INLINE, ENTRY_BYTES: 128 }], 'does not lie in its ring'],
    ['a tail beyond the ring', [{ KIND: INLINE }, MIN_RING_BYTES + 64], 'its tail says'],
    ['a tail before the head', [{ KIND: INLINE }, -64], 'its tail says'],
    ['an unknown element type', [{ KIND: INLINE, DTYPE: 7 }], 'unknown element type 7'],
    ['a negative element type', [{ KIND: LENT, DTYPE: -1 }], 'unknown element type -1'],
    ['a length that lies', [{ KIND: INLINE, LENGTH: 100, PAYLOAD_BYTES: 0 }], '100 elements of float32'],
    ['a payload outside its entry', [{ KIND: INLINE, LENGTH: 1, PAYLOAD_BYTES: 4 }], 'of which 0 fit'],
    ['a segment without name', [{ KIND: IN_PLACE, ID: 1, SLOT: 3 }], 'segment 3, which it never named'],
    ['a segment outside the slots', [{ KIND: LENT, SLOT: -5 }], 'segment -5, which it never named'],
    ['a slot that is none', [{ KIND: SEGMENT, SLOT: 256, PAYLOAD_BYTES: 1 }, 128], 'named segment 256'],
    ['a name that is too long', [{ KIND: SEGMENT, PAYLOAD_BYTES: 101 }, 256], 'with 101 bytes'],
    ['a notice outside its entry', [{ KIND: NOTICE, PAYLOAD_BYTES: 65 }, 128], 'notice of 65 bytes'],
    ['a notice of negative size', [{ KIND: NOTICE, PAYLOAD_BYTES: -1 }, 128], 'notice of -1 bytes'],
    ['an acknowledgement of nothing', [{ KIND: ACKNOWLEDGEMENT, ID: 12 }], 'acknowledged message 12'],
  ];
  for (const [name, entry, what] of cases) {
    it(`is lost for ${name}, and nobody else`, () => {
      publish(...entry);
      expectViolation(1, 0, what);
    });
  }

  it('is lost for a region that is unmapped', () => {
    const [a] = sides as [Side];
    const segment = a.space.createSegment(`short-lived-${process.pid}`, 65_536, { directory });
    a.transport.inPlace.lend(1, envelope(), segment.allocate('int32', 10));
    segment.close();
    expectViolation(1, 0, `unmapped: 10 elements of int32 at byte 0 of segment 'short-lived`);
  });

  it('is lost for a region that reaches outside its segment', () => {
    const [a] = sides as [Side];
    a.transport.inPlace.lend(1, envelope(), a.segment.allocate('int32', 10));
    const words = ringWords(0, 1);
    // The name of the segment takes the first two lines.
    const lent = FIRST + words[FIRST + EntryWord.ENTRY_BYTES]! / 4;
    words[lent + EntryWord.OFFSET] = a.segment.byteLength - 36;
    expectViolation(1, 0, 'unmapped: 10 elements of int32');
  });

  it('is lost for taking more out of a ring than was put in', () => {
    const [, b] = sides as [Side, Side];
    const words = ringWords(1, 0);
    words[RingWord.HEAD] = 64 * 1_000_000;
    const region = b.segment.allocate('uint8', 16_000);
    for (let step = 0; step < 20; step++) b.transport.send(0, envelope({ step }), region);
    b.transport.poll();
    expectViolation(1, 0, 'took more out of its ring');
  });
});

describe('entries with changed words', () => {
  const space = SharedSpace.create({ maxBytes: 16 * 2 ** 20 });
  const ring = space.allocate(RING_DATA_BYTES + MIN_RING_BYTES);
  const control = new Control(space.allocate(4096));
  const memory = space.allocate(65_536);
  const copyBytes = copyBytesIn(space);

  it('never throw, and never write outside the region of a receive', () => {
    const seed = Math.floor(Math.random() * 2 ** 31);
    console.info(`seed ${seed}`);
    const words = ring.region('int32', 0, ring.byteLength / 4).view;
    const before = memory.region('uint8', 0, 4096);
    const source = memory.region('uint8', 4096, 4096);
    const into = memory.region('uint8', 8192, 200);
    const after = memory.region('uint8', 8192 + 256, 4096);
    source.view.fill(9);
    let faults = 0;
    const interesting = fc.constantFrom(0, 1, -1, 7, 63, 64, 65, 128, 200, 4096, 2 ** 31 - 1, -(2 ** 31));
    const change = fc.record({
      word: fc.oneof(
        { weight: 1, arbitrary: fc.constant(RingWord.TAIL) },
        { weight: 9, arbitrary: fc.integer({ min: FIRST, max: FIRST + 200 }) },
        { weight: 9, arbitrary: fc.nat(14).map((word) => FIRST + word) },
      ),
      value: fc.oneof(interesting, fc.integer()),
    });
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom('inline', 'notice', 'name', 'lent', 'in place', 'acknowledgement'), {
          minLength: 1,
          maxLength: 5,
        }),
        fc.array(change, { minLength: 1, maxLength: 4 }),
        (entries, changes) => {
          words.fill(0, 0, FIRST + 1024);
          const link = loopLink(ring, control, copyBytes);
          const told: unknown[] = [];
          const arrivals = new Arrivals(space, copyBytes, (event) => told.push(event));
          arrivals.post(envelope(), new Receive(1, into, 4, into.length));
          for (const entry of entries) {
            if (entry === 'inline') link.push(inlineMessage(1, envelope(), source.slice(0, 200), 200));
            else if (entry === 'notice') link.push(textEntry(1, EntryKind.NOTICE, Buffer.from('notice')));
            else if (entry === 'name') link.push(textEntry(1, EntryKind.SEGMENT, Buffer.from('some'), 2));
            else if (entry === 'acknowledgement') link.acknowledge(1);
            else {
              const kind = entry === 'lent' ? EntryKind.LENT : EntryKind.IN_PLACE;
              const outgoing = inPlaceEntry(1, kind, envelope(), source, { slot: 2, offset: 0 });
              link.expectAcknowledgement(outgoing);
              link.push(outgoing);
            }
          }
          for (const { word, value } of changes) words[word] = value;
          const fault = arrivals.drain(link);
          if (fault) faults++;
          if (fault) expect(fault.what.length).toBeGreaterThan(10);
        },
      ),
      { seed, numRuns: 40_000 },
    );
    expect(faults).toBeGreaterThan(1000);
    expect(before.view.every((value) => value === 0) && after.view.every((value) => value === 0)).toBe(true);
  });
});
