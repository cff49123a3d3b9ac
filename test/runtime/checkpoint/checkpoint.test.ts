import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createHash } from 'node:crypto';
import { basename, join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { runAtOnce, UsageError } from '../../../src/base/index.ts';
import { CheckpointStore, loadCheckpoint } from '../../../src/runtime/checkpoint/index.ts';
import type { CheckpointData, JsonValue } from '../../../src/runtime/checkpoint/index.ts';
import { writeCheckpoint } from '../../../src/runtime/checkpoint/checkpoint.ts';
import { expectError } from '../../data/expect-error.ts';
import { temporaryFolders } from '../../data/temporary-folder.ts';
import { FaultyFiles } from '../../server/durability/faulty-files.ts';

const newFolder = temporaryFolders();
const FILES = ['model.safetensors', 'optimizer.safetensors', 'state.json'] as const;

function sample(
  step: number,
  state: JsonValue = { seed: 7, order: { seed: 1, epoch: 0, position: step } },
): CheckpointData {
  return {
    step,
    epoch: 1,
    tensors: {
      'layer.weight': {
        dtype: 'float32',
        shape: [2, 3],
        data: Float32Array.of(step, 1, -2, NaN, Infinity, 1e-40),
      },
      counter: { dtype: 'int64', shape: [], data: BigInt64Array.of(BigInt(step)) },
    },
    optimizer: {
      'layer.weight/momentum': { dtype: 'float32', shape: [6], data: new Float32Array(6).fill(step) },
    },
    state,
  };
}

function entries(folder: string): string[] {
  return readdirSync(folder).sort();
}

function flip(path: string, at: number, mask: number): void {
  const bytes = readFileSync(path);
  bytes[at] = bytes[at]! ^ mask;
  writeFileSync(path, bytes);
}

describe('CheckpointStore', () => {
  it('gives back what was saved', () => {
    const store = new CheckpointStore(join(newFolder(), 'run', 'checkpoints'));
    expect(store.latest()).toEqual({ checkpoint: undefined, path: undefined, skipped: [] });
    const path = store.save(sample(1234));
    expect(basename(path)).toBe('step-00001234');
    expect(entries(path)).toEqual([...FILES]);
    expect(store.latest()).toEqual({ checkpoint: sample(1234), path, skipped: [] });
    expect(store.load(path)).toEqual(sample(1234));
  });

  it('gives back any JSON state', () => {
    const store = new CheckpointStore(newFolder());
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const state = JSON.parse(JSON.stringify(value)) as JsonValue;
        const path = store.save(sample(1, state));
        expect(store.load(path).state).toEqual(state);
        rmSync(path, { recursive: true });
      }),
      { numRuns: 40 },
    );
  });

  it('stores a copy of memory that others go on changing, sealed as written', () => {
    const shared = new Float32Array(new SharedArrayBuffer(4 * 600_000)).fill(3);
    const store = new CheckpointStore(newFolder());
    const tensors = { w: { dtype: 'float32', shape: [600_000], data: shared } } as const;
    const path = store.save({ ...sample(1), tensors });
    shared.fill(4);
    const read = store.load(path).tensors.w!.data as Float32Array;
    expect(read.every((value) => value === 3)).toBe(true);
  });

  it('discards what is not accepted once it is written, and removes nothing for it', () => {
    const folder = newFolder();
    const store = new CheckpointStore(folder, { keep: 1 });
    store.save(sample(1));
    const seen: string[][] = [];
    const refuse = () => {
      seen.push(entries(folder), ...entries(folder).map((entry) => entries(join(folder, entry))));
      throw new UsageError('NOT_A_NUMBER', 'the source has changed');
    };
    expectError(() => store.save(sample(2), refuse), 'NOT_A_NUMBER', 'the source has changed');
    const temporary = expect.stringMatching(/^\.writing-step-00000002-/) as string;
    expect(seen).toEqual([[temporary, 'step-00000001'], [...FILES], [...FILES]]);
    expect(entries(folder)).toEqual(['step-00000001']);
    store.save(sample(2), () => undefined);
    expect(entries(folder)).toEqual(['step-00000002']);
  });

  it('records length and SHA-256 of the files in a readable state', () => {
    const path = new CheckpointStore(newFolder()).save(sample(5));
    const state = JSON.parse(readFileSync(join(path, 'state.json'), 'utf8')) as {
      version: number;
      step: number;
      files: Record<string, { bytes: number; sha256: string }>;
    };
    expect([state.version, state.step]).toEqual([1, 5]);
    for (const file of FILES.slice(0, 2)) {
      const bytes = readFileSync(join(path, file));
      expect(state.files[file]).toEqual({
        bytes: bytes.length,
        sha256: createHash('sha256').update(bytes).digest('hex'),
      });
    }
  });

  it('refuses state that is not JSON and steps that are not whole, and leaves nothing behind', () => {
    const folder = newFolder();
    const store = new CheckpointStore(folder);
    expectError(() => store.save(sample(1, { loss: NaN })), 'INVALID_ARGUMENT', '$.loss', 'NaN');
    expectError(
      () => store.save(sample(1, { list: [new Date()] } as never)),
      'INVALID_ARGUMENT',
      '$.list[0]',
    );
    expectError(() => store.save({ ...sample(1), step: -1 }), 'INVALID_ARGUMENT', 'step');
    expectError(() => store.save({ ...sample(1), epoch: 0.5 }), 'INVALID_ARGUMENT', 'epoch');
    const wrong = { w: { dtype: 'float32', shape: [9], data: new Float32Array(1) } } as const;
    expectError(() => store.save({ ...sample(1), tensors: wrong }), 'INVALID_ARGUMENT', '"w"');
    expect(entries(folder)).toEqual([]);
    expectError(() => new CheckpointStore(folder, { keep: 0 }), 'INVALID_ARGUMENT', 'keep');
  });

  it('says so when the folder cannot be written', () => {
    const file = join(newFolder(), 'file');
    writeFileSync(file, '');
    expectError(() => new CheckpointStore(file).save(sample(1)), 'CHECKPOINT_NOT_WRITTEN', file);
    expectError(() => new CheckpointStore(file).latest(), 'FILE_NOT_FOUND', file);
  });
});

describe('damage', () => {
  /** Two good checkpoints; the newer one is restored before each case. */
  function pair(): { store: CheckpointStore; older: string; newer: string; restore: () => void } {
    const folder = newFolder();
    const store = new CheckpointStore(join(folder, 'checkpoints'));
    const older = store.save(sample(1));
    const newer = store.save(sample(2));
    const pristine = join(folder, 'pristine');
    cpSync(newer, pristine, { recursive: true });
    const restore = (): void => {
      for (const file of FILES) copyFileSync(join(pristine, file), join(newer, file));
    };
    return { store, older, newer, restore };
  }

  function expectPrevious({ store, older, newer }: ReturnType<typeof pair>, file: string): void {
    expectError(() => store.load(newer), 'CHECKPOINT_CORRUPT', join(newer, file));
    const { checkpoint, path, skipped } = store.latest();
    expect(path).toBe(older);
    expect(checkpoint).toEqual(sample(1));
    expect(skipped.map((one) => one.path)).toEqual([newer]);
    expect(skipped[0]!.reason).toContain(join(newer, file));
  }

  it.each(FILES)('finds %s truncated at any length and uses the previous checkpoint', (file) => {
    const stored = pair();
    const path = join(stored.newer, file);
    const { size } = statSync(path);
    fc.assert(
      fc.property(fc.nat(size - 1), (length) => {
        stored.restore();
        writeFileSync(path, readFileSync(path).subarray(0, length));
        expectPrevious(stored, file);
      }),
      { numRuns: 40 },
    );
  });

  it.each(FILES)('finds any flipped bit of %s and uses the previous checkpoint', (file) => {
    const stored = pair();
    const path = join(stored.newer, file);
    const { size } = statSync(path);
    fc.assert(
      fc.property(fc.nat(size - 1), fc.integer({ min: 1, max: 255 }), (at, mask) => {
        stored.restore();
        flip(path, at, mask);
        expectPrevious(stored, file);
      }),
      { numRuns: 120 },
    );
  });

  it.each(FILES)('finds bytes added to %s, and the file missing', (file) => {
    const stored = pair();
    const path = join(stored.newer, file);
    writeFileSync(path, Buffer.concat([readFileSync(path), Buffer.from(' ')]));
    expectPrevious(stored, file);
    rmSync(path);
    expectPrevious(stored, file);
  });

  it('names expected and found checksum and length', () => {
    const { store, newer } = pair();
    const model = join(newer, 'model.safetensors');
    const { size } = statSync(model);
    flip(model, size - 1, 1);
    expectError(
      () => store.load(newer),
      'CHECKPOINT_CORRUPT',
      'expected SHA-256',
      'found SHA-256',
      'earlier checkpoint',
    );
    writeFileSync(model, readFileSync(model).subarray(0, size - 3));
    expectError(
      () => store.load(newer),
      'CHECKPOINT_CORRUPT',
      `expected ${size} bytes`,
      `found ${size - 3} bytes`,
    );
  });

  it('finds files exchanged between checkpoints and renamed folders', () => {
    const stored = pair();
    copyFileSync(join(stored.older, 'model.safetensors'), join(stored.newer, 'model.safetensors'));
    expectPrevious(stored, 'model.safetensors');
    stored.restore();
    const moved = join(stored.store.directory, 'step-00000009');
    renameSync(stored.newer, moved);
    expect(stored.store.latest().skipped).toEqual([
      { path: moved, reason: expect.stringContaining('step 9') as string },
    ]);
    expect(stored.store.load(moved)).toEqual(sample(2));
  });

  it('passes over what a crash leaves: half-written folders, empty ones, files of that name', () => {
    const { store, newer } = pair();
    const half = join(store.directory, '.writing-step-00000003-0123456789abcdef');
    mkdirSync(half);
    copyFileSync(join(newer, 'model.safetensors'), join(half, 'model.safetensors'));
    expect(store.latest()).toEqual({ checkpoint: sample(2), path: newer, skipped: [] });
    mkdirSync(join(store.directory, 'step-00000004'));
    writeFileSync(join(store.directory, 'step-00000005'), 'not a folder');
    const { path, skipped } = store.latest();
    expect(path).toBe(newer);
    expect(skipped.map((one) => basename(one.path))).toEqual(['step-00000005', 'step-00000004']);
  });

  it('gives nothing when every checkpoint is damaged', () => {
    const { store, older, newer } = pair();
    for (const path of [older, newer]) flip(join(path, 'state.json'), 0, 1);
    const { checkpoint, skipped } = store.latest();
    expect(checkpoint).toBeUndefined();
    expect(skipped).toHaveLength(2);
  });

  it('refuses states that verify but are of another version or incomplete, and paths that do not exist', () => {
    const { newer } = pair();
    const file = join(newer, 'state.json');
    const write = (change: Record<string, unknown>): void => {
      const text = (value: Record<string, unknown>): string =>
        `${JSON.stringify(Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))), null, 2)}\n`;
      const body: Record<string, unknown> = {
        ...(JSON.parse(readFileSync(file, 'utf8')) as object),
        ...change,
      };
      delete body.checksum;
      writeFileSync(file, text({ ...body, checksum: createHash('sha256').update(text(body)).digest('hex') }));
    };
    write({});
    expect(loadCheckpoint(newer).step).toBe(2);
    write({ step: '2' });
    expectError(() => loadCheckpoint(newer), 'CHECKPOINT_CORRUPT', file);
    write({ step: 2, files: { 'model.safetensors': 3 } });
    expectError(() => loadCheckpoint(newer), 'CHECKPOINT_CORRUPT', file);
    write({ version: 2 });
    expectError(() => loadCheckpoint(newer), 'CHECKPOINT_MISMATCH', file, 'version 2');
    for (const text of ['', 'null', '[]', '3', '['.repeat(100_000)]) {
      writeFileSync(file, text);
      expectError(() => loadCheckpoint(newer), 'CHECKPOINT_CORRUPT', file);
    }
    expectError(() => loadCheckpoint('/nowhere/step-00000001'), 'FILE_NOT_FOUND', '/nowhere');
  });
});

describe('keeping', () => {
  it('keeps the newest ones and removes older ones', () => {
    const folder = newFolder();
    const store = new CheckpointStore(folder);
    for (let step = 1; step <= 5; step++) store.save(sample(step));
    expect(entries(folder)).toEqual(['step-00000004', 'step-00000005']);
    const next = new CheckpointStore(folder, { keep: 1 });
    next.latest();
    next.save(sample(6));
    expect(entries(folder)).toEqual(['step-00000006']);
  });

  it('removes nothing of a run that it does not go on with', () => {
    const folder = newFolder();
    for (const step of [5, 6]) new CheckpointStore(folder).save(sample(step));
    mkdirSync(join(folder, '.writing-step-00000001-0123456789abcdef'));
    const before = entries(folder);
    const store = new CheckpointStore(folder, { keep: 1 });
    for (const step of [2, 6, 7]) store.save(sample(step));
    expect(entries(folder)).toEqual([...before, 'step-00000007']);
    expectError(() => store.latest(), 'CHECKPOINT_MISMATCH', '3 runs', 'step-00000005', 'step-00000006');
  });

  it('goes on with checkpoints of earlier versions, which name no run', () => {
    const folder = newFolder();
    const path = join(folder, 'step-00000001');
    runAtOnce(writeCheckpoint(sample(1), path, join(folder, '.writing-step-00000001-0123456789abcdef')));
    const store = new CheckpointStore(folder, { keep: 1 });
    expect(store.begin({ resume: true })).toEqual({ checkpoint: sample(1), path, skipped: [] });
    store.save(sample(2));
    expect(entries(folder)).toEqual(['step-00000002']);
    expect(new CheckpointStore(folder).latest().checkpoint).toEqual(sample(2));
  });

  it('counts only good ones, so a damaged one never costs the last good one', () => {
    const folder = newFolder();
    for (const step of [1, 2]) {
      const first = new CheckpointStore(folder);
      first.latest();
      first.save(sample(step));
    }
    flip(join(folder, 'step-00000002', 'optimizer.safetensors'), 3, 1);
    const store = new CheckpointStore(folder);
    store.latest();
    store.save(sample(3));
    expect(entries(folder)).toEqual(['step-00000001', 'step-00000002', 'step-00000003']);
    store.save(sample(4));
    expect(entries(folder)).toEqual(['step-00000003', 'step-00000004']);
  });

  it('never removes the one just saved, nor foreign files', () => {
    const folder = newFolder();
    const store = new CheckpointStore(folder);
    for (const step of [8, 9]) store.save(sample(step));
    writeFileSync(join(folder, 'notes.txt'), 'mine');
    mkdirSync(join(folder, 'step-best'));
    const path = store.save(sample(2));
    expect(store.load(path)).toEqual(sample(2));
    store.save(sample(10));
    store.save(sample(11));
    expect(entries(folder)).toEqual(['notes.txt', 'step-00000010', 'step-00000011', 'step-best']);
  });

  it('saves a step again beside the first, never over it, and prefers the later one', () => {
    const store = new CheckpointStore(newFolder());
    const first = store.save(sample(3, 'first'));
    const second = store.save(sample(3, 'second'));
    expect([basename(first), basename(second)]).toEqual(['step-00000003', 'step-00000003-r2']);
    expect(store.latest().checkpoint!.state).toBe('second');
    expect(existsSync(first)).toBe(true);
    flip(join(second, 'state.json'), 9, 4);
    expect(store.latest().checkpoint!.state).toBe('first');
    expect(basename(store.save(sample(3, 'third')))).toBe('step-00000003-r3');
    expect(store.latest().checkpoint!.state).toBe('third');
  });

  it('removes half-written folders once they are older than the kept checkpoints', () => {
    const folder = newFolder();
    const store = new CheckpointStore(folder);
    const old = '.writing-step-00000001-0123456789abcdef';
    const recent = '.writing-step-00000007-0123456789abcdef';
    for (const name of [old, recent]) mkdirSync(join(folder, name));
    store.latest();
    store.save(sample(3));
    expect(entries(folder)).toContain(old);
    store.save(sample(4));
    expect(entries(folder)).toEqual([recent, 'step-00000003', 'step-00000004']);
  });
});

describe('a faulty disk', () => {
  let folder: string;
  let files: FaultyFiles;
  let goBack: () => void;
  beforeEach(() => {
    folder = join(newFolder(), 'checkpoints');
    files = new FaultyFiles();
    goBack = files.standIn();
  });
  afterEach(() => goBack());

  const faultAt = (call: string, pattern: RegExp) => {
    files.fault = (made, path) => (made === call && pattern.test(path) ? 'EIO' : undefined);
  };

  it('that does not remove an old checkpoint costs room, and not the new one', () => {
    const store = new CheckpointStore(folder);
    for (const step of [1, 2]) store.save(sample(step));
    faultAt('remove', /step-0+1$/);
    for (const step of [3, 4]) expect(basename(store.save(sample(step)))).toBe(`step-0000000${step}`);
    expect(entries(folder)).toEqual(['step-00000001', 'step-00000003', 'step-00000004']);
    files.fault = () => undefined;
    store.save(sample(5));
    expect(entries(folder)).toEqual(['step-00000004', 'step-00000005']);
  });

  it('that cannot be listed after a save costs room only', () => {
    const store = new CheckpointStore(folder);
    for (const step of [1, 2]) store.save(sample(step));
    files.fault = (call) =>
      call === 'list' && files.calls.some((made) => /^rename .*0003$/.test(made)) ? 'EIO' : undefined;
    store.save(sample(3));
    expect(entries(folder)).toEqual(['step-00000001', 'step-00000002', 'step-00000003']);
  });

  it('that does not flush the name of a checkpoint fails the save, and a run does not go on from it unflushed', () => {
    const store = new CheckpointStore(folder);
    store.save(sample(1));
    files.fault = (call, path) =>
      call === 'flush' && path === folder && files.calls.some((made) => /^rename .*0002$/.test(made))
        ? 'EIO'
        : undefined;
    expectError(() => store.save(sample(2)), 'CHECKPOINT_NOT_WRITTEN', 'EIO');
    const next = new CheckpointStore(folder);
    expectError(() => next.begin({ resume: true }), 'CHECKPOINT_NOT_WRITTEN', 'EIO');
    // Reading it promises nothing.
    expect(next.latest().checkpoint).toEqual(sample(2));
    files.fault = () => undefined;
    expect(next.begin({ resume: true })!.checkpoint).toEqual(sample(2));
    files.cutPower('nothing');
    expect(entries(folder)).toEqual(['step-00000001', 'step-00000002']);
  });

  it('leaves a checkpoint whose name was not flushed as one of the run', () => {
    const store = new CheckpointStore(folder);
    files.fault = (call, path) => (call === 'flush' && path === folder ? 'EIO' : undefined);
    expectError(() => store.save(sample(1)), 'CHECKPOINT_NOT_WRITTEN', 'EIO');
    files.fault = () => undefined;
    for (const step of [2, 3]) store.save(sample(step));
    expect(entries(folder)).toEqual(['step-00000002', 'step-00000003']);
  });

  it('that is full leaves nothing of the checkpoint', () => {
    const store = new CheckpointStore(folder);
    store.save(sample(1));
    files.room = 200;
    expectError(() => store.save(sample(2)), 'CHECKPOINT_NOT_WRITTEN', 'ENOSPC');
    expect(entries(folder)).toEqual(['step-00000001']);
  });

  it('is read once for each checkpoint that a run goes on from, and not for its own', () => {
    const store = new CheckpointStore(folder);
    const reads = () => files.calls.filter((call) => /^open .*safetensors$/.test(call)).length;
    store.save(sample(1));
    const forOne = reads();
    for (const step of [2, 3, 4]) store.save(sample(step));
    expect(reads()).toBe(4 * forOne);
  });
});
