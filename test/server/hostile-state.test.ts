/**
 * Workers that speak by hand of what the optimizer keeps: elements, slots and steps that are not there, bodies of other lengths,
 * and requests that are made again. What is kept of other keys must not change by a bit, and the server goes on.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { ServiceSettings } from '../../src/server/index.ts';
import { Servers } from '../kvstore/servers.ts';
import { setup } from './frame-mutations.ts';
import { bytesOf, FAULT, floatsOf, pushRequest, RawWorker, SETTINGS } from './raw-worker.ts';
import type { Heard } from './raw-worker.ts';

const SYNCHRONOUS: ServiceSettings = { ...SETTINGS, consistency: { kind: 'synchronous' }, rows: 'exact' };
const OPTIMIZER = { op: 'optimizer', number: 0, spec: { name: 'sgd', lr: 1, momentum: 0.5 } };
const SLOT = 'momentum_buffer';

describe.skipIf(!hasSharedMemory())('a server that is asked for the state of an optimizer', () => {
  let ground: Servers;
  const open: RawWorker[] = [];
  beforeAll(async () => {
    ground = await Servers.start(1, { cores: 1 });
  });
  afterAll(() => ground.close());
  afterEach(async () => {
    for (const raw of open.splice(0)) await raw.close();
  });

  /** Keys 'w' of 32 elements in two ranges, piece 0, and 't' of eight rows of four, piece 1. */
  async function worker(settings: ServiceSettings = SYNCHRONOUS): Promise<RawWorker> {
    const access = ground.createService({ graceMs: 0 });
    const raw = await RawWorker.admitted(ground.servers[0]!, access, { settings });
    open.push(raw);
    for (const { header, body } of setup()) await raw.done(header, body);
    await raw.done(OPTIMIZER);
    return raw;
  }
  const windowOf = (piece: number, first: number, count: number) => ({ piece, slot: SLOT, first, count });
  const pull = async (raw: RawWorker, piece: number): Promise<number[]> => {
    const { body } = await raw.done({ op: 'pull-state', ...windowOf(piece, 0, 32) });
    return [...floatsOf(body)];
  };
  const counting = (from: number, count: number) => Float32Array.from({ length: count }, (_, i) => from + i);

  it('takes and gives any elements of a slot, across ranges, again and again', async () => {
    const raw = await worker();
    for (const [first, count] of [
      [0, 32],
      [15, 2],
      [31, 1],
      [32, 0],
      [3, 20],
    ] as const) {
      // prettier-ignore
      const before = await pull(raw, 0);
      const values = counting(100 * count, count);
      for (let i = 0; i < 2; i++) {
        await raw.done({ op: 'push-state', ...windowOf(0, first, count) }, bytesOf(values));
        const { header, body } = await raw.done({ op: 'pull-state', ...windowOf(0, first, count) });
        expect(header.version).toBe(0);
        expect([...floatsOf(body)]).toEqual([...values]);
      }
      before.splice(first, count, ...values);
      expect(await pull(raw, 0)).toEqual(before);
    }
    expect(await pull(raw, 1)).toEqual(new Array(32).fill(0));
    expect((await raw.done({ op: 'state', piece: 1 })).header).toMatchObject({ version: 0, slots: [SLOT] });
  });

  it('takes and gives elements of the value itself where no slot is named, between two steps only', async () => {
    const raw = await worker();
    const window = { piece: 1, first: 5, count: 9 };
    const valueOf = async (from: RawWorker) => {
      const { body } = await from.done({ op: 'pull-state', piece: 1, first: 0, count: 32 });
      return [...floatsOf(body)];
    };
    const expected = new Array<number>(32).fill(0);
    expect(await valueOf(raw)).toEqual(expected);
    await raw.done({ op: 'push-state', ...window }, bytesOf(counting(1, 9)));
    expected.splice(5, 9, ...counting(1, 9));
    expect(await valueOf(raw)).toEqual(expected);
    expect(await pull(raw, 1)).toEqual(new Array(32).fill(0));
    const beyond = { op: 'push-state', piece: 1, first: 30, count: 3 };
    expect(await raw.ask(beyond, Buffer.alloc(12, 1))).toMatchObject(FAULT);
    expect(await valueOf(raw)).toEqual(expected);
  });

  it('counts steps from what it is told, and gives rows what they missed since then only', async () => {
    const raw = await worker();
    await raw.done({ op: 'push-state', ...windowOf(1, 0, 32) }, bytesOf(new Float32Array(32).fill(8)));
    for (let i = 0; i < 2; i++) await raw.done({ op: 'set-steps', piece: 1, steps: 2 ** 30 });
    const rows = Buffer.concat([bytesOf(new Int32Array([7])), bytesOf(new Float32Array(4).fill(2))]);
    const push = { op: 'push-rows', piece: 1, samples: 1, count: 1, isSkipped: false };
    expect(JSON.stringify(await raw.ask({ ...push, step: 1 }, rows))).toContain(`${2 ** 30}`);
    await raw.done({ ...push, step: 2 ** 30 + 1 }, rows);
    const kept = await pull(raw, 1);
    expect(kept).toEqual([...new Array<number>(28).fill(4), ...new Array<number>(4).fill(6)]);
    const { header } = await raw.done({ op: 'state', piece: 1 });
    expect(header.version).toBe(2 ** 30 + 1);
  });

  it.each([
    ['a slot that is not kept', { op: 'pull-state', ...windowOf(0, 0, 1), slot: 'exp_avg' }],
    ['a slot of the language', { op: 'pull-state', ...windowOf(0, 0, 1), slot: '__proto__' }],
    ['a slot that is not kept, to fill it', { op: 'push-state', ...windowOf(0, 0, 4), slot: 'constructor' }],
  ])('refuses %s', async (_what, request) => {
    const raw = await worker();
    const body = request.op === 'push-state' ? Buffer.alloc(16, 1) : undefined;
    const { header } = (await raw.ask(request, body)) as Heard;
    expect(header.error).toMatchObject({ code: 'INVALID_ARGUMENT' });
    expect(JSON.stringify(header.error)).toMatch(/of key 'w', for which the optimizer keeps momentum_buffer/);
    expect(await pull(raw, 0)).toEqual(new Array(32).fill(0));
  });

  it.each([
    ['elements behind the piece', { op: 'pull-state', ...windowOf(0, 32, 1) }, 0],
    ['more elements than there are', { op: 'pull-state', ...windowOf(1, 0, 33) }, 0],
    ['elements beyond any memory', { op: 'pull-state', ...windowOf(1, 2 ** 40, 2 ** 40) }, 0],
    ['elements before the piece', { op: 'pull-state', ...windowOf(1, -1, 4) }, 0],
    ['half an element', { op: 'pull-state', ...windowOf(1, 0.5, 4) }, 0],
    ['a piece that is not there', { op: 'pull-state', ...windowOf(2, 0, 1) }, 0],
    ['a slot that is no name', { op: 'pull-state', ...windowOf(0, 0, 1), slot: 3 }, 0],
    ['elements, and sends a body', { op: 'pull-state', ...windowOf(0, 0, 1) }, 4],
    ['fewer bytes than it sends', { op: 'push-state', ...windowOf(0, 0, 1) }, 8],
    ['more bytes than it sends', { op: 'push-state', ...windowOf(0, 0, 4) }, 8],
    ['bytes behind the piece', { op: 'push-state', ...windowOf(0, 31, 2) }, 8],
    ['the state of no piece', { op: 'state', piece: 7 }, 0],
    ['no steps', { op: 'set-steps', piece: 0 }, 0],
    ['negative steps', { op: 'set-steps', piece: 0, steps: -1 }, 0],
    ['more steps than rows can remember', { op: 'set-steps', piece: 1, steps: 2 ** 30 + 1 }, 0],
  ])('answers with an error one that names %s', async (_what, request, bytes) => {
    const raw = await worker();
    expect(await raw.ask(request, Buffer.alloc(bytes, 1))).toMatchObject(FAULT);
    await pull(await worker(), 0);
  });

  it('lets worker 0 set it in asynchronous training, before others come, and nobody else', async () => {
    const access = ground.createService({ graceMs: 0 });
    const join = async (number: number): Promise<RawWorker> => {
      const raw = await RawWorker.admitted(ground.servers[0]!, access, {
        worker: number,
        settings: SETTINGS,
      });
      open.push(raw);
      return raw;
    };
    const first = await join(0);
    for (const { header, body } of setup()) await first.done(header, body);
    await first.done(OPTIMIZER);
    await first.done({ op: 'push-state', piece: 1, first: 5, count: 9 }, bytesOf(counting(1, 9)));
    await first.done({ op: 'set-steps', piece: 1, steps: 3 });
    const other = await join(1);
    await other.done(setup()[0]!.header);
    for (const [request, bytes] of [
      [{ op: 'push-state', piece: 1, first: 0, count: 9 }, 36],
      [{ op: 'set-steps', piece: 1, steps: 7 }, 0],
    ] as const) {
      expect(JSON.stringify(await other.ask(request, Buffer.alloc(bytes, 1)))).toMatch(
        /worker 1 .* of key 't' in asynchronous training/,
      );
    }
    expect((await first.done({ op: 'state', piece: 1 })).header).toMatchObject({ version: 3 });
  });

  it('keeps its steps where one is held', async () => {
    const held = await worker({ ...SYNCHRONOUS, isHeld: true });
    await held.done(pushRequest(1), bytesOf(counting(0, 32)));
    expect(JSON.stringify(await held.ask({ op: 'set-steps', piece: 0, steps: 3 }))).toMatch(
      /worker 0 .* of key 'w' while its step 1 is under way/,
    );
    await held.done({ op: 'apply', step: 1, scale: 1 });
    expect(await pull(held, 0)).toEqual([...counting(0, 32)]);
  });

  it('refuses all of it before the values of a key are there', async () => {
    const access = ground.createService({ graceMs: 0 });
    const raw = await RawWorker.admitted(ground.servers[0]!, access, { settings: SYNCHRONOUS });
    open.push(raw);
    await raw.done(setup()[0]!.header);
    const requests = [{ op: 'state', piece: 0 }, { op: 'pull-state', ...windowOf(0, 0, 1) }, { op: 'set-steps', piece: 0, steps: 1 }]; // prettier-ignore
    for (const request of requests) {
      expect(JSON.stringify(await raw.ask(request))).toMatch(/which is not there; init it first/);
    }
  });
});
