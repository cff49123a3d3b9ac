/**
 * What a tenant may take of a server's memory: a quota over all threads, in which everything counts that takes room, also what
 * it makes the server copy and map; and a share of the ranges that the space can keep apart.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { ParameterServer, segmentPrefix } from '../../src/server/index.ts';
import type { ServiceAccess, ServiceOptions } from '../../src/server/index.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import type { ServerHost } from '../../src/server/server-host.ts';
import { openRequest, RawWorker, SETTINGS, until } from './raw-worker.ts';
import type { Heard } from './raw-worker.ts';

const MIB = 2 ** 20;
const errorOf = (heard: Heard | 'closed'): unknown => (heard === 'closed' ? heard : heard.header.error);

describe.skipIf(!hasSharedMemory())('the quota of a tenant', () => {
  const closing: { close(): unknown }[] = [];
  let server: ParameterServer;

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function start(maxBytes: number, host: ServerHost = systemServerHost): Promise<void> {
    server = await ParameterServer.start({ space: SharedSpace.create({ maxBytes }) }, host);
    closing.push(server);
  }

  async function worker(options: Partial<ServiceOptions> = {}): Promise<[RawWorker, ServiceAccess]> {
    const access = server.createService({ namespace: `service-${server.services.length}`, ...options });
    const raw = await RawWorker.admitted(server, access);
    closing.push(raw);
    return [raw, access];
  }

  const bytesOf = (access: ServiceAccess): number =>
    server.services.find(({ namespace }) => namespace === access.namespace)!.bytes;

  it('is half of the space unless it is said, and leaves room for another', async () => {
    await start(64 * MIB);
    const [greedy] = await worker();
    let refused: unknown;
    for (let i = 0; i < 64 && refused === undefined; i++) {
      refused = errorOf(await greedy.ask(openRequest(`k${i}`, MIB / 4, i, i)));
    }
    expect(refused).toMatchObject({
      code: 'OUT_OF_SHARED_MEMORY',
      message: expect.stringContaining('--max-bytes') as string,
    });
    const [other] = await worker();
    for (let i = 0; i < 4; i++) {
      expect(errorOf(await other.ask(openRequest(`theirs${i}`, MIB, i, i)))).toBeUndefined();
    }
  });

  it('counts the segments of workers, and takes no room for one that is too large', async () => {
    await start(64 * MIB);
    const [raw, access] = await worker({ maxBytes: 4 * MIB });
    const space = SharedSpace.create({ maxBytes: 64 * MIB });
    const name = (part: string) => `${segmentPrefix(access.namespace, access.nonce)}${part}`;
    closing.push(space.createSegment(name('small'), MIB), space.createSegment(name('large'), 32 * MIB));
    await raw.done({ op: 'map', segment: name('small') });
    expect(bytesOf(access)).toBeGreaterThanOrEqual(MIB);
    const heard = await raw.ask({ op: 'map', segment: name('large') });
    expect(errorOf(heard)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    expect(bytesOf(access)).toBeLessThan(2 * MIB);
  });

  it.each<[string, (batch: number) => object]>([
    [
      'pieces of one element',
      (batch) => ({
        keys: [{ key: batch, length: 256 }],
        pieces: Array.from({ length: 256 }, (_, i) => ({ key: 0, start: i, length: 1, ranges: [[0, 1]] })),
        firstPiece: 256 * batch,
      }),
    ],
    [
      'keys without pieces',
      (batch) => ({
        keys: Array.from({ length: 256 }, (_, i) => ({ key: 256 * batch + i, length: 0 })),
        pieces: [],
        firstPiece: 0,
      }),
    ],
  ])('counts what a core remembers of %s', async (_what, planOf) => {
    await start(64 * MIB);
    const [raw, access] = await worker({ maxBytes: 4 * MIB });
    const open = (batch: number) => ({ op: 'open', batch, ...planOf(batch), awaitsValues: false });
    let refused: unknown;
    let batch = 0;
    for (; batch < 16 && refused === undefined; batch++) refused = errorOf(await raw.ask(open(batch)));
    expect(refused).toMatchObject({
      code: 'OUT_OF_SHARED_MEMORY',
      message: expect.stringContaining('--max-bytes') as string,
    });
    expect(batch).toBeLessThanOrEqual(9);
    expect(bytesOf(access)).toBeGreaterThan(2 * MIB);
  });

  it('counts rows under way by the pages that they take', async () => {
    await start(64 * MIB);
    const settings = { ...SETTINGS, workers: 2, consistency: { kind: 'synchronous' } as const };
    const access = server.createService({ namespace: 'a', settings, maxBytes: 2 * MIB });
    const raw = await RawWorker.admitted(server, access, { settings });
    closing.push(raw);
    const tables = Array.from({ length: 100 }, (_, key) => key);
    await raw.done({
      ...{ op: 'open', batch: 0, firstPiece: 0, awaitsValues: false },
      keys: tables.map((key) => ({ key, length: 4, rowLength: 4 })),
      pieces: tables.map((key) => ({ key, start: 0, length: 4, ranges: [[0, 4]] })),
    });
    await raw.done({ op: 'values', batch: 0 }, new Uint8Array(16 * tables.length));
    // The other worker does not push, so each waits with a page of its own.
    const push = { op: 'push-rows', step: 1, samples: 1, count: 1, isSkipped: false };
    for (const piece of tables) raw.say({ id: 100 + piece, ...push, piece }, new Uint8Array(20));
    const refused = await raw.ask({ ...push, piece: 0 }, new Uint8Array(20));
    expect(errorOf(refused)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    expect(bytesOf(access)).toBeLessThanOrEqual(2 * MIB);
  });

  it('counts the copies for checkpoints, of which there are two at a time', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tributary-quota-'));
    closing.push({ close: () => rmSync(folder, { recursive: true, force: true }) });
    // A disk that takes for ever, until the thread that writes to it dies.
    const dying: (() => void)[] = [];
    let isDead = false;
    const stuck = {
      onEnd(take: (error: unknown) => void) {
        if (isDead) setImmediate(() => take(undefined));
        else dying.push(() => take(undefined));
      },
      ...{ onMessage: () => undefined, post: () => undefined },
      ...{ ref: () => undefined, unref: () => undefined, terminate: () => Promise.resolve() },
    };
    const host: ServerHost = {
      ...systemServerHost,
      libc: systemServerHost.libc,
      startCheckpoints: () => stuck,
      startCore: (...args) => systemServerHost.startCore(...args),
    };
    await start(256 * MIB, host);
    closing.push({
      close() {
        isDead = true;
        for (const end of dying) end();
      },
    });
    const settings = { ...SETTINGS, consistency: { kind: 'synchronous' } as const };
    const access = server.createService({ namespace: 'a', settings, folder });
    const raw = await RawWorker.admitted(server, access, { settings });
    closing.push(raw);
    // Memory may be taken before the core knows of it, which refuses values until then.
    await raw.done(openRequest('w', MIB / 4));
    raw.say({ id: 98, op: 'values', batch: 0 }, new Uint8Array(MIB));
    const many = 200;
    for (let i = 0; i < many; i++) raw.say({ id: 100 + i, op: 'checkpoint', step: i, isDurable: false });
    raw.say({ id: 99, op: 'barrier', number: 0 });
    await until(() => {
      for (let heard = raw.take(); heard; heard = raw.take()) if (heard.header.id === 99) return true;
      return raw.isClosed;
    });
    expect(raw.isClosed).toBe(false);
    expect(bytesOf(access)).toBeGreaterThan(2 * MIB);
    expect(bytesOf(access)).toBeLessThanOrEqual(4 * MIB);
    const [other] = await worker();
    await other.done(openRequest('theirs', MIB));
  });

  it('has a share of the ranges, so that others can have theirs', async () => {
    await start(1024 * MIB);
    const [raw] = await worker({ maxBytes: 768 * MIB });
    let refused: unknown;
    let id = 0;
    for (; id < 9000 && refused === undefined; id += 100) {
      for (let i = id; i < id + 100; i++) raw.say({ id: i, ...openRequest(`k${i}`, 1, i, i) });
      for (let answers = 0; answers < 100; answers++) {
        const heard = await raw.hear();
        refused ??= errorOf(heard);
        if (heard === 'closed') break;
      }
    }
    expect(refused).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    expect(id).toBeLessThan(4000);
    const [other] = await worker();
    await other.done(openRequest('theirs', 16));
  });

  it('counts the workers that a tenant waits for with every key', async () => {
    await start(64 * MIB);
    const settings = { ...SETTINGS, workers: 65_536 };
    const access = server.createService({ namespace: 'a' });
    const raw = await RawWorker.admitted(server, access, { settings });
    closing.push(raw);
    const keys = Array.from({ length: 65 }, (_, key) => ({ key, length: 1 }));
    const pieces = keys.map(({ key }) => ({ key, start: 0, length: 1, ranges: [[0, 1]] }));
    const open = { op: 'open', batch: 0, keys, pieces, firstPiece: 0, awaitsValues: false };
    expect(errorOf(await raw.ask(open))).toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('65536 workers with 65 pieces') as string,
    });
    await raw.done({ ...open, keys: keys.slice(1), pieces: pieces.slice(0, 64) });
  });
});
