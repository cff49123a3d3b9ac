/** Checkpoints of a server come back bit for bit, the last two stay, and no damage gets past a read. */
import { createHash } from 'node:crypto';
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ServerCheckpoints } from '../../../src/server/durability/index.ts';
import { systemServerHost } from '../../../src/server/server-host.ts';
import type { KeyState, ServerState } from '../../../src/server/durability/index.ts';
import { isSame, sampleState, sampleValues } from './samples.ts';

let folder: string;
let checkpoints: ServerCheckpoints;
let problems: string[];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-durability-'));
  problems = [];
  checkpoints = await ServerCheckpoints.open({
    host: systemServerHost,
    folder,
    onProblem: (text) => problems.push(text),
  });
});

afterEach(async () => {
  await checkpoints.close();
  rmSync(folder, { recursive: true, force: true });
});

const fileOf = (step: number) => join(folder, `step-${String(step).padStart(12, '0')}.checkpoint`);
const refused = (code: string) => expect.objectContaining({ name: 'UsageError', code }) as Error;

/** JSON has no -0. */
const json = fc.jsonValue({ maxDepth: 4 }).map((value) => JSON.parse(JSON.stringify(value)) as unknown);
const name = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 20 });
const ranges = fc.array(fc.record({ start: fc.nat(500), length: fc.nat(40) }), { maxLength: 5 });
const tensor = fc
  .record({ name, ranges, bits: fc.nat(), isShared: fc.boolean() })
  .map(({ bits, isShared, ...known }) => {
    const length = known.ranges.reduce((sum, range) => sum + range.length, 0);
    const plain = sampleValues(bits, length);
    if (length > 0) plain[bits % length] = [NaN, -0, Infinity, 1e-45][bits % 4]!;
    if (!isShared) return { ...known, data: plain };
    // Not at the beginning of its memory, as regions are.
    const shared = new Float32Array(new SharedArrayBuffer(4 * (length + 3)), 12, length);
    shared.set(plain);
    return { ...known, data: shared };
  });
const key: fc.Arbitrary<KeyState> = fc
  .record({
    name,
    rows: fc.option(fc.constantFrom(1, 2, 6, 270), { nil: undefined }),
    version: fc.maxSafeNat(),
    lastSteps: fc.dictionary(name, fc.maxSafeNat(), { maxKeys: 4 }),
    tensors: fc.uniqueArray(tensor, { maxLength: 3, selector: (one) => one.name }),
  })
  .map(({ rows, ...known }) => ({
    ...known,
    length: 540,
    ...(rows === undefined ? {} : { rowLength: rows }),
  }));
const state: fc.Arbitrary<ServerState> = fc.record({
  namespace: name,
  cores: fc.array(
    fc.record({ optimizer: json, log: fc.option(fc.maxSafeNat(), { nil: null }), batches: json }),
    { maxLength: 3 },
  ),
  generation: fc.maxSafeNat(),
  keys: fc.uniqueArray(key, { maxLength: 4, selector: (one) => one.name }),
});

const bitsOf = ({ keys }: ServerState) =>
  keys.map(({ tensors }) => tensors.map(({ data }) => [...new Uint32Array(Float32Array.from(data).buffer)]));
const restOf = ({ keys, ...known }: ServerState) => ({
  ...known,
  keys: keys.map((one) => ({
    ...one,
    lastSteps: Object.entries(one.lastSteps).sort(),
    tensors: one.tensors.map((each) => ({ name: each.name, ranges: each.ranges })),
  })),
});

describe('a checkpoint of a server', () => {
  it('comes back as it was written, bit for bit', async () => {
    let step = 0;
    await fc.assert(
      fc.asyncProperty(state, async (written) => {
        await checkpoints.write(++step, written);
        const read = await checkpoints.read(step);
        expect(restOf(read)).toEqual(restOf(written));
        expect(bitsOf(read)).toEqual(bitsOf(written));
      }),
      { numRuns: 100 },
    );
  });

  it('may be longer than the pieces in which it is written', async () => {
    const written = sampleState(1, 4 * 150_001);
    await checkpoints.write(1, written);
    expect(isSame(await checkpoints.read(1), written)).toBe(true);
  });

  it('is one of the last two, which are all that stay', async () => {
    for (const step of [3, 4, 10, 10, 200]) await checkpoints.write(step, sampleState(step, 16));
    expect(await checkpoints.list()).toEqual([10, 200]);
    expect(await checkpoints.write(200, sampleState(200, 16))).toEqual([
      { step: 10, logs: [7] },
      { step: 200, logs: [7] },
    ]);
    expect(readdirSync(folder).filter((name) => name !== 'server.lock')).toHaveLength(2);
    await expect(checkpoints.read(4)).rejects.toEqual(refused('FILE_NOT_FOUND'));
    await expect(checkpoints.write(11, sampleState(11, 16))).rejects.toEqual(refused('INVALID_ARGUMENT'));
  });

  it('stays when newer ones are damaged', async () => {
    for (const step of [1, 2]) await checkpoints.write(step, sampleState(step, 16));
    writeFileSync(fileOf(2), 'damaged');
    writeFileSync(fileOf(9), 'never one');
    await checkpoints.close();
    checkpoints = await ServerCheckpoints.open({
      host: systemServerHost,
      folder,
      onProblem: (text) => problems.push(text),
    });
    expect(await checkpoints.list()).toEqual([1]);
    expect(problems).toEqual([expect.stringContaining(fileOf(2)), expect.stringContaining(fileOf(9))]);
    await checkpoints.write(3, sampleState(3, 16));
    expect(await checkpoints.list()).toEqual([1, 3]);
    await checkpoints.write(4, sampleState(4, 16));
    expect(await checkpoints.list()).toEqual([3, 4]);
  });

  it('is written while the main thread goes on, in the order of the calls', async () => {
    const writes = [1, 2, 3].map((step) => checkpoints.write(step, sampleState(step, 1 << 16)));
    await Promise.all(writes);
    expect(await checkpoints.list()).toEqual([2, 3]);
  });

  it('is refused when the state is not a sound one, and leaves nothing', async () => {
    const good = sampleState(1, 16);
    const one = good.keys[0]!;
    const faulty: [number, unknown][] = [
      [-1, good],
      [1.5, good],
      [1, { ...good, namespace: '' }],
      [1, { ...good, generation: -1 }],
      [1, { ...good, cores: undefined }],
      [1, { ...good, cores: [{ ...good.cores[0], optimizer: undefined }] }],
      [1, { ...good, cores: [{ ...good.cores[0], optimizer: { rule: () => 0 } }] }],
      [1, { ...good, cores: [{ ...good.cores[0], optimizer: { rate: NaN } }] }],
      [1, { ...good, cores: [{ ...good.cores[0], log: 0.5 }] }],
      [1, { ...good, cores: [{ ...good.cores[0], batches: undefined }] }],
      [1, { ...good, keys: [one, one] }],
      [1, { ...good, keys: [{ ...one, name: '\ud800' }] }],
      [1, { ...good, keys: [{ ...one, length: 15 }] }],
      [1, { ...good, keys: [{ ...one, rowLength: 5 }] }],
      [1, { ...good, keys: [{ ...one, version: NaN }] }],
      [1, { ...good, keys: [{ ...one, lastSteps: { 0: -1 } }] }],
      [1, { ...good, keys: [{ ...one, tensors: [{ ...one.tensors[0]!, data: new Float32Array(3) }] }] }],
      [1, { ...good, keys: [{ ...one, tensors: [one.tensors[0]!, one.tensors[0]!] }] }],
    ];
    for (const [step, state] of faulty) {
      await expect(checkpoints.write(step, state as ServerState)).rejects.toEqual(
        refused('INVALID_ARGUMENT'),
      );
    }
    expect(readdirSync(folder)).toEqual(['server.lock']);
  });

  it('is not begun or read by a closed store', async () => {
    await checkpoints.close();
    await expect(checkpoints.list()).rejects.toEqual(refused('INVALID_ARGUMENT'));
  });
});

describe('a damaged checkpoint', () => {
  it('is refused whichever byte is flipped and wherever it is cut', async () => {
    await checkpoints.write(1, sampleState(1, 16));
    const good = readFileSync(fileOf(1));
    const refuse = async (bytes: Uint8Array) => {
      writeFileSync(fileOf(1), bytes);
      await expect(checkpoints.read(1)).rejects.toEqual(refused('CHECKPOINT_CORRUPT'));
    };
    for (let at = 0; at < good.length; at++) {
      const flipped = Buffer.from(good);
      flipped[at]! ^= 1 << (at % 8);
      await refuse(flipped);
      await refuse(good.subarray(0, at));
    }
    await refuse(Buffer.concat([good, Buffer.alloc(1)]));
    writeFileSync(fileOf(1), good);
    expect(await checkpoints.read(1)).toEqual(sampleState(1, 16));
  }, 120_000);

  it('is refused under the name of another step, as a link and as a folder', async () => {
    await checkpoints.write(1, sampleState(1, 16));
    writeFileSync(fileOf(2), readFileSync(fileOf(1)));
    symlinkSync(fileOf(1), fileOf(3));
    mkdirSync(fileOf(4));
    for (const step of [2, 3, 4]) {
      await expect(checkpoints.read(step)).rejects.toEqual(refused('CHECKPOINT_CORRUPT'));
    }
    expect(await checkpoints.list()).toEqual([1]);
  });

  it('is refused when it was forged with right checksums', async () => {
    await checkpoints.write(1, sampleState(1, 16));
    const bytes = readFileSync(fileOf(1));
    const length = bytes.readUInt32LE(12);
    const text = bytes.toString('utf8', 48, 48 + length);
    const forge = (manifest: string) => {
      const forged = Buffer.from(manifest);
      const head = Buffer.from(bytes.subarray(0, 48));
      head.writeUInt32LE(forged.length, 12);
      createHash('sha256').update(forged).digest().copy(head, 16);
      writeFileSync(fileOf(1), Buffer.concat([head, forged, bytes.subarray(48 + length)]));
    };
    forge(text);
    expect(await checkpoints.read(1)).toEqual(sampleState(1, 16));
    const forgeries = [
      'null',
      '[]',
      '{"format":2}',
      'not JSON',
      text.replace('"length":16', '"length":1e300'),
      text.replace('"length":16', '"length":-16'),
      text.replace('"ranges":[0,8,8,8]', '"ranges":[0,1073741824,8,8]'),
      text.replace('"ranges":[0,8,8,8]', '"ranges":[0,8,8]'),
      text.replace('"ranges":[0,8,8,8]', '"ranges":[0,8,8,7]'),
      text.replace('"length":16', '"length":1073741824').replace('[0,8,8,8]', '[0,1073741823,8,8]'),
      text.replace('"step":1', '"step":7'),
      text.replace('"velocity"', '"value"'),
      text.replace('"lastSteps":{}', '"lastSteps":{"0":"x"}'),
      text.replace(/"optimizer":\{[^}]*\}/, `"optimizer":${'['.repeat(50_000)}${']'.repeat(50_000)}`),
    ];
    for (const forgery of forgeries) {
      expect(forgery).not.toBe(text);
      forge(forgery);
      await expect(checkpoints.read(1), forgery.slice(0, 200)).rejects.toEqual(refused('CHECKPOINT_CORRUPT'));
    }
    forge(text.replace('"format":2', '"format":3'));
    await expect(checkpoints.read(1)).rejects.toEqual(refused('CHECKPOINT_MISMATCH'));
  });
});

describe('the folder of checkpoints', () => {
  it('loses what killed writes have left when it is opened, and nothing else', async () => {
    await checkpoints.write(1, sampleState(1, 16));
    await checkpoints.close();
    writeFileSync(join(folder, '.writing-step-000000000002-0123456789abcdef'), 'half');
    writeFileSync(join(folder, 'notes.txt'), 'mine');
    checkpoints = await ServerCheckpoints.open({ host: systemServerHost, folder });
    expect(readdirSync(folder).sort()).toEqual(['notes.txt', 'server.lock', 'step-000000000001.checkpoint']);
  });

  it('is refused when it cannot be made', async () => {
    writeFileSync(join(folder, 'file'), '');
    const opened = ServerCheckpoints.open({ host: systemServerHost, folder: join(folder, 'file', 'inside') });
    await expect(opened).rejects.toEqual(refused('CHECKPOINT_NOT_WRITTEN'));
    // The thread that failed is known by its stack, and the system's own error by the cause.
    const { stack, cause } = (await opened.catch((error: unknown) => error)) as Error;
    expect(stack).toContain('checkpoint-folder');
    expect(cause).toMatchObject({ message: expect.stringMatching(/^ENOTDIR/) as string });
  });

  it('is given up when it takes too long', async () => {
    // No thread starts within a millisecond.
    const late = expect.objectContaining({ name: 'PeerError', code: 'TIMEOUT' }) as Error;
    await expect(ServerCheckpoints.open({ host: systemServerHost, folder, timeoutMs: 1 })).rejects.toEqual(
      late,
    );
  });
});
