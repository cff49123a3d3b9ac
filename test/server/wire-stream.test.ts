/** Messages through a socket: whole and in order however the kernel cuts them, bodies where they belong, limits kept. */
import { once } from 'node:events';
import { createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import type { Segment } from '../../src/memory/index.ts';
import { MessageStream, ProtocolFault, StreamResources } from '../../src/server/index.ts';
import type { Header, Incoming } from '../../src/server/index.ts';
import { encodeHead, PREFIX_BYTES } from '../../src/server/wire/frame.ts';
import { Scatter } from '../../src/server/wire/scattered-bytes.ts';
import { dialAt, internetAddress, libc } from '../../src/sockets/index.ts';
import type { ByteRange } from '../../src/sockets/index.ts';
import { until } from './raw-worker.ts';

const LIMITS = { headerBytes: 2 ** 20, bodyBytes: 2 ** 20 };

interface Message {
  readonly text: string;
  /** Lengths of the ranges that the body lies in on either side; the sums are the same. */
  readonly sent: readonly number[];
  readonly isWanted: boolean;
}

const messages = fc.array(
  fc.record({
    text: fc.oneof(
      fc.string({ maxLength: 50 }),
      fc.nat(40_000).map((length) => 'x'.repeat(length)),
    ),
    sent: fc.array(fc.oneof(fc.constantFrom(1, 3, 64), fc.nat(70_000)), { maxLength: 80 }),
    isWanted: fc.boolean(),
  }),
  { minLength: 1, maxLength: 8 },
);
const pieces = fc.array(fc.oneof(fc.constantFrom(1, 2, 15, 16, 17), fc.integer({ min: 1, max: 50_000 })), {
  minLength: 1,
  maxLength: 10,
});

describe.skipIf(!hasSharedMemory())('a stream of messages', () => {
  let space: SharedSpace;
  let resources: StreamResources;
  let stream: MessageStream;
  let socket: Socket;
  let segment: Segment;
  let heard: { text: string; body: Buffer | undefined }[] = [];
  let close: () => Promise<void>;

  beforeEach(async () => {
    space = SharedSpace.create({ maxBytes: 256 * 2 ** 20 });
    resources = new StreamResources(space, libc());
    heard = [];
    const server = createServer();
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const accepted = once(server, 'connection');
    const fd = dialAt(libc(), internetAddress('127.0.0.1', (server.address() as AddressInfo).port), 0);
    [socket] = (await accepted) as [Socket];
    socket.on('error', () => undefined);
    segment = space.allocate(64 * 2 ** 20);
    stream = new MessageStream(fd, resources, LIMITS, { receive });
    close = async () => {
      socket.destroy();
      if (stream.ended !== 'closed') stream.close();
      resources.close();
      server.close();
      await once(server, 'close');
    };
  });
  afterEach(() => close());

  /** Ranges of a body, with a gap between every two of them. */
  function rangesOf(lengths: readonly number[]): ByteRange[] {
    return lengths.map((length) => {
      const { byteOffset } = segment.allocate('uint8', length + 1);
      return { byteOffset, byteLength: length };
    });
  }

  const read = (ranges: readonly ByteRange[]): Buffer =>
    Buffer.concat(ranges.map(({ byteOffset, byteLength }) => Buffer.from(new Uint8Array(space.buffer, byteOffset, byteLength)))); // prettier-ignore

  function receive(header: Header, bodyBytes: number): Incoming {
    const { text, into } = header as { text: string; into: number[] | null };
    const ranges = into === null ? undefined : rangesOf(into);
    const guards = ranges?.map(({ byteOffset, byteLength }) => byteOffset + byteLength) ?? [];
    const done = (): void => {
      expect(guards.every((at) => new Uint8Array(space.buffer, at, 1)[0] === 0)).toBe(true);
      heard.push({ text, body: ranges && read(ranges) });
    };
    expect(bodyBytes).toBeLessThanOrEqual(LIMITS.bodyBytes);
    return { into: ranges, done };
  }

  /** The same bytes in ranges of other lengths. */
  function recut(bytes: number, by: readonly number[]): number[] {
    const cut: number[] = [];
    for (let left = bytes, i = 0; left > 0; i++) {
      const length = Math.min(left, 1 + (((by[i % by.length] ?? 0) + 7 * i) % 9000));
      cut.push(length);
      left -= length;
    }
    return cut;
  }

  function bodyOf({ sent }: Message, number: number): Buffer {
    const bytes = Math.min(
      LIMITS.bodyBytes,
      sent.reduce((sum, length) => sum + length, 0),
    );
    return Buffer.from(Uint8Array.from({ length: bytes }, (_, i) => (i * 31 + number) & 0xff));
  }

  function headOf(message: Message, body: Buffer): Buffer {
    const into = message.isWanted ? recut(body.length, message.sent) : null;
    return encodeHead({ text: message.text, into }, body.length);
  }

  async function fresh(): Promise<void> {
    segment.close();
    segment = space.allocate(64 * 2 ** 20);
    heard = [];
    await Promise.resolve();
  }

  it('hears every message whole and in order, however it is cut', async () => {
    await fc.assert(
      fc.asyncProperty(messages, pieces, async (list, cuts) => {
        await fresh();
        const bodies = list.map(bodyOf);
        const all = Buffer.concat(list.flatMap((message, i) => [headOf(message, bodies[i]!), bodies[i]!]));
        for (let at = 0, i = 0; at < all.length; i++) {
          const length = cuts[i % cuts.length]!;
          socket.write(all.subarray(at, at + length));
          at += length;
          stream.read();
          // Not every piece its own packet, or it takes all day.
          if (i < 50) await new Promise(setImmediate);
        }
        await until(() => {
          stream.read();
          return heard.length === list.length || stream.ended !== undefined;
        });
        expect(stream.ended).toBeUndefined();
        heard.forEach(({ text, body }, i) => {
          expect(text).toBe(list[i]!.text);
          if (list[i]!.isWanted) expect(body!.equals(bodies[i]!)).toBe(true);
        });
      }),
      { numRuns: 25 },
    );
  });

  it('says every message whole and in order, from wherever its body lies', async () => {
    const received: Buffer[] = [];
    socket.on('data', (bytes: Buffer) => received.push(bytes));
    await fc.assert(
      fc.asyncProperty(messages, async (list) => {
        await fresh();
        received.length = 0;
        let sent = 0;
        const expected = list.map((message, i) => {
          const body = bodyOf(message, i);
          const ranges = rangesOf(recut(body.length, message.sent));
          let at = 0;
          for (const { byteOffset, byteLength } of ranges) {
            new Uint8Array(space.buffer, byteOffset, byteLength).set(body.subarray(at, (at += byteLength)));
          }
          const header = { text: message.text };
          stream.send(header, ranges, () => sent++);
          return Buffer.concat([encodeHead(header, body.length), body]);
        });
        const bytes = expected.reduce((sum, { length }) => sum + length, 0);
        await until(() => {
          stream.write();
          return received.reduce((sum, { length }) => sum + length, 0) >= bytes;
        });
        expect(Buffer.concat(received).equals(Buffer.concat(expected))).toBe(true);
        expect(sent).toBe(list.length);
        expect(stream.hasUnsent).toBe(false);
      }),
      { numRuns: 25 },
    );
  });

  it.each<[string, () => Uint8Array]>([
    ['a header above the limit', () => prefix(LIMITS.headerBytes + 1, 0n)],
    ['a header of nothing', () => prefix(0, 0n)],
    ['a body above the limit', () => prefix(2, BigInt(LIMITS.bodyBytes) + 1n)],
    ['a body of all there is', () => prefix(2, 2n ** 64n - 1n)],
    ['another magic word', () => Buffer.alloc(PREFIX_BYTES, 7)],
    ['no JSON', () => Buffer.concat([prefix(2, 0n), Buffer.from('{]')])],
    ['bytes that are no text', () => Buffer.concat([prefix(2, 0n), Buffer.from([0xff, 0xfe])])],
    ['a list for a header', () => Buffer.concat([prefix(2, 0n), Buffer.from('[]')])],
    ['a body that does not fit its place', () => encodeHead({ text: '', into: [5] }, 6)],
  ])('ends at %s, and reads nothing behind it', async (_what, bytes) => {
    const before = segment;
    socket.write(Buffer.concat([bytes(), encodeHead({ text: 'behind', into: [] }, 0)]));
    await until(() => {
      stream.read();
      return stream.ended !== undefined;
    });
    expect(stream.ended).toBeInstanceOf(ProtocolFault);
    expect(heard).toEqual([]);
    expect(before.closed).toBe(false);
    expect(stream.read()).toBe(false);
  });

  it('notices the end of the other side, also in the middle of a body', async () => {
    socket.write(Buffer.concat([encodeHead({ text: 'half', into: [100] }, 100), Buffer.alloc(40)]));
    socket.end();
    await until(() => {
      stream.read();
      return stream.ended !== undefined;
    });
    expect(stream.ended).toBe('end');
    expect(heard).toEqual([]);
  });

  it('closes its descriptor once, however often it is closed', async () => {
    const server = createServer((one) => one.on('error', () => undefined));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    stream.close();
    // The next descriptor has the number of the one that was closed.
    const next = dialAt(libc(), internetAddress('127.0.0.1', (server.address() as AddressInfo).port), 0);
    const other = new MessageStream(next, resources, LIMITS, { receive });
    stream.close();
    other.send({ text: 'still open' });
    await until(() => {
      other.write();
      return !other.hasUnsent || other.ended !== undefined;
    });
    expect(next).toBe(stream.fd);
    expect(other.ended).toBeUndefined();
    other.close();
    server.close();
  });

  function prefix(headerBytes: number, bodyBytes: bigint): Buffer {
    const head = encodeHead({}, 0).subarray(0, PREFIX_BYTES);
    head.writeUInt32LE(headerBytes, 4);
    head.writeBigUInt64LE(bodyBytes, 8);
    return head;
  }
});

describe('scattered bytes', () => {
  it('hand out every byte once, in order, however far each call gets', () => {
    fc.assert(
      fc.property(
        fc.array(fc.nat(40), { maxLength: 30 }),
        fc.array(fc.integer({ min: 1, max: 60 }), { minLength: 1, maxLength: 40 }),
        fc.integer({ min: 1, max: 5 }),
        (lengths, steps, maxRanges) => {
          let byteOffset = 0;
          const ranges = lengths.map((byteLength) => ({ byteOffset: (byteOffset += 100), byteLength }));
          const wanted = ranges.flatMap((one) => Array.from({ length: one.byteLength }, (_, i) => one.byteOffset + i)); // prettier-ignore
          const scatter = new Scatter(ranges);
          const got: number[] = [];
          for (let i = 0; scatter.left > 0; i++) {
            const offered: number[] = [];
            const bytes = scatter.peek(maxRanges, steps[i % steps.length]!, (at, count) => {
              for (let j = 0; j < count; j++) offered.push(at + j);
            });
            expect(bytes).toBe(offered.length);
            expect(bytes).toBeLessThanOrEqual(steps[i % steps.length]!);
            // A kernel that takes less than it was offered, and nothing now and then.
            const taken = i % 3 === 0 ? Math.ceil(bytes / 2) : bytes;
            got.push(...offered.slice(0, taken));
            scatter.advance(taken);
            if (i > 10_000) throw new Error('it does not come to an end');
          }
          expect(got).toEqual(wanted);
        },
      ),
    );
  });
});
