/**
 * A push that a server refuses: its number is free again, so that the same store can push on, and a call that other cores have
 * taken is completed by its repetition, which counts nothing twice.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import type { ServiceOptions } from '../../src/server/index.ts';
import { FaultyFiles } from '../server/durability/faulty-files.ts';
import { OneThreadHost } from '../server/one-thread-host.ts';
import { MeddlingProxy } from './meddling-proxy.ts';
import { Servers } from './servers.ts';

const LENGTH = 300;
const CHUNK_BYTES = 256;
const ROW = 3;
const TABLE_ROWS = LENGTH / ROW;
const filled = (value: number) => new Float32Array(LENGTH).fill(value);
const allRows = Int32Array.from({ length: TABLE_ROWS }, (_, row) => row);

/** The same in all elements, which are on all cores. */
async function valueOf(store: RemoteStore, key = 'w'): Promise<number> {
  const into = filled(NaN);
  await store.pull({ key, into });
  expect(new Set(into).size, 'every element has seen the same pushes').toBe(1);
  return into[0]!;
}

const init = (store: RemoteStore) =>
  store.init([
    { key: 'w', value: filled(0) },
    { key: 't', value: filled(0), rowLength: ROW },
  ]);
const pushes = {
  dense: (store: RemoteStore, value = 1) => store.push({ key: 'w', gradient: filled(value) }),
  rows: (store: RemoteStore, value = 1) => store.pushRows('t', allRows, filled(value)),
};
const KEYS = { dense: 'w', rows: 't' } as const;

describe('an asynchronous push that could not be logged', () => {
  const access = { namespace: 'refused', nonce: 'ab'.repeat(32) };
  const refused = { code: 'FILE_NOT_WRITTEN' };
  let folder: string;
  let files: FaultyFiles;
  let server: ParameterServer | undefined;
  let store: RemoteStore | undefined;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'tributary-refused-'));
    files = new FaultyFiles();
  });
  afterEach(async () => {
    await store?.close();
    await server?.close();
    rmSync(folder, { recursive: true, force: true });
  });

  async function start(cores: number, options: Partial<ServiceOptions> = {}): Promise<RemoteStore> {
    server = await ParameterServer.start({ cores }, new OneThreadHost({ files }));
    server.createService({ ...access, folder, ...options });
    store = await RemoteStore.connect({
      ...{ servers: [`${server.address}:${server.port}`], access, worker: 0, workers: 1 },
      ...{ chunkBytes: CHUNK_BYTES, updater: 'accumulate', consistency: { kind: 'asynchronous' } },
    });
    await init(store);
    return store;
  }

  /** The disk of these logs is full. */
  const fill = (logs: RegExp) => {
    files.fault = (call, path) => (call === 'write' && logs.test(path) ? 'ENOSPC' : undefined);
  };
  const makeRoom = () => (files.fault = () => undefined);

  it.each(['dense', 'rows'] as const)('leaves its number to the next of the same store: %s', async (kind) => {
    const own = await start(1);
    await pushes[kind](own);
    fill(/\.pushes$/);
    for (let i = 0; i < 2; i++) await expect(pushes[kind](own)).rejects.toMatchObject(refused);
    makeRoom();
    for (let i = 0; i < 3; i++) await pushes[kind](own);
    expect(await valueOf(own, KEYS[kind])).toBe(4);
  });

  it('takes those with it that were sent behind it, and all can be pushed again', async () => {
    const own = await start(1);
    await pushes.dense(own);
    fill(/\.pushes$/);
    const all = await Promise.allSettled([1, 2, 3].map(() => pushes.dense(own)));
    expect(all.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected']);
    makeRoom();
    await Promise.all([1, 2, 3].map(() => pushes.dense(own)));
    expect(await valueOf(own)).toBe(4);
  });

  it.each(['dense', 'rows'] as const)(
    'on one of two cores is completed when it is repeated: %s',
    async (kind) => {
      const own = await start(2);
      await pushes[kind](own);
      fill(/core-1\.\d+\.pushes$/);
      for (let i = 0; i < 2; i++) {
        await expect(pushes[kind](own, 10)).rejects.toMatchObject({
          ...refused,
          message: expect.stringMatching(/core-1.*Other cores have taken .* repeat the call/) as string,
        });
      }
      makeRoom();
      await pushes[kind](own, 10);
      await pushes[kind](own);
      expect(await valueOf(own, KEYS[kind])).toBe(12);
    },
  );

  it('keeps the numbers of all keys of its call, so that its repetition counts none of them twice', async () => {
    const own = await start(1);
    await pushes.dense(own);
    let writes = 0;
    files.fault = (call, path) =>
      call === 'write' && path.endsWith('.pushes') && ++writes > 1 ? 'ENOSPC' : undefined;
    const both = ['w', 't'].map((key) => ({ key, gradient: filled(10) }));
    await expect(own.push(both)).rejects.toMatchObject(refused);
    makeRoom();
    await own.push(both);
    await pushes.dense(own);
    expect([await valueOf(own), await valueOf(own, 't')]).toEqual([12, 10]);
  });

  it('for a flush that failed counts once, when a checkpoint was written', async () => {
    const own = await start(1, { durability: 'disk' });
    await pushes.dense(own);
    files.fault = (call, path) => (call === 'flush' && path.endsWith('.pushes') ? 'EIO' : undefined);
    for (let i = 0; i < 3; i++) await expect(pushes.dense(own)).rejects.toMatchObject(refused);
    makeRoom();
    await own.checkpoint(1, { isDurable: true });
    for (let i = 0; i < 3; i++) await pushes.dense(own);
    expect(await valueOf(own)).toBe(4);
  });
});

describe.skipIf(!hasSharedMemory())('a push in lock step that one of two servers refuses', () => {
  let ground: Servers;
  let proxy: MeddlingProxy;
  beforeEach(async () => {
    ground = await Servers.start(2);
    proxy = await MeddlingProxy.start(ground.servers[1]!.port);
  });
  afterEach(async () => {
    proxy.meddle = (text) => text;
    await ground.closeStores();
    await proxy.close();
    await ground.close();
  });

  /** Worker 0 reaches the second server through the proxy only. */
  async function connect(options: Partial<RemoteStoreOptions> = {}): Promise<[RemoteStore, RemoteStore]> {
    const access = ground.createService();
    const common = { access, workers: 2, sharedMemory: false, chunkBytes: CHUNK_BYTES, ...options };
    const stores = await Promise.all([
      ground.connect(1, { ...common, servers: [ground.addresses[0]!, proxy.address] }),
      ground.connect(1, { ...common, worker: 1 }),
    ]);
    const [first, second] = stores.flat();
    await Promise.all([first!, second!].map(init));
    return [first!, second!];
  }

  /** The second server gets another number of the next push, which it refuses. */
  function refuseNext(): void {
    let isDone = false;
    proxy.meddle = (text) => {
      const changed = text.replace(/"step(s?)":(\[?)2/, '"step$1":$29');
      if (isDone || changed === text) return text;
      isDone = true;
      return changed;
    };
  }

  it.each(['dense', 'rows'] as const)('is completed when it is repeated: %s', async (kind) => {
    const [first, second] = await connect();
    await Promise.all([first, second].map((store) => pushes[kind](store)));
    refuseNext();
    const other = pushes[kind](second, 100);
    await expect(pushes[kind](first, 10)).rejects.toThrow(/pushed step 9 .*Other cores have taken/);
    await Promise.all([pushes[kind](first, 10), other]);
    await Promise.all([first, second].map((store) => pushes[kind](store)));
    expect(await valueOf(second, KEYS[kind])).toBe(114);
  });

  it.each(['dense', 'rows'] as const)('is pushed again before it is applied: held, %s', async (kind) => {
    const [first, second] = await connect({ held: true });
    for (const value of [1, 10]) {
      if (value === 10) refuseNext();
      const other = pushes[kind](second, 10 * value);
      if (value === 10) {
        await expect(pushes[kind](first, value)).rejects.toThrow(/pushed step 9/);
        await expect(first.apply()).rejects.toThrow(/key '[wt]' .*was refused.*push it again/);
      }
      await Promise.all([pushes[kind](first, value), other]);
      await Promise.all([first, second].map((store) => store.apply()));
    }
    expect(await valueOf(second, KEYS[kind])).toBe(121);
  });
});
