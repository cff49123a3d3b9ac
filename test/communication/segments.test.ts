/** How regions get to the communication thread: named segments are told of once, forgotten when closed, never mapped again. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { AnnouncedSegments } from '../../src/communication/announced-segments.ts';
import type { Command } from '../../src/communication/messages.ts';
import { ThreadRegions } from '../../src/communication/thread-regions.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';

const MEGA = 2 ** 20;

describe.skipIf(!hasSharedMemory())('a segment of another thread', () => {
  let directory: string;
  let space: SharedSpace;
  /** The space as another thread of the process has it. */
  let other: SharedSpace;

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'segments-'));
    space = SharedSpace.create({ maxBytes: 16 * MEGA });
    other = SharedSpace.fromMemory(space.memory);
  });

  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  it('is known where it was adopted, until it is closed there, and stays mapped', () => {
    const segment = space.createSegment('one', 4096, { directory });
    const region = segment.allocate('int32', 4);
    region.view[2] = 7;
    const { name, byteOffset, byteLength } = segment;
    const adopted = other.adoptSegment({ name, directory, byteOffset, byteLength });
    const seen = adopted.region('int32', 0, 4);
    expect(other.segmentAt(seen)).toBe(adopted);
    expect(adopted).toMatchObject({ name: 'one', directory, byteOffset, byteLength });
    expect(Array.from(seen.view)).toEqual([0, 0, 7, 0]);
    adopted.close();
    expect(other.segmentAt(seen)).toBeUndefined();
    expect(space.segmentAt(region)).toBe(segment);
    expect(region.view[2]).toBe(7);
    expect(readdirSync(directory)).toHaveLength(1);
    segment.close();
    expect(readdirSync(directory)).toEqual([]);
  });

  it('without a name gives regions and is not known as a segment', () => {
    const region = space.allocate(64).allocate('float32', 4);
    region.view[3] = 2;
    const whole = other.adoptSegment({ byteOffset: 0, byteLength: other.buffer.byteLength });
    const seen = whole.region('float32', region.byteOffset, 4);
    expect(seen.view[3]).toBe(2);
    expect(other.segmentAt(seen)).toBeUndefined();
  });

  it('outside the space is refused', () => {
    for (const [byteOffset, byteLength] of [
      [16 * MEGA, 1],
      [-64, 64],
      [0, 17 * MEGA],
      [0.5, 64],
    ] as const) {
      const adopt = () => other.adoptSegment({ name: 'one', directory, byteOffset, byteLength });
      expect(adopt).toThrow(expect.objectContaining({ code: 'OUT_OF_BOUNDS' }));
    }
  });

  it('is announced with its first region and forgotten once it is closed, even if its place is taken again', () => {
    const posted: Command[] = [];
    const announced = new AnnouncedSegments(space, (command) => posted.push(command));
    const regions = new ThreadRegions(other);
    const carry = (region: Parameters<AnnouncedSegments['pack']>[0]) => {
      const packed = announced.pack(region);
      for (const command of posted) {
        if (command.kind === 'adopt') regions.adopt(command.segment, command.range);
        else if (command.kind === 'forget') regions.forget(command.segment);
      }
      const kinds = posted.splice(0).map(({ kind }) => kind);
      const unpacked = regions.unpack(packed);
      return { kinds, place: unpacked.byteOffset, segment: other.segmentAt(unpacked)?.name };
    };

    const first = space.createSegment('first', 4096, { directory });
    const inFirst = first.allocate('float32', 8);
    const place = inFirst.byteOffset;
    expect(carry(inFirst)).toEqual({ kinds: ['adopt'], place, segment: 'first' });
    expect(carry(inFirst.slice(2, 3))).toEqual({ kinds: [], place: place + 8, segment: 'first' });
    first.close();
    const second = space.createSegment('second', 4096, { directory });
    const inSecond = second.allocate('float32', 8);
    expect(inSecond.byteOffset).toBe(place);
    expect(carry(inSecond)).toEqual({ kinds: ['forget', 'adopt'], place, segment: 'second' });
    second.close();
    const inPrivate = space.allocate(MEGA).allocate('float32', 2000).slice(1000, 1000);
    expect(carry(inPrivate)).toEqual({ kinds: ['forget'], place: inPrivate.byteOffset, segment: undefined });
    regions.close();
  });

  it('that was never announced is an error of ours', () => {
    const packed = { dtype: 'float32', byteOffset: 65536, length: 1, segment: 3 } as const;
    expect(() => new ThreadRegions(other).unpack(packed)).toThrow(
      expect.objectContaining({ name: 'InternalError', code: 'BROKEN_INVARIANT' }),
    );
  });
});
