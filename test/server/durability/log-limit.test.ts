/**
 * What a service may write to its push logs between two checkpoints is limited, so that no tenant fills the disk of all:
 * counted in bytes of files, across restarts and checkpoints that failed.
 */
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../../src/kvstore/index.ts';
import { ParameterServer } from '../../../src/server/index.ts';
import type { ServiceOptions } from '../../../src/server/index.ts';
import { OneThreadHost } from '../one-thread-host.ts';
import { FaultyFiles } from './faulty-files.ts';

const ACCESS = { namespace: 'kept', nonce: 'ab'.repeat(32) };
const LENGTH = 256;
/** Of one push with its head and checksum, at least. */
const PUSH_BYTES = 4 * LENGTH + 68;
const MAX_LOG_BYTES = 32 * PUSH_BYTES;

let folder: string;
let files: FaultyFiles;
let server: ParameterServer;
let store: RemoteStore;
let log: string[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-log-limit-'));
  files = new FaultyFiles();
  log = [];
});

afterEach(async () => {
  await end();
  rmSync(folder, { recursive: true, force: true });
});

async function start(options: Partial<ServiceOptions> & { cores?: number } = {}): Promise<void> {
  const { cores = 1, ...service } = options;
  server = await ParameterServer.start(
    { cores, log: (line) => log.push(line) },
    new OneThreadHost({ files }),
  );
  server.createService({ ...ACCESS, folder, maxLogBytes: cores * MAX_LOG_BYTES, ...service });
  store = await RemoteStore.connect({
    ...{ servers: [`${server.address}:${server.port}`], access: ACCESS, worker: 0, workers: 1 },
    // Sums show a push that counts twice or not at all.
    ...{ consistency: { kind: 'asynchronous' }, updater: 'accumulate', chunkBytes: 4 * LENGTH },
  });
  for (let core = 0; core < cores; core++) {
    await store.init({ key: `w${core}`, value: new Float32Array(LENGTH) });
  }
}

async function end(): Promise<void> {
  await store.close();
  await server.close();
}

async function restart(): Promise<void> {
  await end();
  await start();
}

/** Pushes ones until one is refused, or so often. */
async function push(times: number, key = 'w0'): Promise<{ taken: number; refusal?: unknown }> {
  for (let taken = 0; taken < times; taken++) {
    try {
      await store.push({ key, gradient: new Float32Array(LENGTH).fill(1) });
    } catch (refusal) {
      return { taken, refusal };
    }
  }
  return { taken: times };
}

async function count(key = 'w0'): Promise<number> {
  const into = new Float32Array(LENGTH);
  await store.pull({ key, into });
  expect(new Set(into).size, 'every element has seen the same pushes').toBe(1);
  return into[0]!;
}

const logs = () => readdirSync(folder).filter((name) => name.endsWith('.pushes'));
const logBytes = () => logs().reduce((sum, name) => sum + statSync(join(folder, name)).size, 0);
const overLimit = expect.objectContaining({
  code: 'FILE_NOT_WRITTEN',
  message: expect.stringMatching(
    new RegExp(`have \\d+ bytes since the last checkpoint.* of ${MAX_LOG_BYTES}.*call checkpoint\\(\\)`),
  ) as string,
}) as Error;

describe('the push logs of a service', () => {
  it('take only so many bytes; what was taken is kept, and a checkpoint makes room again', async () => {
    await start();
    const { taken, refusal } = await push(100);
    expect(refusal).toEqual(overLimit);
    expect(taken).toBeGreaterThan(20);
    expect(logBytes()).toBeLessThanOrEqual(MAX_LOG_BYTES);
    expect(await push(1)).toEqual({ taken: 0, refusal: overLimit });
    expect(await count()).toBe(taken);
    await store.checkpoint(1, { isDurable: true });
    const again = await push(100);
    expect(again.refusal).toEqual(overLimit);
    expect(again.taken).toBeGreaterThan(20);
    await store.checkpoint(2, { isDurable: true });
    expect((await push(1)).taken).toBe(1);
    expect(logBytes()).toBeLessThanOrEqual(2 * MAX_LOG_BYTES);
    await restart();
    expect(await count()).toBe(taken + again.taken + 1);
  });

  it('say so in the log of the server when half of them is written, once until a checkpoint', async () => {
    await start();
    const warnings = () => log.filter((line) => line.includes('call checkpoint()')).length;
    await push(10);
    expect(warnings()).toBe(0);
    await push(10);
    expect(warnings()).toBe(1);
    await store.checkpoint(1, { isDurable: true });
    await push(20);
    expect(warnings()).toBe(2);
  });

  it('count what was written before a restart', async () => {
    await start();
    const { taken } = await push(15);
    await restart();
    const { taken: more, refusal } = await push(100);
    expect(refusal).toEqual(overLimit);
    expect(taken + more).toBeLessThanOrEqual(32);
    await restart();
    expect(await push(1)).toEqual({ taken: 0, refusal: overLimit });
    await store.checkpoint(1, { isDurable: true });
    expect((await push(1)).taken).toBe(1);
    await restart();
    expect(await count()).toBe(taken + more + 1);
  });

  it('get no room by a checkpoint that was not written', async () => {
    await start();
    await push(100);
    const bytes = logBytes();
    files.fault = (call, path) => (call === 'write' && /writing-step/.test(path) ? 'ENOSPC' : undefined);
    for (let step = 1; step < 40; step++) {
      await expect(store.checkpoint(step, { isDurable: true })).rejects.toMatchObject({
        code: 'CHECKPOINT_NOT_WRITTEN',
      });
      expect((await push(1)).refusal).toEqual(overLimit);
    }
    expect(logs()).toHaveLength(2);
    expect(logBytes()).toBeLessThan(bytes + 4096);
    files.fault = () => undefined;
    await store.checkpoint(40, { isDurable: true });
    expect((await push(1)).taken).toBe(1);
  });

  it('get no room without an end by the same checkpoint, written again and again', async () => {
    await start();
    await store.checkpoint(1, { isDurable: true });
    let taken = 0;
    for (let i = 0; i < 5; i++) {
      taken += (await push(100)).taken;
      files.fault = (call, path) => (call === 'write' && /writing-step/.test(path) ? 'ENOSPC' : undefined);
      await expect(store.checkpoint(2, { isDurable: true })).rejects.toThrow();
      files.fault = () => undefined;
      await store.checkpoint(1, { isDurable: true });
    }
    // All logs since the beginning are kept for want of a second checkpoint.
    expect(logBytes()).toBeLessThanOrEqual(2 * MAX_LOG_BYTES);
    await restart();
    expect((await push(100)).refusal).toMatchObject({
      message: expect.stringContaining('later step') as string,
    });
    expect(logBytes()).toBeLessThanOrEqual(2 * MAX_LOG_BYTES);
    await store.checkpoint(2, { isDurable: true });
    expect((await push(1)).taken).toBe(1);
    expect(await count()).toBe(taken + 1);
  });

  it('have a share on each core', async () => {
    await start({ cores: 2 });
    const [first, second] = [await push(100, 'w0'), await push(100, 'w1')];
    expect([first.refusal, second.refusal]).toEqual([overLimit, overLimit]);
    expect(logBytes()).toBeLessThanOrEqual(2 * MAX_LOG_BYTES);
  });

  it('cannot be limited to nothing', async () => {
    await start();
    const fault = { code: 'INVALID_ARGUMENT', message: expect.stringContaining('maxLogBytes') as string };
    expect(() => server.createService({ namespace: 'b', maxLogBytes: 0 })).toThrow(
      expect.objectContaining(fault) as Error,
    );
  });
});
