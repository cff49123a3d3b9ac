import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readPeerTensors, writePeerTensors, type PeerTensor } from '../../src/bench/index.ts';

let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'peer-tensors-'));
});
afterAll(() => rm(folder, { recursive: true }));

const tensor: fc.Arbitrary<Omit<PeerTensor, 'name'>> = fc
  .tuple(fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 3 }), fc.boolean())
  .chain(([shape, integers]): fc.Arbitrary<Omit<PeerTensor, 'name'>> => {
    const length = shape.reduce((a, b) => a * b, 1);
    const range = { minLength: length, maxLength: length };
    return integers
      ? fc.int32Array(range).map((data) => ({ shape, data }))
      : fc.float32Array(range).map((data) => ({ shape, data }));
  });

describe('tensor files for peers', () => {
  it('give back every tensor bit by bit', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(tensor, { maxLength: 5 }), async (list) => {
        const tensors: PeerTensor[] = list.map((entry, i) => ({ ...entry, name: `t${i}` }));
        const read = await readPeerTensors(await writePeerTensors(folder, 'law', tensors));
        expect([...read.values()]).toEqual(tensors);
      }),
      { numRuns: 30 },
    );
  });

  it('refuse data that does not fill the shape, naming the tensor', async () => {
    const short = { name: 'fc1.bias', shape: [3], data: new Float32Array(2) };
    await expect(writePeerTensors(folder, 'short', [short])).rejects.toThrow(
      /fc1\.bias.*3 elements but has 2/,
    );
  });

  it('refuse a manifest that reaches outside the data file', async () => {
    const path = await writePeerTensors(folder, 'cut', [
      { name: 'w', shape: [4], data: new Float32Array(4) },
    ]);
    await writeFile(join(folder, 'cut.bin'), new Uint8Array(12));
    await expect(readPeerTensors(path)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      facts: { name: 'w', actual: 12 },
    });
  });

  it('refuse a manifest of another form', async () => {
    await writeFile(
      join(folder, 'odd.json'),
      '{"data": "odd.bin", "tensors": [{"name": "w", "dtype": "float64"}]}',
    );
    await expect(readPeerTensors(join(folder, 'odd.json'))).rejects.toMatchObject({ code: 'INVALID_DATA' });
  });
});
