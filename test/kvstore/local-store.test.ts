/** The store within one process. */
import { expect, it } from 'vitest';
import { createLocalStores } from '../../src/kvstore/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { storeConformance } from './conformance.ts';

storeConformance('the local store', createLocalStores);

it('uses regions of its space where they lie', async () => {
  const space = SharedSpace.create({ maxBytes: 16 * 2 ** 20 });
  const [store] = createLocalStores({ space });
  const gradient = space.allocate(64).allocate('float32', 4);
  gradient.view.fill(3);
  await store!.init({ key: 'w', value: new Float32Array(4) });
  await store!.pushpull({ key: 'w', gradient, into: gradient });
  expect([...gradient.view]).toEqual([3, 3, 3, 3]);
  await store!.close();
  await expect(store!.init({ key: 'v', value: new Float32Array(1) })).rejects.toThrow(/worker 0 is closed/);
});
