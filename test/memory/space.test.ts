import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { ErrorCode } from '../../src/base/index.ts';
import {
  alignUp,
  currentProcess,
  futexWait,
  futexWake,
  hasSharedMemory,
  isAlive,
  SharedSpace,
  yieldProcessor,
} from '../../src/memory/index.ts';
import type { DType, Region, Segment } from '../../src/memory/index.ts';

const MIB = 2 ** 20;

function withCode(code: ErrorCode): Error {
  return expect.objectContaining({ code }) as Error;
}

describe('a shared space', () => {
  it('gives regions that are aligned, disjoint, zeroed and inside their segment', () => {
    const space = SharedSpace.create({ maxBytes: 4 * MIB });
    const dtypes: DType[] = ['float32', 'float64', 'int32', 'uint32', 'uint8', 'uint16', 'int64'];
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.constantFrom(...dtypes), fc.nat(300)), { maxLength: 20 }),
        (requests) => {
          const segment = space.allocate(MIB);
          let end = segment.byteOffset;
          for (const [dtype, length] of requests) {
            const region = segment.allocate(dtype, length);
            expect(region.byteOffset % 64).toBe(0);
            expect(region.byteOffset).toBeGreaterThanOrEqual(end);
            expect(region.view.length).toBe(length);
            expect(region.view.byteLength).toBe(region.byteLength);
            expect(
              new Uint8Array(space.buffer, region.byteOffset, region.byteLength).every((b) => b === 0),
            ).toBe(true);
            new Uint8Array(space.buffer, region.byteOffset, region.byteLength).fill(255);
            end = region.byteOffset + region.byteLength;
          }
          expect(end).toBeLessThanOrEqual(segment.byteOffset + segment.byteLength);
          segment.close();
        },
      ),
    );
  });

  it('slices within a region and refuses to leave it', () => {
    const segment = SharedSpace.create({ maxBytes: MIB }).allocate(4096);
    const region = segment.allocate('float32', 10);
    region.view.set([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    const part = region.slice(3, 4);
    expect(Array.from(part.view)).toEqual([3, 4, 5, 6]);
    expect(part.byteOffset).toBe(region.byteOffset + 12);
    expect(Array.from(part.slice(1, 2).view)).toEqual([4, 5]);
    expect(region.slice(10, 0).length).toBe(0);
    for (const [start, length] of [
      [7, 4],
      [-1, 2],
      [0, 11],
      [0.5, 1],
      [NaN, 1],
      [0, -1],
    ] as const) {
      expect(() => region.slice(start, length)).toThrow(withCode('OUT_OF_BOUNDS'));
    }
  });

  it('refuses what does not fit a segment', () => {
    const segment = SharedSpace.create({ maxBytes: MIB }).allocate(256);
    segment.allocate('uint8', 1);
    expect(() => segment.allocate('float64', 25)).toThrow(withCode('OUT_OF_SHARED_MEMORY'));
    expect(segment.allocate('float64', 24).byteLength).toBe(192);
    expect(() => segment.allocate('uint8', 1)).toThrow(withCode('OUT_OF_SHARED_MEMORY'));
    expect(segment.region('float32', 252, 1).length).toBe(1);
    expect(() => segment.region('float32', 252, 2)).toThrow(withCode('OUT_OF_BOUNDS'));
    expect(() => segment.region('float32', 2, 1)).toThrow(withCode('INVALID_ARGUMENT'));
    expect(() => segment.allocate('float16' as DType, 1)).toThrow(withCode('INVALID_ARGUMENT'));
    expect(() => segment.allocate('float32', 1.5)).toThrow(withCode('INVALID_ARGUMENT'));
  });

  it('reuses a closed range and hands it out zeroed', () => {
    const space = SharedSpace.create({ maxBytes: 2 * MIB });
    const first = space.allocate(MIB);
    const second = space.allocate(65536);
    first.allocate('uint8', MIB).view.fill(7);
    const byteOffset = first.byteOffset;
    first.close();
    first.close();
    expect(() => first.region('uint8', 0, 1)).toThrow(withCode('OUT_OF_BOUNDS'));
    const third = space.allocate(MIB);
    expect(third.byteOffset).toBe(byteOffset);
    expect(third.allocate('uint8', MIB).view.every((byte) => byte === 0)).toBe(true);
    expect(second.byteOffset).toBe(byteOffset + MIB);
  });

  it('takes and gives back ranges in any order without overlap', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat(5), fc.nat(200_000)), { maxLength: 40 }), (actions) => {
        const space = SharedSpace.create({ maxBytes: MIB });
        const open: Segment[] = [];
        for (const [action, byteLength] of actions) {
          if (action < 2 && open.length > 0) {
            open.splice(byteLength % open.length, 1)[0]!.close();
            continue;
          }
          try {
            open.push(space.allocate(byteLength));
          } catch (error) {
            expect(['OUT_OF_SHARED_MEMORY', 'MODEL_TOO_LARGE']).toContain((error as { code: string }).code);
          }
          const sorted = [...open].sort((a, b) => a.byteOffset - b.byteOffset);
          for (let i = 1; i < sorted.length; i++) {
            const before = sorted[i - 1]!;
            expect(before.byteOffset + before.byteLength).toBeLessThanOrEqual(sorted[i]!.byteOffset);
          }
        }
        for (const segment of open) segment.close();
        space.allocate(space.capacityBytes).close();
      }),
      { numRuns: 30 },
    );
  });

  it('refuses more than 4 GiB in one segment or in total', () => {
    expect(() => SharedSpace.create({ maxBytes: 5 * 2 ** 30 })).toThrow(withCode('MODEL_TOO_LARGE'));
    const space = SharedSpace.create();
    expect(space.memory.buffer.byteLength).toBe(4 * 2 ** 30);
    expect(() => space.allocate(5 * 2 ** 30)).toThrow(withCode('MODEL_TOO_LARGE'));
    expect(() => space.createSegment('large', 5 * 2 ** 30)).toThrow(withCode('MODEL_TOO_LARGE'));
    const half = space.allocate(3 * 2 ** 30);
    expect(() => space.allocate(2 * 2 ** 30)).toThrow(withCode('MODEL_TOO_LARGE'));
    half.close();
    space.allocate(2 * 2 ** 30).close();
  });

  it('is the same space when taken from its memory again', () => {
    const space = SharedSpace.create({ maxBytes: MIB });
    const region = space.allocate(4096).allocate('float32', 4);
    const again = SharedSpace.fromMemory(space.memory);
    const other = again.allocate(4096);
    expect(other.byteOffset).toBeGreaterThan(region.byteOffset);
    expect(() => SharedSpace.fromMemory({ buffer: new SharedArrayBuffer(2 * MIB) })).toThrow(
      withCode('INVALID_ARGUMENT'),
    );
    expect(() => SharedSpace.fromMemory({ buffer: new ArrayBuffer(2 * MIB) })).toThrow(
      withCode('INVALID_ARGUMENT'),
    );
  });

  it('rounds up to a multiple', () => {
    fc.assert(
      fc.property(fc.nat(), fc.integer({ min: 1, max: 4096 }), (value, alignment) => {
        const aligned = alignUp(value, alignment);
        expect(aligned % alignment).toBe(0);
        expect(aligned - value).toBeGreaterThanOrEqual(0);
        expect(aligned - value).toBeLessThan(alignment);
      }),
    );
  });
});

describe('a process', () => {
  it('knows itself as alive, and not as another that had its number', () => {
    const self = currentProcess();
    expect(self.pid).toBe(process.pid);
    expect(isAlive(self)).toBe(true);
    expect(isAlive({ ...self, startTicks: self.startTicks + 1n })).toBe(self.pidNamespace === 0n);
  });

  it('can yield its processor anywhere', () => {
    expect(yieldProcessor()).toBeUndefined();
  });
});

describe('a futex word', () => {
  let words: Region<'int32'>;
  beforeEach(() => {
    words = SharedSpace.create({ maxBytes: MIB }).allocate(4096).allocate('int32', 4);
  });

  it('returns at once when the value is another, and by the deadline when nobody wakes', () => {
    words.view[1] = 5;
    expect(futexWait(words, 1, 4, 10_000)).toBe('changed');
    expect(futexWait(words, 1, 5, 1)).toBe('timeout');
    expect(futexWait(words, 1, 5, 0)).toBe('timeout');
    expect(futexWake(words, 1, 10)).toBe(0);
  });

  it('refuses words outside the region and waits without a deadline', () => {
    expect(() => futexWait(words, 4, 0, 1)).toThrow(withCode('OUT_OF_BOUNDS'));
    expect(() => futexWake(words, -1, 1)).toThrow(withCode('OUT_OF_BOUNDS'));
    expect(() => futexWait(words, 0, 0, Infinity)).toThrow(withCode('INVALID_ARGUMENT'));
    expect(() => futexWait(words, 0, 0, NaN)).toThrow(withCode('INVALID_ARGUMENT'));
  });
});

describe.skipIf(!hasSharedMemory())('a named segment', () => {
  let directory = '';
  let space: SharedSpace;
  beforeEach(() => {
    directory = fs.mkdtempSync('/dev/shm/test-tributary-');
    space = SharedSpace.create({ maxBytes: 16 * MIB });
  });
  afterEach(() => {
    fs.rmSync(directory, { recursive: true, force: true });
  });

  it('is the same memory when it is attached a second time in one process', () => {
    const owner = space.createSegment('twice', 1000, { directory });
    const attached = space.attachSegment('twice', { directory });
    expect(attached.byteLength).toBe(1000);
    const region = owner.allocate('float64', 10);
    region.view[3] = Math.PI;
    expect(attached.region('float64', owner.offsetOf(region), 10).view[3]).toBe(Math.PI);
    owner.close();
    attached.close();
    const fresh = space.allocate(65536);
    expect(fresh.allocate('uint8', 65536).view.every((byte) => byte === 0)).toBe(true);
    expect(fs.readdirSync(directory)).toEqual([]);
  });

  it('is found by a region in it while it is open, and a private one is not', () => {
    const first = space.createSegment('first', 1000, { directory });
    const second = space.attachSegment('first', { directory });
    const inFirst = first.allocate('float64', 10).slice(2, 3);
    const inSecond = second.allocate('float64', 125);
    for (let i = 0; i < 2; i++) {
      expect(space.segmentAt(inFirst)).toBe(first);
      expect(space.segmentAt(inSecond)).toBe(second);
    }
    expect([first.directory, second.directory]).toEqual([directory, directory]);
    expect(space.segmentAt(space.allocate(64).allocate('uint8', 64))).toBeUndefined();
    const other = SharedSpace.create({ maxBytes: 16 * MIB });
    expect(other.segmentAt(inFirst)).toBeUndefined();
    expect(SharedSpace.fromMemory(space.memory).segmentAt(inFirst)).toBeUndefined();
    first.close();
    expect(space.segmentAt(inFirst)).toBeUndefined();
    second.close();
    expect(space.segmentAt(inSecond)).toBeUndefined();
  });

  it('refuses a second owner, an unknown name and an impossible name', () => {
    const owner = space.createSegment('one', 64, { directory });
    expect(() => space.createSegment('one', 64, { directory })).toThrow(withCode('SEGMENT_EXISTS'));
    expect(() => space.attachSegment('two', { directory })).toThrow(withCode('SEGMENT_NOT_FOUND'));
    for (const name of ['', '../up', 'a/b', 'x'.repeat(101), 'ü', 'a b', 'a\n']) {
      expect(() => space.createSegment(name, 64, { directory })).toThrow(withCode('INVALID_ARGUMENT'));
      expect(() => space.attachSegment(name, { directory })).toThrow(withCode('INVALID_ARGUMENT'));
    }
    expect(() => space.createSegment('one', 64, { directory: join(directory, 'none') })).toThrow(
      withCode('FILE_NOT_FOUND'),
    );
    owner.close();
    space.createSegment('one', 64, { directory }).close();
  });

  it('is refused by an attacher when its header or size is not right', () => {
    const owner = space.createSegment('damaged', 8192, { directory });
    const path = join(directory, 'tributary-damaged');
    const good = fs.readFileSync(path);
    const damaged: Buffer[] = [
      Buffer.alloc(0),
      good.subarray(0, 4095),
      good.subarray(0, 8192),
      Buffer.concat([good, Buffer.alloc(1)]),
    ];
    for (const at of [0, 10, 20, 24, 28, 32, 38, 39]) {
      const copy = Buffer.from(good);
      copy.writeUInt8(copy[at]! ^ 0x80, at);
      if (at === 28) copy.writeUInt32LE(0, at);
      damaged.push(copy);
    }
    for (const [i, bytes] of damaged.entries()) {
      fs.writeFileSync(join(directory, `tributary-copy${i}`), bytes);
      expect(() => space.attachSegment(`copy${i}`, { directory })).toThrow(withCode('SEGMENT_CORRUPT'));
      expect(() => space.createSegment(`copy${i}`, 64, { directory })).toThrow(withCode('SEGMENT_EXISTS'));
    }
    fs.symlinkSync(path, join(directory, 'tributary-link'));
    expect(() => space.attachSegment('link', { directory })).toThrow(withCode('SEGMENT_NOT_FOUND'));
    owner.close();
  });

  it('is taken for stale when its process id was given to another process', () => {
    const owner = space.createSegment('recycled', 64, { directory });
    const path = join(directory, 'tributary-recycled');
    const bytes = fs.readFileSync(path);
    owner.close();
    bytes.writeBigUInt64LE(bytes.readBigUInt64LE(40) + 1n, 40);
    fs.writeFileSync(path, bytes);
    space.createSegment('recycled', 64, { directory }).close();
    expect(fs.existsSync(path)).toBe(false);
  });

  it('leaves the name alone at close when it belongs to a later segment', () => {
    const owner = space.createSegment('reborn', 64, { directory });
    fs.rmSync(join(directory, 'tributary-reborn'));
    const second = space.createSegment('reborn', 64, { directory });
    owner.close();
    expect(fs.existsSync(join(directory, 'tributary-reborn'))).toBe(true);
    second.close();
  });

  it('reports a full file system and leaves nothing behind', () => {
    const mountPoint = fs.mkdtempSync(join(tmpdir(), 'tributary-full-'));
    let mounted = true;
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m,mode=0700', 'tmpfs', mountPoint], {
        stdio: 'ignore',
      });
    } catch {
      mounted = false;
    }
    try {
      const where = mounted ? mountPoint : directory;
      const free = fs.statfsSync(where);
      const tooLarge = mounted ? 2 * MIB : free.bavail * free.bsize + MIB;
      const large = SharedSpace.create({ maxBytes: Math.min(4 * 2 ** 30, tooLarge + 2 * MIB) });
      const code = tooLarge < large.capacityBytes ? 'OUT_OF_SHARED_MEMORY' : 'MODEL_TOO_LARGE';
      expect(() => large.createSegment('full', tooLarge, { directory: where })).toThrow(withCode(code));
      expect(fs.readdirSync(where)).toEqual([]);
      large.allocate(large.capacityBytes).close();
      large.createSegment('full', MIB / 2, { directory: where }).close();
    } finally {
      if (mounted) execFileSync('umount', [mountPoint]);
      fs.rmdirSync(mountPoint);
    }
  });
});
