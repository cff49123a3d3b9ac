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
import { Servers } from './servers.ts';

const KEYS = 50_000;
const LENGTH = 3;
/** Keys are pushed a number of times that differs, so that steps do. */
const TWICE = 1000;

const names = Array.from({ length: KEYS }, (_, i) => `layers.${i}.attention.weight`);
const valueOf = (key: number, added: number) => new Float32Array(LENGTH).fill(key + added);

describe.skipIf(!hasSharedMemory()).each([true, false])(
  'a store of 50,000 keys, memory shared: %s',
  (sharedMemory) => {
    let folder: string;
    let ground: Servers;
    let again: ParameterServer | undefined;

    beforeEach(async () => {
      folder = mkdtempSync(join(tmpdir(), 'tributary-many-keys-'));
      again = undefined;
      ground = await Servers.start(1, { log: () => undefined, cores: 2 });
    });

    afterEach(async () => {
      await ground.closeStores();
      await ground.close();
      await again?.close();
      rmSync(folder, { recursive: true, force: true });
    });

    it(
      'opens and exchanges them in one call each, and has them after a restart',
      { timeout: 300_000 },
      async () => {
        const service = { folder, lostWorkers: 'wait', maxChunks: 4 * KEYS } as const;
        const access = ground.createService(service);
        const options = { access, sharedMemory, log: () => undefined };
        const [store, other] = await ground.connect(2, options);
        const both = [store!, other!] as const;
        const inits = names.map((key, i) => ({ key, value: valueOf(i, 0) }));
        await Promise.all(both.map((one) => one.init(inits)));
        const ones = valueOf(1, 0);
        const pushpull = (count: number) =>
          Promise.all(
            both.map(async (one) => {
              const into = names.slice(0, count).map(() => new Float32Array(LENGTH));
              await one.pushpull(
                names.slice(0, count).map((key, i) => ({ key, gradient: ones, into: into[i]! })),
              );
              return into;
            }),
          );
        const [first] = await pushpull(KEYS);
        expect(first!.findIndex((value, i) => value[LENGTH - 1] !== i + 2)).toBe(-1);
        await pushpull(TWICE);
        await Promise.all(both.map((one) => one.checkpoint(2)));
        await pushpull(KEYS);
        const { port } = ground.servers[0]!;
        await ground.servers[0]!.close();
        again = await ParameterServer.start({ port, cores: 2, log: () => undefined });
        again.createService({ ...access, ...service });
        await Promise.all(
          both.map((one) => expect(one.barrier()).rejects.toMatchObject({ code: 'REWOUND' })),
        );
        expect(await Promise.all(both.map((one) => one.resume()))).toEqual([2, 2]);
        const [last] = await pushpull(KEYS);
        expect(last!.findIndex((value, i) => value[0] !== i + 4 + (i < TWICE ? 2 : 0))).toBe(-1);
      },
    );
  },
);

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
