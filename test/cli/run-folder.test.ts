/** What a run has written to its folder is there after a power cut, whole. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { RunFolder } from '../../src/cli/run-folder.ts';
import { expectError } from '../data/expect-error.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';

const newFolder = temporaryFolders();
const epochs = [{ epoch: 1, step: 10, loss: 0.5 }];
let path: string;
let files: FaultyFiles;
let goBack: () => void;
let folder: RunFolder;
beforeEach(() => {
  path = join(newFolder(), 'runs', 'one');
  files = new FaultyFiles();
  goBack = files.standIn();
  folder = new RunFolder(path);
  folder.prepare({ resume: false, overwrite: false });
});
afterEach(() => {
  folder.release();
  goBack();
});

it('files and new folders survive a power cut', () => {
  folder.writeMetrics({ epochs });
  folder.writeModel(Uint8Array.of(1, 2, 3));
  files.cutPower('nothing');
  expect(folder.readEpochs(10)).toEqual(epochs);
  expect([...readFileSync(folder.modelFile)]).toEqual([1, 2, 3]);
});

it('a file that cannot be written leaves the one before it', () => {
  folder.writeMetrics({ epochs });
  files.room = 10;
  expectError(() => folder.writeMetrics({ epochs: [...epochs, ...epochs] }), 'FILE_NOT_WRITTEN', 'ENOSPC');
  files.room = Infinity;
  files.fault = (call, at) => (call === 'flush' && at.endsWith('.writing') ? 'EIO' : undefined);
  expectError(() => folder.writeMetrics({ epochs: [...epochs, ...epochs] }), 'FILE_NOT_WRITTEN', 'EIO');
  expect(folder.readEpochs(10)).toEqual(epochs);
  expect(readdirSync(path).sort()).toEqual(['metrics.json', 'training.lock']);
});

it('a file whose name cannot be flushed is reported', () => {
  files.fault = (call, at) => (call === 'flush' && at === path ? 'EIO' : undefined);
  expectError(() => folder.writeMetrics({ epochs }), 'FILE_NOT_WRITTEN', 'EIO');
});

it('folders that were made for a run that failed go with it', () => {
  folder.abandon();
  expect(existsSync(join(path, '..'))).toBe(false);
});
