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
import type { Files } from '../../../src/base/index.ts';
import {
  listLogs,
  LogChain,
  LogReplay,
  PushLog,
  readLogOrigin,
} from '../../../src/server/durability/index.ts';
import type { LogOrigin, LogRecord, PushRecord } from '../../../src/server/durability/index.ts';
import { crc32, tableCrc32 } from '../../../src/server/durability/crc32.ts';
import { FaultyFiles } from './faulty-files.ts';
import { FIRST, samplePush } from './samples.ts';

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-durability-'));
});

afterEach(() => rmSync(folder, { recursive: true, force: true }));

const refused = (code: string) => expect.objectContaining({ name: 'UsageError', code }) as Error;
const open = (origin: LogOrigin = FIRST, isFlushed = false, files: Files = systemFiles) =>
  new PushLog({ files, folder, name: 'core-0', origin: { ...origin, isFlushed } });

/** Writes these, closes, and gives the path. */
function logOf(records: readonly LogRecord[], origin?: LogOrigin): string {
  const log = open(origin);
  for (const record of records) log.append(record);
  log.close();
  return log.path;
}

function replay(path: string) {
  const log = new LogReplay(systemFiles, path);
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

const skipped = fc.record({ ...common, kind: fc.constant('skipped' as const) });
const others = fc.oneof(
  fc.record({
    kind: fc.constant('optimizer' as const),
    spec: fc.jsonValue({ maxDepth: 3 }).map((value) => JSON.parse(JSON.stringify(value)) as unknown),
  }),
  fc.record({
    ...{ kind: fc.constant('values' as const), batch: fc.nat(), plan: fc.string({ unit: 'grapheme' }) },
    values: floats.map((values) => [values]),
  }),
);

describe('a push log', () => {
  it('gives back what was appended, in order', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(dense, rows, skipped, others), { maxLength: 6 }), (records) => {
        const path = logOf(records);
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

  it('is begun anew behind those that there are, and keeps to its own name', () => {
    expect(readLogOrigin(systemFiles, logOf([samplePush(0)]))).toEqual(FIRST);
    const next = { ...FIRST, previous: { number: 1, records: 1 }, isFirst: false };
    expect(readLogOrigin(systemFiles, logOf([], next))).toEqual(next);
    new PushLog({
      ...{ files: systemFiles, folder, name: 'core-00' },
      origin: FIRST,
    }).close();
    expect(listLogs(systemFiles, folder, 'core-0').map(({ number }) => number)).toEqual([1, 2]);
    expect(readdirSync(folder).sort()).toEqual([
      'core-0.000000000001.pushes',
      'core-0.000000000002.pushes',
      'core-00.000000000001.pushes',
    ]);
    expect(() => listLogs(systemFiles, folder, '../core')).toThrow(refused('INVALID_ARGUMENT'));
    expect(listLogs(systemFiles, join(folder, 'nowhere'), 'core-0')).toEqual([]);
    expect(() => [...new LogReplay(systemFiles, join(folder, 'nowhere'))]).toThrow(refused('FILE_NOT_FOUND'));
    const log = open();
    log.close();
    expect(() => log.append(samplePush(0))).toThrow(refused('FILE_NOT_WRITTEN'));
  });

  it('that cannot be begun leaves nothing behind', () => {
    const files = new FaultyFiles();
    files.fault = (call, path) => (call === 'write' && path.endsWith('.pushes') ? 'ENOSPC' : undefined);
    expect(() => open(FIRST, true, files)).toThrow(refused('FILE_NOT_WRITTEN'));
    expect(readdirSync(folder)).toEqual([]);
  });

  it('keeps nothing of a push for which the disk has not enough room', () => {
    const files = new FaultyFiles();
    const log = open(FIRST, true, files);
    log.append(samplePush(0));
    files.room = 100;
    expect(() => log.append(samplePush(5))).toThrow(refused('FILE_NOT_WRITTEN'));
    expect(files.room).toBe(0);
    files.room = Infinity;
    log.append(samplePush(1));
    log.close();
    expect(replay(log.path)).toMatchObject({ records: [samplePush(0), samplePush(1)], stop: { why: 'end' } });
  });

  it('that could not be written, nor cut where it was whole, acknowledges nothing more', () => {
    const files = new FaultyFiles();
    const log = open(FIRST, true, files);
    log.append(samplePush(0));
    files.fault = (call) => (call === 'write' || call === 'truncate' ? 'EIO' : undefined);
    expect(() => log.append(samplePush(1))).toThrow(refused('FILE_NOT_WRITTEN'));
    files.fault = () => undefined;
    expect(() => log.flush()).toThrow(refused('FILE_NOT_WRITTEN'));
    log.close();
  });

  it('of another release is named', () => {
    const path = logOf([samplePush(0)]);
    for (const mark of ['tributary-log-1\n', 'tributary-log-2\n', 'tributary-log-9\n']) {
      writeFileSync(path, Buffer.concat([Buffer.from(mark), readFileSync(path).subarray(16)]));
      expect(() => replay(path)).toThrow(refused('CHECKPOINT_MISMATCH'));
    }
  });

  it('refuses what it could not give back', () => {
    const log = open();
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
      expect(stop.why, `byte ${at}`).toBe('damaged');
      expect(stop.atByte).toBeLessThanOrEqual(at);
      expect(read).toEqual(whole.slice(0, read.length));
      expect(() => [...chainOf().records()]).toThrow(refused('CHECKPOINT_CORRUPT'));
    }
  });

  it('gives the whole records before the cut, wherever it is cut, and zeros count as nothing', () => {
    const origin = readFileSync(logOf([])).length;
    const path = logOf(records.map(short));
    const good = readFileSync(path);
    const whole = replay(path).records;
    const ends = whole.map((_, i) => readFileSync(logOf(whole.slice(0, i + 1))).length);
    for (let length = 0; length < good.length; length++) {
      const expected = whole.slice(0, ends.filter((end) => end <= length).length);
      writeFileSync(path, good.subarray(0, length));
      const cut = replay(path);
      expect(cut.records).toEqual(expected);
      expect(cut.stop.why).toBe(length === origin || ends.includes(length) ? 'end' : 'torn');
      writeFileSync(path, Buffer.concat([good.subarray(0, length), Buffer.alloc(good.length - length + 16)]));
      const zeroed = replay(path);
      // Zeros that were written are the same as zeros that are left.
      expect(zeroed.records.length).toBeGreaterThanOrEqual(expected.length);
      expect(zeroed.records).toEqual(whole.slice(0, zeroed.records.length));
      expect(zeroed.stop.why, `zeros from ${length}`).toBe('torn');
    }
  });

  it('is torn only behind what was acknowledged: bytes of one flush may be lost in any order', () => {
    const log = open(FIRST, true);
    const bytes = () => readFileSync(log.path).length;
    const ends = [bytes()];
    for (const record of records) {
      log.append(record);
      ends.push(bytes());
      if (ends.length === 3) log.flush();
    }
    log.close();
    const good = readFileSync(log.path);
    const without = (record: number, from = 0) => {
      const lost = Buffer.from(good);
      lost.fill(0, ends[record]! + from, ends[record + 1]);
      writeFileSync(log.path, lost);
      return replay(log.path).stop;
    };
    // Of the second flush, which was never done.
    expect(without(2)).toMatchObject({ records: 2, why: 'torn' });
    expect(without(2, 100)).toMatchObject({ records: 2, why: 'torn' });
    expect(without(3)).toMatchObject({ records: 3, why: 'torn' });
    // Of the first.
    expect(without(1)).toMatchObject({ records: 1, why: 'damaged' });
    expect(without(0)).toMatchObject({ records: 0, why: 'damaged' });
  });

  it('that was not flushed for each push is torn where bytes are lost, but not before those that were flushed', () => {
    const rule: LogRecord = { kind: 'optimizer', spec: { name: 'sgd', lr: 1 } };
    const log = open();
    const ends = [readFileSync(log.path).length];
    for (const record of [records[1]!, rule, records[2]!, records[1]!, records[3]!]) {
      log.append(record);
      log.flush();
      ends.push(readFileSync(log.path).length);
    }
    log.close();
    const good = readFileSync(log.path);
    const without = (record: number) => {
      const lost = Buffer.from(good);
      lost.fill(0, ends[record], ends[record + 1]);
      writeFileSync(log.path, lost);
      return replay(log.path).stop;
    };
    expect(without(3)).toMatchObject({ records: 3, why: 'torn' });
    expect(without(2)).toMatchObject({ records: 2, why: 'torn' });
    // An optimizer is flushed with all that is before it.
    expect(without(1)).toMatchObject({ records: 1, why: 'damaged' });
    expect(without(0)).toMatchObject({ records: 0, why: 'damaged' });
  });

  it('is found damaged in its last push although that has sectors of zeros', () => {
    const zeros = new Float32Array(1024);
    const pushed = { worker: 0, key: 'embedding', step: 1, samples: 1 };
    const sparse: PushRecord[] = [
      { ...pushed, kind: 'dense', pieces: [{ start: 0, values: zeros }] },
      { ...pushed, kind: 'rows', indices: new Int32Array(512), rows: zeros },
    ];
    for (const record of sparse) {
      const from = readFileSync(logOf([])).length;
      const path = logOf([record]);
      const good = readFileSync(path);
      expect(replay(path)).toMatchObject({ records: [record], stop: { why: 'end' } });
      for (let at = from; at < good.length; at += 3) {
        const flipped = Buffer.from(good);
        flipped[at]! ^= 1 << (at % 8);
        writeFileSync(path, flipped);
        expect(replay(path).stop, `byte ${at}`).toMatchObject({ records: 0, why: 'damaged' });
      }
      // A sector that never came to the disk.
      for (let at = 512; at < good.length; at += 512) {
        const lost = Buffer.from(good);
        lost.fill(0, at, Math.min(at + 512, lost.length));
        writeFileSync(path, lost);
        expect(replay(path).stop, `sector at ${at}`).toMatchObject({ records: 0, why: 'torn' });
      }
    }
  });

  it('does not take trailing rubbish for records', () => {
    const path = logOf(records);
    appendFileSync(path, Buffer.alloc(4096));
    expect(replay(path)).toMatchObject({ records, stop: { records: 4, why: 'torn' } });
    appendFileSync(path, Buffer.alloc(4096, 7));
    expect(replay(path)).toMatchObject({ records, stop: { records: 4 } });
  });

  /** The same push with few elements, so that every byte can be tried. */
  function short(record: ReturnType<typeof samplePush>): PushRecord {
    if (record.kind === 'rows') {
      return { ...record, indices: record.indices.slice(0, 3), rows: record.rows.slice(0, 12) };
    }
    const pieces = record.pieces.map(({ start, values }) => ({ start, values: values.slice(0, 5) }));
    return { ...record, pieces };
  }
});

/** The logs of the core in the folder. */
function chainOf(first?: number, more: Partial<ConstructorParameters<typeof LogChain>[0]> = {}): LogChain {
  return new LogChain({
    ...{ files: systemFiles, folder, name: 'core-0', first, cores: 1, settings: '{}', ...more },
  });
}

describe('a chain of logs', () => {
  const pathOf = (number: number) => join(folder, `core-0.${String(number).padStart(12, '0')}.pushes`);
  const [a, b, c, d] = [0, 1, 2, 4].map(samplePush) as [PushRecord, PushRecord, PushRecord, PushRecord];
  const after = (number: number, records: number): LogOrigin => ({
    ...{ ...FIRST, isFirst: false },
    previous: { number, records },
  });
  const alone: LogOrigin = { ...FIRST, isFirst: false };

  it('gives all records from a log on, through logs without any', () => {
    logOf([a, b]);
    logOf([], after(1, 2));
    logOf([c], after(2, 0));
    logOf([]);
    logOf([d], after(3, 1));
    for (const [first, expected] of [
      [undefined, [a, b, c, d]],
      [1, [a, b, c, d]],
      [2, [c, d]],
      [3, [c, d]],
      [5, [d]],
    ] as const) {
      const chain = chainOf(first);
      expect([...chain.records()]).toEqual(expected);
      expect(chain.end).toEqual({ number: 5, records: 1 });
    }
  });

  it('of nothing gives nothing', () => {
    const chain = chainOf();
    expect([...chain.records()]).toEqual([]);
    expect(chain.end).toBeNull();
  });

  it('ends where its last log is torn, and goes on from there', () => {
    const path = logOf([a, b]);
    truncateSync(path, readFileSync(path).length - 4);
    const torn = chainOf();
    expect([...torn.records()]).toEqual([a]);
    expect(torn.torn).toMatchObject({ path, records: 1 });
    logOf([c], after(1, 1));
    expect([...chainOf().records()]).toEqual([a, c]);
  });

  it('passes over a log that was to follow a checkpoint, if nothing came into it', () => {
    logOf([a, b]);
    logOf([], alone);
    expect([...chainOf().records()]).toEqual([a, b]);
    logOf([c], after(1, 2));
    expect([...chainOf().records()]).toEqual([a, b, c]);
  });

  it.each<[string, () => void, number?]>([
    [
      'a log is missing',
      () => (logOf([a]), logOf([b], after(1, 1)), logOf([c], after(2, 1)), rmSync(pathOf(2))),
    ],
    ['the first is missing', () => void logOf([a], after(1, 1))],
    ['that of the checkpoint is missing', () => void logOf([a]), 2],
    ['an earlier log has lost records', () => (logOf([a]), logOf([c], after(1, 2)))],
    ['an earlier log has lost all its records', () => (logOf([]), logOf([], after(1, 2)))],
    ['an earlier log has more than it had', () => (logOf([a, b]), logOf([c], after(1, 1)))],
    ['the checkpoint of a log is gone', () => (logOf([a]), logOf([b], alone))],
    ['two logs continue the same', () => (logOf([a]), logOf([b], after(1, 1)), logOf([c], after(1, 1)))],
  ])('is refused by name where %s', (_, write, first) => {
    write();
    const read = () => [...chainOf(first).records()];
    expect(read).toThrow(refused('CHECKPOINT_CORRUPT'));
    expect(read).toThrow(folder);
  });

  it('of other cores or another training is refused by name', () => {
    logOf([a]);
    expect(() => chainOf(undefined, { cores: 2 })).toThrow(refused('CHECKPOINT_MISMATCH'));
    expect(() => chainOf(undefined, { settings: '{"combine":"mean"}' })).toThrow(
      refused('CHECKPOINT_MISMATCH'),
    );
    expect(() => chainOf(undefined, { name: 'core-1', cores: 2 })).toThrow(refused('CHECKPOINT_MISMATCH'));
  });
});

describe('a log whose flush failed', () => {
  it('takes nothing any more, and no later flush makes it good', () => {
    const files = new FaultyFiles();
    const log = open(FIRST, true, files);
    log.append(samplePush(0));
    log.flush();
    log.append(samplePush(1));
    expect(log.isDirty).toBe(true);
    files.fault = (call) => (call === 'flush' ? 'EIO' : undefined);
    expect(() => log.flush()).toThrow(refused('FILE_NOT_WRITTEN'));
    files.fault = () => undefined;
    expect(log.isDirty).toBe(false);
    expect(log.failure).toEqual(refused('FILE_NOT_WRITTEN'));
    expect(() => log.append(samplePush(2))).toThrow(refused('FILE_NOT_WRITTEN'));
    log.close();
    files.cutPower('zeros');
    expect(replay(log.path)).toMatchObject({ records: [samplePush(0)], stop: { why: 'torn' } });
  });
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
