/** A push log gives back what was appended, up to the first bytes that are not whole. */
import {
  appendFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import zlib from 'node:zlib';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { systemFiles } from '../../../src/base/index.ts';
import { PushLog } from '../../../src/server/durability/index.ts';
import type { LogRecord, PushRecord } from '../../../src/server/durability/index.ts';
import { crc32, tableCrc32 } from '../../../src/server/durability/crc32.ts';
import { samplePush } from './samples.ts';

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-durability-'));
});

afterEach(() => rmSync(folder, { recursive: true, force: true }));

const refused = (code: string) => expect.objectContaining({ name: 'UsageError', code }) as Error;
const open = (step: number) => new PushLog({ files: systemFiles, folder, name: 'core-0', step });

/** Writes these, closes, and gives the path. */
function logOf(records: readonly LogRecord[], step = 0): string {
  const log = open(step);
  for (const record of records) log.append(record);
  log.close();
  return log.path;
}

function replay(path: string) {
  const log = PushLog.replay(systemFiles, path);
  const records = [...log];
  return { records, stop: log.stop! };
}

const floats = fc.float32Array({ maxLength: 50 });
const common = {
  worker: fc.maxSafeNat(),
  key: fc.string({ unit: 'grapheme', minLength: 1, maxLength: 30 }),
  step: fc.maxSafeNat(),
  samples: fc.double({ min: 0, max: 1e300, noNaN: true }),
};
const dense = fc.record({
  ...common,
  kind: fc.constant('dense' as const),
  pieces: fc.array(fc.record({ start: fc.nat(2 ** 30), values: floats }), { maxLength: 4 }),
});
const rows = fc.record({
  ...common,
  kind: fc.constant('rows' as const),
  indices: fc.int32Array({ maxLength: 20 }),
  rows: floats,
});

describe('a push log', () => {
  it('gives back what was appended, in order', () => {
    let step = 0;
    fc.assert(
      fc.property(fc.array(fc.oneof(dense, rows), { maxLength: 6 }), (records) => {
        const path = logOf(records, ++step);
        const { records: read, stop } = replay(path);
        expect(read).toEqual(records);
        expect(stop).toEqual({
          records: records.length,
          atByte: stop.fileBytes,
          fileBytes: readFileSync(path).length,
          why: 'end',
        });
      }),
      { numRuns: 200 },
    );
  });

  it('takes records of any length, on shared memory too', () => {
    const lengths = [0, 1, 65_505, 65_518, 65_519, 65_520, 65_521, 65_522, 65_536, 300_000];
    const records = lengths.map((length, step): PushRecord => {
      const values = new Float32Array(new SharedArrayBuffer(4 * length)).fill(step + 0.5);
      return { worker: 1, key: 'k', step, samples: 1, kind: 'dense', pieces: [{ start: 0, values }] };
    });
    const { records: read } = replay(logOf(records));
    expect(read.map((record) => record.kind === 'dense' && [...record.pieces[0]!.values])).toEqual(
      records.map((record) => record.kind === 'dense' && [...record.pieces[0]!.values]),
    );
  });

  it('goes on behind its last whole record when it is opened again', () => {
    const path = logOf([samplePush(0), samplePush(1)]);
    const whole = readFileSync(path).length;
    logOf([samplePush(2)]);
    truncateSync(path, whole + 300);
    expect(replay(path).stop).toMatchObject({ records: 2, atByte: whole, why: 'torn' });
    // Shorter than what was torn: nothing of that may show behind it.
    logOf([samplePush(0)]);
    expect(replay(path)).toMatchObject({
      records: [0, 1, 0].map(samplePush),
      stop: { why: 'end' },
    });
  });

  it('is rotated at a checkpoint and removed when the checkpoint is durable', () => {
    const log = open(0);
    log.append(samplePush(0));
    log.rotate(5);
    log.append(samplePush(1));
    log.rotate(9);
    log.append(samplePush(2));
    const all = () =>
      PushLog.list(systemFiles, folder, 'core-0').map(({ step, path }) => [step, replay(path).records]);
    expect(all()).toEqual([
      [0, [samplePush(0)]],
      [5, [samplePush(1)]],
      [9, [samplePush(2)]],
    ]);
    log.removeBefore(5);
    expect(all().map(([step]) => step)).toEqual([5, 9]);
    log.removeBefore(1000);
    expect(all()).toEqual([[9, [samplePush(2)]]]);
    expect(() => log.rotate(9)).toThrow(refused('INVALID_ARGUMENT'));
    log.close();
    expect(() => log.rotate(10)).toThrow(refused('FILE_NOT_WRITTEN'));
    expect(() => log.append(samplePush(0))).toThrow(refused('FILE_NOT_WRITTEN'));
    expect(() => open(8)).toThrow(refused('INVALID_ARGUMENT'));
    expect(readdirSync(folder)).toEqual(['core-0.000000000009.pushes']);
  });

  it('keeps to its own name', () => {
    logOf([samplePush(0)]);
    const other = new PushLog({ files: systemFiles, folder, name: 'core-00', step: 4 });
    other.removeBefore(4);
    other.close();
    expect(PushLog.list(systemFiles, folder, 'core-0').map(({ step }) => step)).toEqual([0]);
    expect(() => new PushLog({ files: systemFiles, folder, name: '../core', step: 0 })).toThrow(
      refused('INVALID_ARGUMENT'),
    );
    expect(PushLog.list(systemFiles, join(folder, 'nowhere'), 'core-0')).toEqual([]);
    expect(() => [...PushLog.replay(systemFiles, join(folder, 'nowhere'))]).toThrow(
      refused('FILE_NOT_FOUND'),
    );
  });

  it('refuses what it could not give back', () => {
    const log = open(0);
    const good = samplePush(0);
    for (const faulty of [
      { ...good, worker: -1 },
      { ...good, step: 0.5 },
      { ...good, samples: NaN },
      { ...good, key: '' },
      { ...good, key: '\udc00' },
      { ...good, pieces: [{ start: -1, values: new Float32Array(1) }] },
    ]) {
      expect(() => log.append(faulty)).toThrow(refused('INVALID_ARGUMENT'));
    }
    log.append(good);
    log.close();
    expect(replay(log.path).records).toEqual([good]);
  });
});

describe('a damaged push log', () => {
  const records = [0, 3, 7, 1].map(samplePush);

  it('gives the records before the damage, whichever byte is flipped', () => {
    const path = logOf(records.map(short));
    const good = readFileSync(path);
    const whole = replay(path).records;
    for (let at = 0; at < good.length; at++) {
      const flipped = Buffer.from(good);
      flipped[at]! ^= 1 << (at % 8);
      writeFileSync(path, flipped);
      const { records: read, stop } = replay(path);
      expect(stop.why).toBe('damaged');
      expect(stop.atByte).toBeLessThanOrEqual(at);
      expect(read).toEqual(whole.slice(0, read.length));
      expect(() => open(0)).toThrow(refused('CHECKPOINT_CORRUPT'));
      expect(readFileSync(path).equals(flipped)).toBe(true);
    }
  });

  it('gives the whole records before the cut, wherever it is cut', () => {
    const path = logOf(records.map(short));
    const good = readFileSync(path);
    const whole = replay(path).records;
    const ends = whole.map((_, i) => {
      const part = logOf(whole.slice(0, i + 1), i + 1);
      return readFileSync(part).length;
    });
    for (let length = 0; length < good.length; length++) {
      writeFileSync(path, good.subarray(0, length));
      const { records: read, stop } = replay(path);
      expect(read).toEqual(whole.slice(0, ends.filter((end) => end <= length).length));
      expect(stop.why).toBe(length === 16 || ends.includes(length) ? 'end' : 'torn');
    }
  });

  it('does not take trailing rubbish for records', () => {
    const path = logOf(records);
    appendFileSync(path, Buffer.alloc(4096));
    expect(replay(path)).toMatchObject({ records, stop: { records: 4, why: 'damaged' } });
  });

  /** The same push with few elements, so that every byte can be tried. */
  function short(record: PushRecord): PushRecord {
    if (record.kind === 'rows') {
      return { ...record, indices: record.indices.slice(0, 3), rows: record.rows.slice(0, 12) };
    }
    const pieces = record.pieces.map(({ start, values }) => ({ start, values: values.slice(0, 5) }));
    return { ...record, pieces };
  }
});

describe('the checksum', () => {
  it('is that of zlib with and without it', () => {
    expect(tableCrc32(Buffer.from('123456789'), 0)).toBe(0xcbf43926);
    expect(crc32).toBe((zlib as Partial<typeof zlib>).crc32 ?? tableCrc32);
    fc.assert(
      fc.property(fc.uint8Array(), fc.uint8Array(), (a, b) => {
        expect(crc32(b, crc32(a, 0))).toBe(tableCrc32(Buffer.concat([a, b]), 0));
      }),
    );
  });
});
