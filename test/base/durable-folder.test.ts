/** New folders and what is put into them survive a power cut: every entry is flushed where it stands, and names hold whole files. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { makeDurableFolder, OWNER_FOLDER, putInPlace } from '../../src/base/index.ts';
import { CheckpointStore } from '../../src/runtime/checkpoint/index.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';

let root: string;
let files: FaultyFiles;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'tributary-folder-'));
  files = new FaultyFiles();
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** Without what lies above the folder of the test. */
const flushed = () =>
  files.calls.flatMap((call) => (call.startsWith(`flush ${root}`) ? [call.slice('flush '.length)] : []));

describe('a durable folder', () => {
  it('is flushed in its parent, and so is every folder above it that was missing', () => {
    makeDurableFolder(files, join(root, 'a', 'b', 'c'), OWNER_FOLDER);
    expect(flushed().sort()).toEqual([root, join(root, 'a'), join(root, 'a', 'b')]);
  });

  it('that an earlier attempt could not flush is flushed by the next', () => {
    files.fault = (call) => (call === 'flush' ? 'EIO' : undefined);
    expect(() => makeDurableFolder(files, join(root, 'a', 'b'), OWNER_FOLDER)).toThrow('EIO');
    files.fault = () => undefined;
    files.calls.length = 0;
    makeDurableFolder(files, join(root, 'a', 'b'), OWNER_FOLDER);
    expect(flushed().sort()).toEqual([root, join(root, 'a')]);
  });

  it('does not mind folders above it that cannot be read', () => {
    makeDurableFolder(files, join(root, 'a'), OWNER_FOLDER);
    files.fault = (call) => (call === 'open' ? 'EACCES' : undefined);
    expect(() => makeDurableFolder(files, join(root, 'a'), OWNER_FOLDER)).not.toThrow();
  });
});

describe('what is put in place', () => {
  const [temporary, path] = ['.writing', 'final'];
  const put = (text: string) =>
    putInPlace(files, { temporary: join(root, temporary), path: join(root, path) }, (at) =>
      writeFileSync(at, text),
    );

  it('is there whole, with its entry flushed', () => {
    put('first');
    expect(readFileSync(join(root, path), 'utf8')).toBe('first');
    expect(flushed()).toEqual([root]);
  });

  it('leaves what was there, and nothing else, when it fails', () => {
    writeFileSync(join(root, path), 'earlier');
    files.fault = (call) => (call === 'rename' ? 'EIO' : undefined);
    expect(() => put('second')).toThrow('EIO');
    expect(readdirSync(root)).toEqual([path]);
    expect(readFileSync(join(root, path), 'utf8')).toBe('earlier');
  });

  it('is how runs keep their checkpoints', () => {
    const directory = join(root, 'runs', 'one');
    const store = new CheckpointStore(directory);
    const saved = store.save({ step: 1, epoch: 0, tensors: {}, optimizer: {}, state: {} });
    expect(existsSync(saved)).toBe(true);
    expect(readdirSync(directory)).toHaveLength(1);
  });
});
