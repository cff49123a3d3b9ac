/**
 * The memory of one tenant against what another does: names of segments, memory that was given back, rows under way,
 * quotas. All tenants share one address space, so every range that outlives its owner would be somebody else's.
 */
import { afterEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { segmentPrefix } from '../../src/server/index.ts';
import type { ParameterServerOptions, ServiceAccess } from '../../src/server/index.ts';
import { Servers } from '../kvstore/servers.ts';
import { bytesOf, FAULT, openRequest, pushRequest, RawWorker } from './raw-worker.ts';
import type { Heard, Identity, Listening } from './raw-worker.ts';
import { Victim } from './tenant-victim.ts';

const filled = (length: number, value: number): Float32Array => new Float32Array(length).fill(value);
const MIB = 2 ** 20;
const STAGED = [{ piece: 0, isInPlace: false }];

describe.skipIf(!hasSharedMemory())('the memory of a tenant', () => {
  let ground: Servers;
  let access: ServiceAccess;
  const open: (RawWorker | Victim)[] = [];

  afterEach(async () => {
    for (const one of open.splice(0)) await one.close();
    const failures = ground.servers.map(({ failure }) => failure);
    await ground.close();
    expect(failures).toEqual([undefined]);
  });

  async function start(options: ParameterServerOptions = {}, quota: object = {}): Promise<void> {
    ground = await Servers.start(1, options);
    access = ground.createService(quota);
  }

  async function worker(identity?: Identity, at: Listening = ground.servers[0]!): Promise<RawWorker> {
    const raw = await RawWorker.admitted(at, access, identity);
    open.push(raw);
    return raw;
  }

  async function victim(length?: number): Promise<Victim> {
    const one = await Victim.open(ground, length);
    open.push(one);
    return one;
  }

  const errorOf = (heard: Heard | 'closed'): unknown => (heard === 'closed' ? heard : heard.header.error);

  it('is not found by another through names of segments', async () => {
    await start();
    const theirs = await victim();
    const neighbour = await RawWorker.admitted(ground.servers[0]!, ground.createService());
    open.push(neighbour);
    const { header } = await neighbour.done(openRequest('n', 16));
    const [[ofNeighbour]] = header.places as [[string, number]];
    const own = segmentPrefix(access.namespace, access.nonce);
    const names = [
      ofNeighbour,
      `${segmentPrefix(theirs.access.namespace, access.nonce)}values-000000000000`,
      `${own}../${ofNeighbour}`,
      `${own}values-000000000000`,
      `${own}${'a'.repeat(100_000)}`,
      ...['beacon-1-000000000000', '', '../../etc/passwd'],
    ];
    const attacker = await worker();
    await attacker.openKey(filled(16, 1));
    for (const name of names) {
      for (const place of [{ gradient: [name, 0] }, { into: [name, 0] }]) {
        const heard = await attacker.ask({ op: 'list', list: 1, entries: [{ ...STAGED[0], ...place }] });
        expect(errorOf(heard), name.slice(0, 60)).toHaveProperty('message');
      }
    }
    expect(await attacker.ask(pushRequest(1, { list: 1 }))).toMatchObject(FAULT);
    expect(await theirs.damage()).toEqual([]);
  });

  it('is not found by another through pieces, lists and batches', async () => {
    await start();
    const theirs = await victim();
    const requests = [
      { op: 'list', list: 0, entries: STAGED },
      pushRequest(1),
      pushRequest(1, { push: false, pull: true, steps: [] }),
      { op: 'values', batch: 0 },
      { op: 'pull-rows', piece: 0, count: 0 },
      { op: 'push-rows', piece: 0, count: 0, step: 1, samples: 1, isSkipped: false },
    ];
    for (const request of requests) expect(await (await worker()).ask(request)).toMatchObject(FAULT);
    expect(await theirs.damage()).toEqual([]);
  });

  it('reaches no further than the segment that it names', async () => {
    await start();
    const theirs = await victim();
    const attacker = await worker();
    const { header } = await attacker.done(openRequest('w', 16));
    const [[name]] = header.places as [[string, number]];
    for (const byteOffset of [4, 64, 2 ** 20, 2 ** 32, 2 ** 40]) {
      for (const place of [{ gradient: [name, byteOffset] }, { into: [name, byteOffset] }]) {
        const heard = await attacker.ask({ op: 'list', list: 1, entries: [{ ...STAGED[0], ...place }] });
        expect(errorOf(heard)).toMatchObject({ code: 'OUT_OF_BOUNDS' });
      }
    }
    expect(await theirs.damage()).toEqual([]);
  });

  it('is not reached through rows that a worker names outside of its own', async () => {
    await start();
    const theirs = await victim();
    const table = async () => {
      const attacker = await worker();
      const { header } = await attacker.done({
        ...{ op: 'open', batch: 0, firstPiece: 0, awaitsValues: false },
        keys: [{ key: 't', length: 64, rowLength: 4 }],
        pieces: [{ key: 0, start: 0, length: 64, ranges: [[0, 64]] }],
      });
      await attacker.done({ op: 'values', batch: 0 }, bytesOf(new Float32Array(64)));
      const [[segment]] = header.places as [[string, number]];
      await attacker.done({ op: 'map', segment });
      return { attacker, segment };
    };
    const push = { op: 'push-rows', piece: 0, count: 2, step: 1, samples: 1, isSkipped: false };
    const pull = { op: 'pull-rows', piece: 0, count: 2 };
    for (const request of [push, pull]) {
      const { attacker, segment } = await table();
      const places = [
        { at: [segment, 2 ** 30], rows: [segment, 0], rowCount: 2 },
        { at: [segment, 0], rows: [segment, 2 ** 30], rowCount: 2 },
        { at: [segment, 0], rows: [segment, 0], rowCount: 2 ** 26 },
      ];
      for (const shared of places) {
        expect(errorOf(await attacker.ask({ ...request, shared }))).toMatchObject({ code: 'OUT_OF_BOUNDS' });
      }
      // All zeros there: both places are row 0, of which this tensor has none.
      const none = { at: [segment, 0], rows: [segment, 0], rowCount: 0 };
      expect(await attacker.ask({ ...request, shared: none })).toMatchObject(FAULT);
      for (const shared of [
        {},
        { at: [segment, 0] },
        { at: ['other', 0], rows: ['other', 0], rowCount: 1 },
      ]) {
        const another = await table();
        expect(await another.attacker.ask({ ...request, shared })).toMatchObject(FAULT);
      }
      const last = await table();
      const own = { at: [last.segment, 0], rows: [last.segment, 0], rowCount: 1 };
      await last.attacker.done({ ...request, shared: own });
    }
    expect(await theirs.damage()).toEqual([]);
  });

  it('is not written to by a worker that said goodbye', async () => {
    await start({ space: SharedSpace.create({ maxBytes: 16 * MIB }) });
    const attacker = await worker();
    await attacker.openKey(filled(5000, 1));
    await attacker.ask({ op: 'bye' });
    // Whatever the goodbye gave back is the next tenant's now.
    const theirs = await victim();
    const more = await victim();
    await theirs.train(1);
    await more.train(1);
    await attacker.ask(pushRequest(1), bytesOf(filled(5000, 666)));
    expect(await theirs.damage()).toEqual([]);
    expect(await more.damage()).toEqual([]);
  });

  it('is not written to by a worker that said goodbye to another core', async () => {
    await start({ cores: 2, space: SharedSpace.create({ maxBytes: 16 * MIB }) });
    const first = await RawWorker.dial(ground.servers[0]!);
    open.push(first);
    const welcome = (await first.introduce(access)) as Heard;
    const [, second] = welcome.header.ports as [number, number];
    const other = await worker({}, { port: second });
    await other.openKey(filled(5000, 1));
    await first.ask({ op: 'bye' });
    const theirs = await victim();
    const more = await victim();
    await theirs.train(1);
    await more.train(1);
    // Still a worker of this core, with memory of its own.
    await other.done(pushRequest(1), bytesOf(filled(5000, 5)));
    expect(await other.pull()).toEqual([...filled(5000, 6)]);
    expect(await theirs.damage()).toEqual([]);
    expect(await more.damage()).toEqual([]);
  });

  it('is not read by a worker that said goodbye before its rows were sent', async () => {
    await start({ space: SharedSpace.create({ maxBytes: 128 * MIB }) });
    const rows = 8 * MIB;
    const attacker = await worker();
    await attacker.done({
      ...{
        op: 'open',
        batch: 0,
        firstPiece: 0,
        awaitsValues: false,
        keys: [{ key: 't', length: 4, rowLength: 4 }],
      },
      pieces: [{ key: 0, start: 0, length: 4, ranges: [[0, 4]] }],
    });
    await attacker.done({ op: 'values', batch: 0 }, bytesOf(filled(4, 1)));
    attacker.socket.pause();
    const count = rows / 16;
    attacker.say({ id: 50, op: 'pull-rows', piece: 0, count }, new Uint8Array(4 * count));
    attacker.say({ id: 51, op: 'bye' });
    // More than the kernel's buffers hold is still to be sent; now somebody else gets memory.
    const theirs = await victim(rows / 4);
    await theirs.train(1);
    attacker.socket.resume();
    const heard = await attacker.hear();
    if (heard !== 'closed') {
      const values = new Float32Array(Uint8Array.from(heard.body).buffer);
      expect([...new Set(values)].slice(0, 3)).toEqual([1]);
    }
  });

  it('is counted: values, slots and staging', async () => {
    await start({}, { maxBytes: MIB });
    const theirs = await victim();
    const attacker = await worker();
    const huge = await attacker.ask(openRequest('huge', MIB));
    expect(errorOf(huge)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    const most = MIB / 4 / 2 - 1024;
    await attacker.done(openRequest('w', most));
    await attacker.done({ op: 'values', batch: 0 }, new Uint8Array(4 * most));
    await attacker.done({ op: 'list', list: 0, entries: STAGED });
    const adam = await attacker.ask({ op: 'optimizer', number: 0, spec: { name: 'adam' } });
    expect(errorOf(adam)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    const second = await worker({ worker: 1 });
    const staging = await second.ask({ op: 'list', list: 0, entries: STAGED });
    expect(errorOf(staging)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    // What was refused changed nothing: the first worker goes on.
    await attacker.done(pushRequest(1), bytesOf(filled(most, 1)));
    await theirs.train(1);
    expect(await theirs.damage()).toEqual([]);
  });

  it('is as it was after a call that is refused', async () => {
    await start({}, { maxBytes: MIB });
    const attacker = await worker();
    await attacker.openKey(filled(16, 1));
    await attacker.done({ op: 'optimizer', number: 0, spec: { name: 'adam' } });
    const bytes = () => ground.servers[0]!.services[0]!.bytes;
    const before = bytes();
    const big = MIB / 16;
    // The value fits, what the optimizer keeps of it does not.
    const refused = await attacker.ask(openRequest('big', 2 * big, 1, 1));
    expect(errorOf(refused)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    expect(bytes()).toBe(before);
    // The same key with two lengths: memory is there when this is noticed.
    const twice = {
      ...openRequest('twice', 16, 1, 1),
      keys: [16, 32].map((length) => ({ key: 'twice', length })),
    };
    expect(errorOf(await attacker.ask(twice))).toMatchObject({ code: 'SHAPE_MISMATCH' });
    expect(bytes()).toBe(before);
    // Neither has left its length behind.
    await attacker.done(openRequest('big', 64, 1, 1));
    await attacker.done(openRequest('twice', 64, 2, 2));
  });

  it('is as it was after an optimizer that is refused', async () => {
    await start({}, { maxBytes: (7 * MIB) / 8 });
    const attacker = await worker();
    await attacker.done(openRequest('w', MIB / 16));
    await attacker.done({ op: 'values', batch: 0 }, new Uint8Array(MIB / 4));
    await attacker.done({ op: 'list', list: 0, entries: STAGED });
    const before = ground.servers[0]!.services[0]!.bytes;
    // The first moment fits, the second does not.
    const adam = await attacker.ask({ op: 'optimizer', number: 0, spec: { name: 'adam' } });
    expect(errorOf(adam)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    expect(ground.servers[0]!.services[0]!.bytes).toBe(before);
  });

  it('is counted: chunks, which a refused call gives back', async () => {
    await start({}, { maxChunks: 4, maxBytes: MIB });
    const attacker = await worker();
    const tooMany = Array.from({ length: 5 }, (_, i) => [i, 1]);
    const piece = { key: 0, start: 0, length: 16, ranges: tooMany };
    const heard = await attacker.ask({ ...openRequest('w', 16), pieces: [piece] });
    expect(errorOf(heard)).toMatchObject({ message: expect.stringContaining('of 4') as string });
    for (let i = 0; i < 5; i++) {
      const huge = await attacker.ask(openRequest('huge', MIB));
      expect(errorOf(huge)).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    }
    await attacker.openKey(filled(16, 1));
    expect(await attacker.pull()).toEqual([...filled(16, 1)]);
  });

  it('is counted by what it takes, however small its keys are', async () => {
    await start({ space: SharedSpace.create({ maxBytes: 8 * MIB }) }, { maxBytes: MIB });
    const attacker = await worker();
    for (let i = 0; i < 150; i++) {
      const heard = await attacker.ask(openRequest(`k${i}`, 1, i, i));
      if (errorOf(heard) !== undefined) break;
    }
    const theirs = await victim(MIB / 4);
    await theirs.train(1);
    expect(await theirs.damage()).toEqual([]);
  });
});
