/**
 * Stores of so many keys that what names them all is longer than a message may be: values, and going
 * back to a checkpoint on another server.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { openRequests } from '../../src/kvstore/remote/open-requests.ts';
import { planKeys } from '../../src/kvstore/remote/key-plan.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { MEMBER_LIMITS, ParameterServer } from '../../src/server/index.ts';
import { each, Servers } from './servers.ts';

const LENGTH = 3;
/** Keys that are pushed once more than the others, so that steps differ. */
const MORE = 1000;

describe.skipIf(!hasSharedMemory()).each([
  { keys: 50_000, workers: 1, sharedMemory: true },
  { keys: 5000, workers: 2, sharedMemory: false },
])('$keys keys of $workers workers, memory shared: $sharedMemory', ({ keys, workers, sharedMemory }) => {
  let folder: string;
  let ground: Servers;
  let again: ParameterServer | undefined;

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'tributary-many-keys-'));
    again = undefined;
    ground = await Servers.start(1, { log: () => undefined });
  });

  afterEach(async () => {
    await ground.closeStores();
    await ground.close();
    await again?.close();
    rmSync(folder, { recursive: true, force: true });
  });

  it('are opened and exchanged in one call each, and are there after a restart', async () => {
    const service = { folder, lostWorkers: 'wait' } as const;
    const access = ground.createService(service);
    const options = { access, sharedMemory, log: () => undefined };
    const stores = await ground.connect(workers, options);
    const names = Array.from({ length: keys }, (_, i) => `layers.${i}.attention.weight`);
    const inits = names.map((key, i) => ({ key, value: new Float32Array(LENGTH).fill(i) }));
    await each(stores, (store) => store.init(inits));
    const memory = stores.map((store) => [store.allocate(keys * LENGTH), store.allocate(keys * LENGTH)]);
    /** Elements that are not what they were at the start and `added` more. */
    const pushpull = async (count: number, added: (key: number) => number): Promise<number[]> => {
      const wrong = await each(stores, async (store, worker) => {
        const [gradients, values] = memory[worker]!;
        gradients!.view.fill(1);
        const of = (tensor: typeof gradients, i: number) => tensor!.slice(LENGTH * i, LENGTH);
        const some = names.slice(0, count);
        await store.pushpull(
          some.map((key, i) => ({ key, gradient: of(gradients, i), into: of(values, i) })),
        );
        const expected = (at: number) => Math.floor(at / LENGTH) + added(Math.floor(at / LENGTH));
        const seen = [...values!.view.subarray(0, LENGTH * count)];
        return seen.flatMap((value, at) => (value === expected(at) ? [] : [at]));
      });
      return wrong.flat();
    };
    expect(await pushpull(keys, () => workers)).toEqual([]);
    expect(await pushpull(MORE, () => 2 * workers)).toEqual([]);
    await each(stores, (store) => store.checkpoint(2, { isDurable: true }));
    expect(await pushpull(MORE, () => 3 * workers)).toEqual([]);
    const { port } = ground.servers[0]!;
    await ground.servers[0]!.close();
    again = await ParameterServer.start({ port, log: () => undefined });
    again.createService({ ...access, ...service });
    await each(stores, (store) => expect(store.barrier()).rejects.toMatchObject({ code: 'REWOUND' }));
    expect(await each(stores, (store) => store.resume())).toEqual(stores.map(() => 2));
    expect(await pushpull(keys, (key) => (key < MORE ? 3 : 2) * workers)).toEqual([]);
  }, 600_000);
});

describe('opening many keys', () => {
  it('is cut into requests that a server reads, which name each key and piece once', () => {
    const placement = { servers: 2, coresPerServer: 2 };
    const shapes = Array.from({ length: 9000 }, (_, i) => ({
      key: `key ${i} ${'n'.repeat(i % 500)}`,
      length: i % 7 === 0 ? 400_000 : 5,
      rowLength: undefined,
    }));
    const pieces = planKeys(shapes, { ...placement, chunkBytes: 4096 });
    const byCore = Array.from({ length: 4 }, (_, core) => pieces.filter((piece) => piece.core === core));
    const requests = openRequests(
      shapes.map((shape) => byCore.map(() => ({ first: 0, shape }))),
      byCore,
    );
    const longest = Math.max(
      ...requests.flatMap(({ cores }) => cores.map(({ header }) => JSON.stringify(header).length)),
    );
    expect(longest).toBeLessThan(MEMBER_LIMITS.headerBytes);
    expect(requests.reduce((sum, { keyCount }) => sum + keyCount, 0)).toBe(shapes.length);
    for (const [core, own] of byCore.entries()) {
      const sent = requests.flatMap(({ cores }) => cores[core]!.pieces);
      expect(new Set(sent)).toEqual(new Set(own));
      expect(sent).toHaveLength(own.length);
    }
  });

  it('of none is a request all the same, by which calls are counted', () => {
    expect(openRequests([], [[], []])).toHaveLength(1);
  });

  it('names a key whose chunks are too many for one', () => {
    const shape = { key: 'k', length: 2 ** 24, rowLength: 16 };
    const pieces = [planKeys([shape], { servers: 1, coresPerServer: 1, chunkBytes: 64 })];
    expect(() => openRequests([[{ first: 0, shape }]], pieces)).toThrow(
      /key 'k' of 16777216 elements is cut into 1048576 chunks on a core, .* use larger chunks \(chunkBytes\)/,
    );
  });
});
