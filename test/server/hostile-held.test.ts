/**
 * Workers that speak by hand to a server which holds updates: requests whose answers were lost and that are made again, on a
 * new connection too; requests that are malformed; and mutated frames, on which the server goes on.
 */
import { randomBytes } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { ServiceAccess, ServiceSettings } from '../../src/server/index.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { Servers } from '../kvstore/servers.ts';
import { Mutations, setup } from './frame-mutations.ts';
import {
  bytesOf,
  FAULT,
  floatsOf,
  openRequest,
  pushRequest,
  RawWorker,
  SETTINGS,
  until,
} from './raw-worker.ts';
import type { Heard } from './raw-worker.ts';
import { Victim } from './tenant-victim.ts';

const HELD: ServiceSettings = { ...SETTINGS, consistency: { kind: 'synchronous' }, isHeld: true };
const MUTATED_FRAMES = 6000;
const FRAMES_PER_CONNECTION = 30;
/** Of the combined gradient of key 'w'. */
const lookRequest = (steps: readonly number[], change: object = {}): object =>
  pushRequest(1, { push: false, pull: true, fromHeld: true, steps, ...change });
const filled = (value: number): Buffer => bytesOf(new Float32Array(16).fill(value));

describe.skipIf(!hasSharedMemory())('a server that holds updates', () => {
  let ground: Servers;
  let access: ServiceAccess;
  const open: RawWorker[] = [];
  beforeAll(async () => {
    ground = await Servers.start(1);
  });
  afterAll(() => ground.close());
  beforeEach(() => {
    access = ground.createService();
  });
  afterEach(async () => {
    for (const worker of open.splice(0)) await worker.close();
  });

  async function worker(settings: unknown = HELD, incarnation?: string): Promise<RawWorker> {
    const identity = { settings, ...(incarnation === undefined ? {} : { incarnation }) };
    const raw = await RawWorker.admitted(ground.servers[0]!, access, identity);
    open.push(raw);
    return raw;
  }

  it('answers pushes and applies that are made again, and does nothing twice', async () => {
    const incarnation = randomBytes(32).toString('hex');
    let raw = await worker(HELD, incarnation);
    await raw.openKey(new Float32Array(16));
    const again = async (request: object, body?: Buffer): Promise<unknown[]> => {
      const first = await raw.done(request, body);
      const second = await raw.done(request, body);
      await raw.close();
      raw = await worker(HELD, incarnation);
      await raw.done({ op: 'list', list: 0, entries: [{ piece: 0, isInPlace: false }] });
      const third = await raw.done(request, body);
      return [first, second, third].map(({ header }) => header.results);
    };
    expect(await again(pushRequest(1), filled(2))).toEqual(Array.from({ length: 3 }, () => [[0, 0, 64]]));
    await again({ op: 'apply', step: 1, scale: 0.5 });
    expect(await raw.pull()).toEqual(new Array(16).fill(1));
    expect(await again(pushRequest(1), filled(9))).toEqual(Array.from({ length: 3 }, () => [[1, 0, 64]]));
    await again(pushRequest(2, { samples: 0 }), filled(9));
    await again({ op: 'apply', step: 2, scale: 1, lr: 7 });
    expect(await raw.pull()).toEqual(new Array(16).fill(1));
  });

  it('refuses a push beyond the one that is held, a pull with a push, and another word for a step', async () => {
    const raw = await worker();
    await raw.openKey(new Float32Array(16));
    await raw.done(pushRequest(1), filled(2));
    const next = await raw.done(pushRequest(2), filled(2));
    expect(JSON.stringify(next.header.results)).toMatch(/worker 0 pushed step 2 .* is held; call apply/);
    const both = await raw.ask(pushRequest(1, { pull: true }), filled(2));
    expect(JSON.stringify(both)).toMatch(/push, apply, then pull/);
    await raw.done({ op: 'apply', step: 1, scale: 1 });
    for (const other of [{ scale: 2 }, { scale: 1, lr: 1 }, { step: 3, scale: 1 }]) {
      const heard = await raw.ask({ op: 'apply', step: 1, ...other });
      expect(heard).toMatchObject({ header: { error: { code: 'INVALID_ARGUMENT' } } });
    }
    expect(await raw.pull()).toEqual(new Array(16).fill(2));
  });

  it.each([
    ['without a step', { scale: 1 }],
    ['without a scale', { step: 1 }],
    ['with a step that is none', { step: -1, scale: 1 }],
    ['with half a step', { step: 1.5, scale: 1 }],
    ['with a scale that is a text', { step: 1, scale: '1' }],
    ['with a rate that is no number', { step: 1, scale: 1, lr: null }],
  ])('answers with an error one that applies %s', async (_what, fields) => {
    const raw = await worker();
    await raw.openKey(new Float32Array(16));
    expect(await raw.ask({ op: 'apply', ...fields })).toMatchObject(FAULT);
    const next = await worker();
    await next.ask(openRequest('w', 16));
  });

  it('hands out what is held of the step that was asked for, again and again, and of no other', async () => {
    const raw = await worker();
    await raw.openKey(new Float32Array(16));
    const look = (step: number) => raw.ask(lookRequest([step]));
    const refused = /worker 0 .* of key 'w', of which nothing is held; push it on all workers/;
    expect(JSON.stringify(await look(1))).toMatch(refused);
    await raw.done(pushRequest(1), filled(2));
    for (let i = 0; i < 2; i++) expect(((await look(1)) as Heard).body).toEqual(filled(2));
    for (const step of [0, 2, 2 ** 40]) {
      expect(JSON.stringify(await look(step))).toMatch(/of which step 1 is held/);
    }
    await raw.done({ op: 'apply', step: 1, scale: 0.5 });
    expect(((await look(1)) as Heard).body).toEqual(filled(2));
    expect(await raw.pull()).toEqual(new Array(16).fill(1));
    await raw.done(pushRequest(2), filled(4));
    expect(JSON.stringify(await look(1))).toMatch(/of which step 2 is held/);
    const rows = await raw.ask({ op: 'pull-rows', piece: 0, count: 1, heldStep: 2 }, Buffer.alloc(4));
    expect(JSON.stringify(rows)).toMatch(/no table/);
  });

  it('hands out rows of what is held, zeros where nobody pushed, and refuses rows that are not there', async () => {
    const raw = await worker();
    for (const { header, body } of setup()) await raw.done(header, body);
    const push = { op: 'push-rows', piece: 1, step: 1, samples: 1, count: 2, isSkipped: false };
    const rows = [new Int32Array([5, 5]), new Float32Array([1, 2, 3, 4, 1, 1, 1, 1])];
    await raw.done(push, Buffer.concat(rows.map(bytesOf)));
    const look = (indices: number[], fields = {}) =>
      raw.ask(
        { op: 'pull-rows', piece: 1, count: indices.length, heldStep: 1, ...fields },
        bytesOf(new Int32Array(indices)),
      );
    const { body } = (await look([0, 5])) as Heard;
    expect([...floatsOf(body)]).toEqual([0, 0, 0, 0, 2, 3, 4, 5]);
    expect(JSON.stringify(await look([8]))).toMatch(/row 8 of key 't', which has 8/);
    expect(JSON.stringify(await look([0], { heldStep: 2 }))).toMatch(/of which step 1 is held/);
    expect(await look([0], { count: 2 })).toMatchObject(FAULT);
  });

  it.each([
    ['and pushes', lookRequest([1], { push: true })],
    ['without a pull', lookRequest([1], { pull: false })],
    ['without a step', lookRequest([])],
    ['of half a step', lookRequest([0.5])],
    ['in words', lookRequest([1], { fromHeld: 'yes' })],
    ['of rows of no step', { op: 'pull-rows', piece: 0, count: 0, heldStep: null }],
    ['of rows of a step that is none', { op: 'pull-rows', piece: 0, count: 0, heldStep: -1 }],
  ])('answers with an error one that looks at what is held %s', async (_what, request) => {
    const raw = await worker();
    await raw.openKey(new Float32Array(16));
    await raw.done(pushRequest(1), filled(2));
    expect(await raw.ask(request)).toMatchObject(FAULT);
  });

  it('refuses looks where updates are not held', async () => {
    const raw = await worker(SETTINGS);
    await raw.openKey(new Float32Array(16));
    await raw.done(pushRequest(1), filled(2));
    expect(JSON.stringify(await raw.ask(lookRequest([1])))).toMatch(
      /asked to look at updates that are not held/,
    );
  });

  it.each([
    ['asynchronous', { ...HELD, consistency: { kind: 'asynchronous' } }],
    ['of another kind', { ...HELD, isHeld: 1 }],
  ])('lets nobody in with held settings that are %s', async (_what, settings) => {
    await expect(worker(settings)).rejects.toThrow(/not welcome/);
    expect(() => ground.createService({ settings: settings as never })).toThrow(/settings/);
  });

  it('goes on after mutated frames, and so do others', async () => {
    const seed = Math.floor(Math.random() * 2 ** 31);
    console.log(`fuzz seed ${seed}`);
    const mutations = new Mutations(new Random(seed));
    const theirs = await Victim.open(ground);
    access = ground.createService({ maxBytes: 8 * 2 ** 20, maxChunks: 1000, graceMs: 0 });
    let done = 0;
    for (let sent = 0; sent < MUTATED_FRAMES; sent += FRAMES_PER_CONNECTION) {
      const raw = await worker();
      for (const { header, body } of setup()) await raw.ask(header, body);
      const frames = Array.from({ length: FRAMES_PER_CONNECTION }, (_, i) => mutations.framed(100 + i));
      const last = { id: 9999, op: 'list', list: 0, entries: [{ piece: 0, isInPlace: false }] };
      raw.write(Buffer.concat([...frames, encodeHead(last, 0)]));
      let isThrough = false;
      await until(() => {
        for (let heard = raw.take(); heard; heard = raw.take()) {
          if (heard.header.id === 9999) isThrough = true;
          else if (heard.header.error === undefined && heard.header.results === undefined) done++;
        }
        return raw.isClosed || isThrough;
      });
      await raw.close();
    }
    open.length = 0;
    expect(done, `seed ${seed}`).toBeGreaterThan(0);
    expect(ground.servers[0]!.failure, `seed ${seed}`).toBeUndefined();
    await theirs.train(2);
    expect(await theirs.damage(), `seed ${seed}`).toEqual([]);
    await theirs.close();
  }, 60_000);
});
