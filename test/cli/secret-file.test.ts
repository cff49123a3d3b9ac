/** A secret that a command has made is on the disk before anybody is given it. */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { openSecretFile } from '../../src/cli/secret-file.ts';
import { expectError } from '../data/expect-error.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';

const newFolder = temporaryFolders();
let folder: string;
let path: string;
let files: FaultyFiles;
let goBack: () => void;
beforeEach(() => {
  folder = join(newFolder(), 'nonces');
  path = join(folder, 'first.nonce');
  files = new FaultyFiles();
  goBack = files.standIn();
});
afterEach(() => goBack());

const flushed = () => files.calls.filter((call) => call.startsWith('flush '));

it('is flushed, then its name, then that of its folder, for this user only', () => {
  const { secret, isNew } = openSecretFile(path);
  expect(isNew).toBe(true);
  expect(readFileSync(path, 'utf8')).toBe(`${secret}\n`);
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readdirSync(folder)).toEqual(['first.nonce']);
  const [file] = flushed().filter((call) => call.startsWith(`flush ${path}.`));
  expect(flushed().indexOf(file!)).toBeLessThan(flushed().lastIndexOf(`flush ${folder}`));
  expect(flushed()).toContain(`flush ${join(folder, '..')}`);
  expect(openSecretFile(path)).toMatchObject({ secret, isNew: false });
});

it('is given to nobody while its name may be lost', () => {
  files.fault = (call, at) => (call === 'flush' && at === folder ? 'EIO' : undefined);
  const open = () => openSecretFile(path);
  expectError(open, 'FILE_NOT_WRITTEN', path, 'EIO');
  expectError(open, 'FILE_NOT_WRITTEN', path, 'EIO');
  files.fault = () => undefined;
  files.calls.length = 0;
  expect(openSecretFile(path).isNew).toBe(false);
  expect(flushed()).toEqual([`flush ${folder}`]);
});

it('leaves nothing where it cannot be flushed', () => {
  files.fault = (call, at) => (call === 'flush' && at.startsWith(`${path}.`) ? 'EIO' : undefined);
  expectError(() => openSecretFile(path), 'FILE_NOT_WRITTEN', path, 'EIO');
  expect(readdirSync(folder)).toEqual([]);
});

it('is read where this user may not look into the folder', () => {
  const { secret } = openSecretFile(path);
  files.fault = (call) => (call === 'open' ? 'EACCES' : undefined);
  expect(openSecretFile(path)).toMatchObject({ secret, isNew: false });
});
