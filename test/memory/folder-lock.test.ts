/** A folder is one process's at a time, and nothing that is left of a dead one is in the way. */
import { spawnSync } from 'node:child_process';
import {
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { FolderLock, lockableFiles } from '../../src/memory/index.ts';
import type { LockableFiles } from '../../src/memory/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';

const LOCK_FILE = 'test.lock';
const folder = temporaryFolders();
const take = (path: string, files: LockableFiles = lockableFiles) =>
  FolderLock.take({
    ...{ files, path: join(path, LOCK_FILE), mode: 0o600 },
    refusal: (pid) => new Error(`process ${pid} has it`),
  });

// Elsewhere files cannot be locked.
describe.skipIf(process.platform !== 'linux')('the lock of a folder', () => {
  test('is held by one at a time, and leaves nothing behind', () => {
    const path = folder();
    const lock = take(path);
    expect(() => take(path)).toThrow(`process ${process.pid} has it`);
    lock.release();
    expect(readdirSync(path)).toEqual([]);
    take(path).release();
  });

  test('names its owner where reads and writes end early', () => {
    const path = folder();
    const files = new FaultyFiles();
    for (let i = 0; i < 20; i++) {
      const lock = take(path, files);
      expect(() => take(path, files)).toThrow(`process ${process.pid} has it`);
      lock.release();
    }
  });

  test('leaves that of a new folder alone', () => {
    const path = join(folder(), 'run');
    mkdirSync(path);
    const old = take(path);
    rmSync(path, { recursive: true });
    mkdirSync(path);
    const lock = take(path);
    old.release();
    expect(() => take(path)).toThrow('has it');
    lock.release();
  });

  test.each([
    ['a symbolic link', symlinkSync, 'is a symbolic link'],
    ['a second name of a file', linkSync, 'has 2 names'],
  ])('is never %s: what that leads to stays as it is', (_what, link, fault) => {
    const path = folder();
    const victim = join(folder(), 'victim');
    writeFileSync(victim, 'keep');
    link(victim, join(path, LOCK_FILE));
    expect(() => take(path)).toThrow(
      expect.objectContaining({
        code: 'FILE_NOT_WRITTEN',
        message: expect.stringContaining(fault) as string,
      }),
    );
    expect(readFileSync(victim, 'utf8')).toBe('keep');
    expect(readdirSync(path)).toEqual([LOCK_FILE]);
  });

  test('is never made by a symbolic link that leads to nothing', () => {
    const path = folder();
    const victim = join(folder(), 'victim');
    symlinkSync(victim, join(path, LOCK_FILE));
    expect(() => take(path)).toThrow('is a symbolic link');
    expect(existsSync(victim)).toBe(false);
  });

  test('is a file: a folder or a pipe of its name is refused', () => {
    const path = folder();
    mkdirSync(join(path, LOCK_FILE));
    expect(() => take(path)).toThrow('is a folder');
    rmSync(join(path, LOCK_FILE), { recursive: true });
    expect(spawnSync('mkfifo', [join(path, LOCK_FILE)]).status).toBe(0);
    expect(() => take(path)).toThrow('is no regular file');
  });

  test('holds on a full disk, where only its owner has no name', () => {
    const path = folder();
    const full = Object.assign(new Error('ENOSPC'), { code: 'ENOSPC' });
    const write = () => {
      throw full;
    };
    const lock = take(path, { ...lockableFiles, write });
    expect(() => take(path)).toThrow('process undefined has it');
    lock.release();
    const open = write;
    expect(() => take(path, { ...lockableFiles, open })).toThrow(
      expect.objectContaining({ code: 'FILE_NOT_WRITTEN' }),
    );
  });
});
