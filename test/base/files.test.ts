/**
 * What is read and written in parts is read and written whole, and a disk that takes nothing is an
 * error, not a wait.
 */
import { constants, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readFully, systemFiles, writeFully } from '../../src/base/index.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-files-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

it('reads and writes that end early are carried on', () => {
  const files = new FaultyFiles();
  const path = join(folder, 'file');
  const bytes = Uint8Array.from({ length: 1000 }, (_, i) => i % 251);
  const file = files.open(path, constants.O_CREAT | constants.O_RDWR);
  for (let at = 0; at < 20_000; at += bytes.length) {
    writeFully(files, file, bytes, at);
    const back = new Uint8Array(bytes.length + 1);
    expect(readFully(files, file, back, at)).toBe(bytes.length);
    expect(back.subarray(0, -1)).toEqual(bytes);
  }
  files.close(file);
  expect(readFileSync(path)).toHaveLength(20_000);
});

it('a write that takes nothing fails with what was asked for', () => {
  let calls = 0;
  const taken = [3, 0];
  const write = () => {
    const count = taken[calls++];
    if (count === undefined) throw new Error('it was asked again');
    return count;
  };
  expect(() => writeFully({ ...systemFiles, write }, 7, new Uint8Array(10), 100)).toThrow(
    'the file takes no more: 3 of 10 bytes were written at 100',
  );
});
