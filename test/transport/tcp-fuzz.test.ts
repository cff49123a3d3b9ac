/**
 * At least 100,000 mutated frames against a transport whose pair works on: from strangers, who never get past the
 * handshake, and from members that know the secret and then send flipped, cut, spliced and lying frames.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { FrameKind, FRAME_BYTES, writeFrame } from '../../src/transport/tcp/frame.ts';
import type { Frame } from '../../src/transport/tcp/frame.ts';
import { Status, writeHello } from '../../src/transport/tcp/handshake.ts';
import { closeEnds, envelope, memberAddress, openEnds, RunningPair } from './tcp-pair.ts';
import type { End } from './tcp-pair.ts';
import { helloTo, introduce, Stranger } from './tcp-stranger.ts';

const FRAMES_PER_CONNECTION = 100;
const STRANGERS = 400;
const MEMBERS = 640;
const BATCH = 40;
/** Posted receives have this many bytes; the byte after each is a guard. */
const POSTED_BYTES = 48;
const GUARD = 171;

describe.skipIf(!hasSharedMemory())('mutated frames', () => {
  const seed = Math.floor(Math.random() * 2 ** 31);
  const random = new Random(seed);
  let ends: End[];
  let pair: RunningPair;
  let target: End;
  let thrown = 0;

  beforeAll(async () => {
    console.log(`fuzz seed ${seed}`);
    ends = await openEnds(2, { maxUnexpectedBytes: 20_000 });
    pair = new RunningPair(ends);
    target = ends[0]!;
  });
  afterAll(async () => closeEnds(ends));

  async function meanwhile(condition: () => boolean): Promise<void> {
    const deadline = performance.now() + 15_000;
    while (!condition()) {
      if (performance.now() > deadline) throw new Error(`waited in vain, seed ${seed}`);
      pair.step();
      await new Promise(setImmediate);
    }
  }

  const below = (limit: number): number => random.below(limit);
  const oneOf = <T>(values: readonly T[]): T => values[below(values.length)]!;

  /** A frame that is right, with its payload. */
  function rightFrame(serial: number, change: Partial<Frame> = {}): Uint8Array {
    const bytes = oneOf([0, 1, POSTED_BYTES, POSTED_BYTES, 200]);
    const frame: Frame = {
      kind: FrameKind.MESSAGE,
      ...{ group: 1, tag: below(3), sequence: below(4), step: 0, signature: oneOf([7, 7, 7, 8]), weight: 1 },
      ...{ totalBytes: bytes, offset: 0, bytes },
      ...change,
    };
    const all = new Uint8Array(FRAME_BYTES + Math.min(frame.bytes, 4096));
    writeFrame(new DataView(all.buffer), 0, frame, serial);
    all.fill(below(256), FRAME_BYTES);
    return all;
  }

  function lie(serial: number): Uint8Array {
    const huge = oneOf([2 ** 31, 2 ** 32 - 1, 65_536, POSTED_BYTES + 1, 0]);
    return rightFrame(
      serial,
      oneOf<Partial<Frame>>([
        { totalBytes: huge },
        { bytes: huge },
        { offset: huge },
        { totalBytes: huge, bytes: huge },
        { kind: below(8) as Frame['kind'] },
        { kind: FrameKind.NOTICE, totalBytes: huge, bytes: huge },
        { weight: NaN, step: 2 ** 32 - 1 },
      ]),
    );
  }

  function mutated(serial: number): Uint8Array {
    thrown++;
    const frame = rightFrame(serial);
    const fate = below(100);
    if (fate < 90)
      return rightFrame(serial, { group: oneOf([1, 2]), step: below(2), weight: random.uniform() });
    if (fate < 92) {
      const at = below(8 * frame.length);
      frame[at >> 3]! ^= 1 << (at & 7);
      return frame;
    }
    if (fate < 94) return frame.subarray(0, below(frame.length));
    if (fate < 96)
      return Buffer.concat([frame.subarray(0, below(64)), rightFrame(serial).subarray(below(64))]);
    if (fate < 97) return frame.map(() => below(256));
    return lie(serial);
  }

  function stream(): Uint8Array {
    return Buffer.concat(Array.from({ length: FRAMES_PER_CONNECTION }, (_, i) => mutated(i)));
  }

  async function allClosed(strangers: readonly Stranger[]): Promise<void> {
    for (const stranger of strangers) stranger.close();
    await meanwhile(() => strangers.every(({ isClosed }) => isClosed));
  }

  it('of strangers end at the handshake', async () => {
    const { transport } = target;
    for (let from = 0; from < STRANGERS; from += BATCH) {
      const strangers = await Promise.all(Array.from({ length: BATCH }, () => Stranger.dial(transport)));
      for (const [i, stranger] of strangers.entries()) {
        const hello = Buffer.from(writeHello(helloTo(transport, 10 + from + i)));
        hello[below(hello.length)]! ^= 1 << below(8);
        stranger.say(Buffer.concat([i % 2 === 0 ? hello : hello.subarray(0, 0), stream()]));
      }
      await meanwhile(() => strangers.every(({ isClosed }) => isClosed));
    }
    const { garbage, version, secret, unknown, timeout } = transport.refused;
    expect(garbage + version + secret + unknown + timeout).toBe(STRANGERS);
  });

  it('of members break their own connection at most', async () => {
    const { transport, told, space } = target;
    const segment = space.allocate(2 ** 20);
    const regions: Region<'uint8'>[] = [];
    for (let i = 0; i < 4 * BATCH; i++) regions.push(segment.allocate('uint8', POSTED_BYTES + 1));
    for (const region of regions) region.view[POSTED_BYTES] = GUARD;
    for (let from = 0; from < MEMBERS; from += BATCH) {
      const members = Array.from({ length: BATCH }, (_, i) => 10 + from + i);
      const joined = transport.connect(
        0,
        members.map((member) => memberAddress(member, ends[1]!.transport)),
      );
      const strangers = await Promise.all(
        members.map(async (member) => {
          const stranger = await Stranger.dial(transport);
          expect(await introduce(stranger, helloTo(transport, member), meanwhile)).toBe(Status.OK);
          return stranger;
        }),
      );
      await joined;
      for (const [i, member] of members.entries()) {
        for (let k = 0; k < 4; k++) {
          const into = regions[4 * i + k]!.slice(0, POSTED_BYTES);
          transport.receive(member, envelope({ tag: k % 3, sequence: k }), into);
        }
        strangers[i]!.say(stream());
      }
      await meanwhile(() =>
        strangers.every(({ isClosed, socket }) => isClosed || socket.writableLength === 0),
      );
      await pair.run(2);
      for (const member of members) transport.disconnect(member);
      await allClosed(strangers);
    }
    expect(regions.every(({ view }) => view[POSTED_BYTES] === GUARD)).toBe(true);
    expect(told.lost.length).toBeGreaterThan(MEMBERS / 2);
    for (const { peer, error } of told.lost) {
      expect(peer).toBeGreaterThanOrEqual(10);
      expect(['PROTOCOL_VIOLATION', 'PEER_LOST']).toContain(error.code);
    }
    await pair.run(3);
    expect(thrown, `frames thrown with seed ${seed}`).toBeGreaterThanOrEqual(100_000);
  });
});
