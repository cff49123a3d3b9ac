/**
 * Tensors that are nowhere as a whole: written piece by piece they give the files that whole ones
 * give, and left in a file they are read from there, checked like all the rest.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { UsageError } from '../../../src/base/index.ts';
import { CheckpointStore, type StreamedTensor } from '../../../src/runtime/checkpoint/index.ts';
import { expectError } from '../../data/expect-error.ts';
import { temporaryFolders } from '../../data/temporary-folder.ts';

const newFolder = temporaryFolders();
const FILES = ['model.safetensors', 'optimizer.safetensors'] as const;
const values = Float32Array.from({ length: 1000 }, (_, i) => i / 3);
const [table, bias] = [
  { dtype: 'float32', shape: [250, 4], data: values } as const,
  { dtype: 'float32', shape: [3], data: Float32Array.of(1, 2, 3) } as const,
];
const whole = { step: 5, epoch: 1, state: null, tensors: { bias, table }, optimizer: { 'table/m': table } };

/** In pieces that end at the borders, all in the same memory. */
function streamed(borders: readonly number[], data = values): StreamedTensor {
  const room = new Float32Array(1000);
  return {
    ...{ dtype: 'float32', shape: [250, 4] },
    *pieces() {
      for (const [i, from] of [0, ...borders].entries()) {
        const piece = data.subarray(from, borders[i]);
        yield Promise.resolve().then(() => {
          room.fill(NaN).set(piece);
          return new Uint8Array(room.buffer, 0, piece.byteLength);
        });
      }
    },
  };
}

it('tensors that come in pieces make the files of whole ones', async () => {
  const expected = new CheckpointStore(newFolder()).save(whole);
  const borders = fc.uniqueArray(fc.integer({ min: 1, max: 999 }), { maxLength: 5 });
  await fc.assert(
    fc.asyncProperty(borders, borders, async (first, second) => {
      const [one, other] = [first, second].map((all) => streamed([...all].sort((a, b) => a - b)));
      const streams = { tensors: { bias, table: one! }, optimizer: { 'table/m': other! } };
      const path = await new CheckpointStore(newFolder()).saveAwaiting({ ...whole, ...streams });
      for (const file of FILES) {
        expect(readFileSync(join(path, file)).equals(readFileSync(join(expected, file)))).toBe(true);
      }
    }),
    { numRuns: 20 },
  );
});

it.each([
  ['fails on its way', () => Promise.reject(new Error('the server is gone')), /the server is gone/],
  [
    'is refused on its way',
    () => Promise.reject(new UsageError('NOT_A_NUMBER', 'not a number')),
    /^not a number$/,
  ],
  ['ends too early', () => Promise.resolve(new Uint8Array(8)), /4000 bytes came in pieces of 8 in all/],
])('of a tensor that %s nothing is left, and what was there before stays', async (_, next, message) => {
  const folder = newFolder();
  const store = new CheckpointStore(folder, { keep: 1 });
  store.save(whole);
  const broken: StreamedTensor = {
    ...{ dtype: 'float32', shape: [250, 4] },
    *pieces() {
      yield next();
    },
  };
  const saving = store.saveAwaiting({ ...whole, step: 6, tensors: { bias, table: broken } });
  await expect(saving).rejects.toThrow(message);
  expect(readdirSync(folder)).toEqual(['step-00000005']);
});

it('tensors that are left in a file are read from there, and damage in them is found', () => {
  const folder = newFolder();
  const path = new CheckpointStore(folder).save(whole);
  const isLeft = (name: string) => name.startsWith('table');
  const { checkpoint } = new CheckpointStore(folder).latest(isLeft);
  expect(Object.keys(checkpoint!.tensors)).toEqual(['bias']);
  expect(checkpoint!.tensors['bias']).toEqual(bias);
  expect(checkpoint!.optimizer).toEqual({});
  const { tensors, optimizer } = checkpoint!.stored!;
  for (const stored of [tensors['table']!, optimizer['table/m']!]) {
    expect(stored).toMatchObject({ dtype: 'float32', shape: [250, 4], length: 1000 });
    const target = new Float32Array(7);
    stored.read(990, target);
    expect(target).toEqual(values.slice(990, 997));
  }
  expectError(() => tensors['table']!.read(999, new Float32Array(2)), 'CHECKPOINT_CORRUPT');
  const file = join(path, FILES[0]);
  const bytes = readFileSync(file);
  bytes[bytes.length - 2000]! ^= 1;
  writeFileSync(file, bytes);
  const { checkpoint: none, skipped } = new CheckpointStore(folder).latest(isLeft);
  expect(none).toBeUndefined();
  expect(skipped[0]!.reason).toMatch(/model\.safetensors is damaged: expected SHA-256/);
});
