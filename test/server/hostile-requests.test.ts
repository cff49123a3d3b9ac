/**
 * Requests that are well formed and meant badly: what a member of one tenant can do to the threads, the memory and the time
 * of a server that others train on. Each ends with the others' parameters looked at, and a step of theirs.
 */
import { once } from 'node:events';
import { afterEach, describe, expect, it } from 'vitest';
import { startThread } from '../../src/base/index.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { segmentPrefix } from '../../src/server/index.ts';
import type { ParameterServerOptions, ServiceAccess } from '../../src/server/index.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { threadOf } from '../support/test-program.ts';
import { Servers } from '../kvstore/servers.ts';
import type { FloodData } from './flood-thread.ts';
import { bytesOf, FAULT, openRequest, pushRequest, RawWorker, SETTINGS, until } from './raw-worker.ts';
import type { Identity } from './raw-worker.ts';
import { segments, Victim } from './tenant-victim.ts';

const filled = (length: number, value: number): Float32Array => new Float32Array(length).fill(value);
const MIB = 2 ** 20;
const STAGED = [{ piece: 0, isInPlace: false }];
const TABLE = {
  ...{ op: 'open', batch: 0, firstPiece: 0, awaitsValues: false },
  keys: [{ key: 't', length: 4096, rowLength: 1024 }],
  pieces: [{ key: 0, start: 0, length: 4096, ranges: [[0, 4096]] }],
};

describe.skipIf(!hasSharedMemory())('a tenant that means badly', () => {
  let ground: Servers;
  let access: ServiceAccess;
  let theirs: Victim;
  const open: RawWorker[] = [];
  const lines: string[] = [];

  async function start(options: ParameterServerOptions = {}, quota: object = {}): Promise<void> {
    lines.length = 0;
    ground = await Servers.start(1, { log: (line) => void lines.push(line), ...options });
    access = ground.createService(quota);
    theirs = await Victim.open(ground);
  }

  async function worker(identity?: Identity): Promise<RawWorker> {
    const raw = await RawWorker.admitted(ground.servers[0]!, access, identity);
    open.push(raw);
    return raw;
  }

  async function othersGoOn(): Promise<void> {
    expect(ground.servers[0]!.failure).toBeUndefined();
    await theirs.train(2);
    expect(await theirs.damage()).toEqual([]);
  }

  afterEach(async () => {
    for (const one of open.splice(0)) await one.close();
    await theirs.close();
    await ground.close();
  });

  it('cannot name more checkpoints to go back to than servers keep', async () => {
    await start();
    const raw = await worker();
    const steps = Array.from({ length: 10_000 }, (_, i) => i);
    expect(await raw.ask({ op: 'gather', attempt: 'a'.repeat(64), steps })).toMatchObject(FAULT);
    await othersGoOn();
  });

  it('is not told of all workers in each of many errors', async () => {
    await start();
    const settings = { ...SETTINGS, workers: 65_535 };
    await (await worker({ worker: 0, settings })).openKey(filled(16, 1));
    const other = await worker({ worker: 65_534, settings });
    await other.done({ op: 'list', list: 0, entries: STAGED });
    const pull = { push: false, pull: true, fromHeld: false, steps: [], samples: 1, skipped: [] };
    const heard = await other.ask({ op: 'exchange', list: 0, first: 0, count: 1, ...pull });
    expect(JSON.stringify(heard).length).toBeLessThan(2000);
    await othersGoOn();
  });

  it('does not end a thread by repeating a push until a lost worker is counted out', async () => {
    await start({}, { graceMs: 0 });
    const settings = { ...SETTINGS, workers: 2, consistency: { kind: 'synchronous' } };
    const honest = await worker({ worker: 0, settings });
    await honest.openKey(filled(16, 1));
    const flood = await worker({ worker: 1, settings });
    await flood.done({ op: 'list', list: 0, entries: STAGED });
    const body = bytesOf(filled(16, 1));
    const request = Buffer.concat([encodeHead({ id: 9, ...pushRequest(1) }, body.length), body]);
    const many = Buffer.concat(Array.from({ length: 1000 }, () => request));
    for (let i = 0; i < 40; i++) flood.write(many);
    // It is the last in line, so all before it have been taken.
    await flood.done({ op: 'list', list: 0, entries: STAGED });
    await honest.close();
    await until(() => lines.some((line) => line.includes('counted out')));
    await othersGoOn();
  });

  it('does not take memory by rows whose answers it does not read', async () => {
    await start({ space: SharedSpace.create({ maxBytes: 48 * MIB }) }, { maxBytes: 4 * MIB });
    const attacker = await worker();
    await attacker.done(TABLE);
    await attacker.done({ op: 'values', batch: 0 }, new Uint8Array(4 * 4096));
    attacker.socket.pause();
    const count = 512;
    for (let i = 0; i < 60; i++) {
      attacker.say({ id: 100 + i, op: 'pull-rows', piece: 0, count }, new Uint8Array(4 * count));
    }
    const taken = await worker({ worker: 1 });
    await taken.done({ op: 'values', batch: 0 }, new Uint8Array(4 * 4096));
    const next = await Victim.open(ground, 2 * MIB);
    await next.train(1);
    expect(await next.damage()).toEqual([]);
    await next.close();
    await othersGoOn();
  });

  it('does not take memory by rows that never come whole', async () => {
    await start({ space: SharedSpace.create({ maxBytes: 48 * MIB }) }, { maxBytes: 4 * MIB });
    const count = 256;
    for (let i = 0; i < 60; i++) {
      const attacker = await worker();
      if (i === 0) {
        await attacker.done(TABLE);
        await attacker.done({ op: 'values', batch: 0 }, new Uint8Array(4 * 4096));
      }
      const rows = { id: 7, op: 'push-rows', piece: 0, count, step: 1, samples: 1, isSkipped: false };
      attacker.socket.end(Buffer.concat([encodeHead(rows, 4 * count * 1025), new Uint8Array(1000)]));
      await until(() => attacker.isClosed);
    }
    const next = await Victim.open(ground, 2 * MIB);
    await next.train(1);
    expect(await next.damage()).toEqual([]);
    await next.close();
    await othersGoOn();
  });

  it('does not stop others by saying too much at a time', async () => {
    await start();
    const data: FloodData = { port: ground.servers[0]!.port, access };
    const flood = startThread(threadOf(new URL('./flood-thread.ts', import.meta.url).href), data);
    try {
      await once(flood, 'message');
      await othersGoOn();
      await theirs.train(50);
      expect(await theirs.damage()).toEqual([]);
    } finally {
      await flood.terminate();
    }
  });

  it('does not stop others by lists that are long to look through', async () => {
    await start();
    const attacker = await worker();
    await attacker.openKey(filled(1, 1));
    const entries = Array.from({ length: 15_000 }, () => STAGED[0]);
    await attacker.done({ op: 'list', list: 1, entries });
    const steps = entries.map(() => 1);
    const skipped = Array.from({ length: 75_000 }, () => 99_999);
    const request = { id: 5, ...pushRequest(1, { list: 1, count: entries.length, steps, skipped }) };
    attacker.say(request, new Uint8Array(4 * entries.length));
    await othersGoOn();
  });

  it('does not end a thread by connections that are gone before they are accepted', async () => {
    await start();
    for (let round = 0; round < 20; round++) {
      const many = await Promise.all(Array.from({ length: 20 }, () => RawWorker.dial(ground.servers[0]!)));
      for (const one of many) one.socket.resetAndDestroy();
    }
    await othersGoOn();
  });

  it('does not keep others out by half frames and huge announcements', async () => {
    await start({ handshakeTimeoutMs: 200 });
    const half = encodeHead({ kind: 'hello' }, 0);
    const huge = Buffer.from(half);
    huge.writeUInt32LE(0xffffffff, 4);
    const strangers = await Promise.all(
      Array.from({ length: 200 }, () => RawWorker.dial(ground.servers[0]!)),
    );
    open.push(...strangers);
    strangers.forEach((one, i) => one.write(i % 2 === 0 ? half.subarray(0, 1 + (i % 40)) : huge));
    await othersGoOn();
    await until(() => strangers.every(({ isClosed }) => isClosed));
    // A newcomer gets in, after as many attempts as it takes.
    const next = await Victim.open(ground);
    await next.close();
  });

  it('does not end more than its own connection by headers that are deep, large or odd', async () => {
    await start();
    const deep = `{"id":1,"op":"optimizer","spec":${'['.repeat(200_000)}${']'.repeat(200_000)}}`;
    const odd = [
      '{"id":1,"__proto__":{"op":"bye"}}',
      '[]',
      'null',
      '1',
      '"x"',
      '{"id":1e400,"op":"bye"}',
      deep,
    ];
    for (const text of odd) {
      const attacker = await worker();
      const head = encodeHead({}, 0);
      head.writeUInt32LE(Buffer.byteLength(text), 4);
      attacker.write(Buffer.concat([head.subarray(0, 16), Buffer.from(text)]));
      const heard = await attacker.hear();
      if (heard !== 'closed') expect(heard.header).toHaveProperty('error');
    }
    await othersGoOn();
  });

  it.each([
    [
      'nested too deeply',
      `"id":${'['.repeat(100_000)}${']'.repeat(100_000)}`,
      'a header nested deeper than 64',
    ],
    [
      'longer than is parsed at once',
      `"id":1,"op":"beat","x":"${'x'.repeat(512 * 1024)}"`,
      'where 1 to 524288 are allowed',
    ],
  ])('is answered by name that a header is %s, which nobody has parsed', async (_, fields, fault) => {
    await start();
    const attacker = await worker();
    const text = Buffer.from(`{${fields}}`);
    const head = encodeHead({}, 0).subarray(0, 16);
    head.writeUInt32LE(text.length, 4);
    attacker.write(Buffer.concat([head, text]));
    const heard = await attacker.hear();
    expect(heard).toMatchObject({
      header: { kind: 'closed', error: { message: expect.stringContaining(fault) as string } },
    });
    await othersGoOn();
    // Nothing of the place in our code.
    expect(lines.join()).not.toMatch(/RangeError|\n {4}at /);
  });

  it('is refused a piece of a key that takes more than a turn to update, whatever its ranges', async () => {
    await start();
    const attacker = await worker();
    const opening = { op: 'open', batch: 0, firstPiece: 0, awaitsValues: false };
    const open = (length: number, rowLength?: number) =>
      attacker.ask({
        ...opening,
        keys: [{ key: 'k', length, rowLength }],
        pieces: [{ key: 0, start: 0, length, ranges: [[0, length, 1024]] }],
      });
    expect(await open(MIB + 1024)).toMatchObject({
      header: {
        error: {
          code: 'INVALID_ARGUMENT',
          message:
            "a piece of key 'k' has 4198400 bytes, where 4194304 may be updated at once; use smaller chunks (chunkBytes)",
        },
      },
    });
    expect(await open(MIB)).toMatchObject({ header: { steps: [] } });
    await othersGoOn();
  });

  it('cannot have more ranges by a run than by naming each', async () => {
    await start();
    const attacker = await worker();
    const opening = { op: 'open', batch: 0, firstPiece: 0, awaitsValues: false };
    const heard = await attacker.ask({
      ...opening,
      keys: [{ key: 'k', length: 2 ** 30 }],
      pieces: [{ key: 0, start: 0, length: 2 ** 30, ranges: [[0, 2 ** 30, 1]] }],
    });
    expect(heard).toMatchObject({
      header: { error: { message: expect.stringContaining('malformed number of ranges') as string } },
    });
    await othersGoOn();
  });

  it('is refused more chunks than it may have before they are compared', async () => {
    await start({}, { maxChunks: 1000 });
    const attacker = await worker();
    // The first fault that a comparison would find.
    const pieces = Array.from({ length: 1001 }, () => ({ key: 0, start: 0, length: 4, ranges: [[0, 4]] }));
    const opening = { op: 'open', batch: 0, firstPiece: 0, awaitsValues: false };
    const heard = await attacker.ask({ ...opening, keys: [{ key: 'k', length: 4 }], pieces });
    expect(heard).toMatchObject({
      header: { error: { message: expect.stringContaining('of 1000 on this core') as string } },
    });
  });

  it('crashes alone: in the middle of values, a push and rows', async () => {
    await start({}, { graceMs: 0 });
    for (const cut of [1, 17, 150, 300, 310]) {
      const attacker = await worker();
      const opened = await attacker.ask(openRequest('w', 16));
      expect(opened).not.toBe('closed');
      const values = Buffer.concat([
        encodeHead({ id: 2, op: 'values', batch: 0 }, 64),
        bytesOf(filled(16, 3)),
      ]);
      const list = encodeHead({ id: 3, op: 'list', list: 0, entries: STAGED }, 0);
      const push = Buffer.concat([encodeHead({ id: 4, ...pushRequest(1) }, 64), bytesOf(filled(16, 3))]);
      const all = Buffer.concat([values, list, push]);
      attacker.socket.end(all.subarray(0, Math.min(cut, all.length - 1)));
      await until(() => attacker.isClosed);
      await othersGoOn();
    }
  });

  it('leaves nothing of a service that was ended, and ends no other', async () => {
    await start({ cores: 2 });
    const attacker = await worker();
    await attacker.openKey(filled(16, 1));
    const ended = ground.createService();
    const [store] = await ground.connect(1, { access: ended, reconnectTimeoutMs: 300 });
    await store!.init({ key: 'w', value: filled(100, 1) });
    ground.servers[0]!.endService(ended.namespace);
    await expect(store!.push({ key: 'w', gradient: filled(100, 1) })).rejects.toHaveProperty('code');
    await store!.close();
    expect(await attacker.pull()).toEqual([...filled(16, 1)]);
    await othersGoOn();
    // The name is free again, for another tenant with another nonce.
    ground.servers[0]!.createService({ namespace: ended.namespace });
    ground.servers[0]!.endService(ended.namespace);
    await theirs.close();
    await ground.close();
    // Other tests have theirs; only those of this service count.
    const prefix = segmentPrefix(ended.namespace, ended.nonce);
    expect(segments().filter((name) => name.includes(prefix))).toEqual([]);
  });
});
