/** Frames and messages: whole, in pieces, and not of the protocol at all. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { encodeFrame, FrameReader, ProtocolFault } from '../../src/cluster/frames.ts';
import { readMemberMessage, readSchedulerMessage } from '../../src/cluster/messages.ts';

const record = fc.dictionary(fc.string(), fc.jsonValue());

describe('frames', () => {
  it('come out as they went in, however they are cut', () => {
    fc.assert(
      fc.property(
        fc.array(record, { maxLength: 6 }),
        fc.array(fc.integer({ min: 1, max: 40 })),
        (sent, cuts) => {
          const bytes = Buffer.concat(sent.map(encodeFrame));
          const reader = new FrameReader(1 << 20);
          const got: unknown[] = [];
          for (let at = 0, i = 0; at < bytes.length; i++) {
            const size = cuts.length > 0 ? cuts[i % cuts.length]! : bytes.length;
            reader.push(bytes.subarray(at, at + size));
            at += size;
            for (let frame = reader.next(); frame !== undefined; frame = reader.next()) got.push(frame);
          }
          expect(got).toEqual(JSON.parse(JSON.stringify(sent)));
          expect(reader.partial).toBe(false);
        },
      ),
    );
  });

  it('know half a frame, and refuse a length that is too long or nothing before the bytes have come', () => {
    const reader = new FrameReader(100);
    reader.push(Buffer.from([0, 0]));
    expect(reader.next()).toBeUndefined();
    expect(reader.partial).toBe(true);
    reader.push(Buffer.from([0, 101]));
    expect(() => reader.next()).toThrow('101 bytes where 1 to 100');
    const empty = new FrameReader(100);
    empty.push(Buffer.alloc(4));
    expect(() => empty.next()).toThrow(ProtocolFault);
  });

  it('that are mutated give messages or a protocol fault, and nothing else', () => {
    const seeds = [
      { kind: 'hello', version: 2, nonce: 'a'.repeat(64) },
      { kind: 'answer', proof: 'b'.repeat(64) },
      { kind: 'join', proof: 'p', title: 'process 1', host: 'h', address: { port: 1 }, wantedRank: 2 },
      { kind: 'form', request: 1, members: [0, 1, 2] },
      { kind: 'barrier', request: 1, name: 'n', members: [0] },
      { kind: 'accepted', proof: 'c'.repeat(64), heartbeatMs: 1, lostAfterMs: 2 },
    ].map(encodeFrame);
    const flip = fc.record({ at: fc.nat(200), to: fc.nat(255) });
    const mutation = fc.tuple(
      fc.constantFrom(...seeds),
      fc.array(flip, { minLength: 1, maxLength: 4 }),
      fc.nat(200),
    );
    const seed = Date.now() & 0x7fffffff;
    console.log(`fuzz of frames: seed ${seed}`);
    let faults = 0;
    fc.assert(
      fc.property(mutation, ([original, flips, cut]) => {
        const bytes = Buffer.from(original.subarray(0, Math.max(1, original.length - (cut % 7))));
        for (const { at, to } of flips) bytes[at % bytes.length] = to;
        const reader = new FrameReader(1 << 20);
        reader.push(bytes);
        try {
          const frame = reader.next();
          if (frame === undefined) return;
          readMemberMessage(frame);
          readSchedulerMessage(frame, false);
        } catch (error) {
          if (!(error instanceof ProtocolFault)) throw error;
          faults++;
        }
      }),
      { numRuns: 100_000, seed },
    );
    expect(faults).toBeGreaterThan(0);
  });

  it('bear JSON that is nested a million deep', () => {
    const reader = new FrameReader(1 << 21);
    const text = '['.repeat(1e6);
    const frame = Buffer.alloc(4 + text.length, text);
    frame.writeUInt32BE(text.length);
    frame.write(text, 4);
    reader.push(frame);
    expect(() => reader.next()).toThrow(ProtocolFault);
  });
});

describe('messages', () => {
  it.each([
    [null],
    [[]],
    ['hello'],
    [{}],
    [{ kind: 'constructor' }],
    [{ kind: 'hello', version: 2 }],
    [{ kind: 'hello', version: -1, nonce: 'a'.repeat(64) }],
    [{ kind: 'join', proof: 'p', title: 'a\nb', host: 'h', address: {} }],
    [{ kind: 'join', proof: 'p', title: 'a'.repeat(257), host: 'h', address: {} }],
    [{ kind: 'join', title: 'a', host: 'h', address: {} }],
    [{ kind: 'join', proof: 'p', title: 'a', host: 'h', address: [] }],
    [{ kind: 'join', proof: 'p', title: 'a', host: 'h', address: {}, wantedRank: 1.5 }],
    [{ kind: 'form', request: 1, members: [] }],
    [{ kind: 'form', request: 1, members: [0, 0] }],
    [{ kind: 'form', request: 1, members: [4096] }],
    [{ kind: 'form', request: 2 ** 32, members: [0] }],
    [{ kind: 'barrier', request: 1, name: 7, members: [0] }],
  ])('refuse %j', (value) => {
    expect(() => readMemberMessage(value)).toThrow(ProtocolFault);
  });

  it('keep only the fields they know', () => {
    const join = { kind: 'join', proof: 'p', title: 't', host: 'h', address: { port: 1 } };
    expect(readMemberMessage({ ...join, extra: 1 })).toEqual(join);
  });

  it('let a hello of another version through, whatever else is in it, so that it can be answered', () => {
    expect(readMemberMessage({ kind: 'hello', version: 9, greeting: 'hi' })).toMatchObject({ version: 9 });
  });
});
