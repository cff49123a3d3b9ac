/**
 * A server in the place of one that has ended: what its workers tell it again, and where they go
 * on.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { RemoteStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import type { ServiceAccess, ServiceOptions } from '../../src/server/index.ts';
import { Servers } from './servers.ts';

const filled = (value: number) => new Float32Array(1000).fill(value);
const KEYS = ['first', 'second', 'third'];

describe.skipIf(!hasSharedMemory())('a server of keys that were opened one after the other', () => {
  let folder: string;
  let ground: Servers;
  let again: ParameterServer | undefined;
  let service: Partial<ServiceOptions>;
  let access: ServiceAccess;
  let store: RemoteStore;

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'tributary-restarted-'));
    again = undefined;
    ground = await Servers.start(1, { log: () => undefined });
    service = { folder, lostWorkers: 'wait' };
    access = ground.createService(service);
    [store] = (await ground.connect(1, { access, sharedMemory: false, log: () => undefined })) as [
      RemoteStore,
    ];
    for (const [i, key] of KEYS.entries()) await store.init({ key, value: filled(i) });
  });

  afterEach(async () => {
    await ground.closeStores();
    await ground.close();
    await again?.close();
    rmSync(folder, { recursive: true, force: true });
  });

  async function startAgain(): Promise<void> {
    const { port } = ground.servers[0]!;
    await ground.servers[0]!.close();
    again = await ParameterServer.start({ port, log: () => undefined });
    again.createService({ ...access, ...service });
  }

  async function values(): Promise<number[]> {
    const pulled: number[] = [];
    for (const key of KEYS) {
      const into = filled(-1);
      await store.pull({ key, into });
      expect(into).toEqual(filled(into[0]!));
      pulled.push(into[0]!);
    }
    return pulled;
  }

  it('has all of them and their first values before anything was trained', async () => {
    await startAgain();
    expect(await values()).toEqual([0, 1, 2]);
  });

  it('goes back to its checkpoint with all of them', async () => {
    await store.push(KEYS.map((key) => ({ key, gradient: filled(10) })));
    await store.checkpoint(1, { isDurable: true });
    await store.push(KEYS.map((key) => ({ key, gradient: filled(10) })));
    await startAgain();
    await expect(store.barrier()).rejects.toMatchObject({ code: 'REWOUND' });
    expect(await store.resume()).toBe(1);
    expect(await values()).toEqual([10, 11, 12]);
  });
});
