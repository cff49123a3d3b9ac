/**
 * What users do wrong through the store, each an error to that worker that names what it did, while the others go on: and
 * workers that do not belong together, by plan, by settings or by number.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { RemoteStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { Servers } from '../kvstore/servers.ts';
import { RawWorker, SETTINGS } from './raw-worker.ts';

const filled = (length: number, value: number): Float32Array => new Float32Array(length).fill(value);
const LENGTH = 100;
const ROW = 4;

describe.skipIf(!hasSharedMemory()).each([true, false])('bad input, shared memory: %s', (sharedMemory) => {
  let ground: Servers;
  let access: ServiceAccess;
  const stores: RemoteStore[] = [];

  beforeAll(async () => {
    ground = await Servers.start(1, { cores: 2 });
  });
  beforeEach(() => {
    access = ground.createService();
  });
  afterEach(async () => {
    for (const store of stores.splice(0)) await store.close();
    expect(ground.servers[0]!.failure).toBeUndefined();
  });
  afterAll(() => ground.close());

  type Options = Partial<Parameters<typeof RemoteStore.connect>[0]>;

  async function connect(workers: number, options: Options = {}): Promise<RemoteStore[]> {
    const all = await ground.connect(workers, { access, sharedMemory, chunkBytes: 64, ...options });
    stores.push(...all);
    return all;
  }

  async function pair(options: Options = {}): Promise<[RemoteStore, RemoteStore]> {
    const all = (await connect(2, options)) as [RemoteStore, RemoteStore];
    await Promise.all(
      all.map((store) =>
        store.init([
          { key: 'w', value: filled(LENGTH, 1) },
          { key: 't', value: filled(40, 1), rowLength: ROW },
        ]),
      ),
    );
    return all;
  }

  async function valueOf(store: RemoteStore): Promise<number[]> {
    const into = filled(LENGTH, NaN);
    await store.pull({ key: 'w', into });
    return [...new Set(into)];
  }

  const push = (store: RemoteStore, value: number): Promise<unknown> =>
    store.push({ key: 'w', gradient: filled(LENGTH, value) });

  it.each<[string, (store: RemoteStore) => Promise<unknown>, string, RegExp]>([
    [
      'too short a gradient',
      (s) => s.push({ key: 'w', gradient: filled(7, 1) }),
      'SHAPE_MISMATCH',
      /'w'.* 7 .*100/,
    ],
    [
      'too short a target',
      (s) => s.pull({ key: 'w', into: filled(7, 1) }),
      'SHAPE_MISMATCH',
      /'w'.* 7 .*100/,
    ],
    ['no gradient', (s) => s.push({ key: 'w', gradient: [] }), 'INVALID_ARGUMENT', /'w'/],
    ['an unknown key', (s) => push2(s, 'x'), 'INVALID_ARGUMENT', /worker 1 used key 'x'/],
    ['a pull before init', (s) => s.pull({ key: 'x', into: filled(1, 0) }), 'INVALID_ARGUMENT', /'x'.*init/],
    [
      'a second init',
      (s) => s.init({ key: 'w', value: filled(LENGTH, 9) }),
      'INVALID_ARGUMENT',
      /'w' is there/,
    ],
    [
      'a row beyond',
      (s) => s.pushRows('t', Int32Array.of(10), filled(ROW, 1)),
      'OUT_OF_BOUNDS',
      /worker 1 named row 10 of key 't'/,
    ],
    [
      'a row below',
      (s) => s.pullRows('t', Int32Array.of(-1), filled(ROW, 1)),
      'OUT_OF_BOUNDS',
      /row -1 of key 't'/,
    ],
    [
      'rows of no table',
      (s) => s.pushRows('w', Int32Array.of(0), filled(1, 1)),
      'INVALID_ARGUMENT',
      /'w', which is no table/,
    ],
    ['half a row', (s) => s.pushRows('t', Int32Array.of(0), filled(3, 1)), 'SHAPE_MISMATCH', /'t'/],
    ['NaN', (s) => push(s, NaN), 'NOT_A_NUMBER', /worker 1 pushed NaN to key 'w' in step 1/],
    ['an infinity', (s) => push(s, -Infinity), 'NOT_A_NUMBER', /-Infinity/],
    [
      'NaN in a row',
      (s) => s.pushRows('t', Int32Array.of(1), filled(ROW, NaN)),
      'NOT_A_NUMBER',
      /worker 1.*'t'/,
    ],
    [
      'no samples',
      (s) => s.push({ key: 'w', gradient: filled(LENGTH, 1) }, { samples: 0 }),
      'INVALID_ARGUMENT',
      /samples/,
    ],
    [
      'samples of NaN',
      (s) => s.push({ key: 'w', gradient: filled(LENGTH, 1) }, { samples: NaN }),
      'INVALID_ARGUMENT',
      /samples/,
    ],
  ])('tells a worker of %s and lets all go on', async (_what, act, code, message) => {
    const [first, second] = await pair();
    await expect(act(second)).rejects.toMatchObject({
      code,
      message: expect.stringMatching(message) as string,
    });
    await Promise.all([push(first, 1), push(second, 2)]);
    expect(await valueOf(first)).toEqual([4]);
    expect(await valueOf(second)).toEqual([4]);
  });

  it('leaves out what is not finite where asked to, counts it and goes on', async () => {
    const [first, second] = await pair({ nonFinite: 'skip' });
    await Promise.all([push(first, 1), push(second, NaN)]);
    await Promise.all([push(first, NaN), push(second, NaN)]);
    expect([first.skipped, second.skipped]).toEqual([1, 2]);
    expect(await valueOf(second)).toEqual([2]);
    await Promise.all([push(first, 1), push(second, 1)]);
    expect(await valueOf(first)).toEqual([4]);
  });

  it.each<[string, object[]]>([
    ['other keys', [{ key: 'v', value: filled(LENGTH, 1) }]],
    ['another length', [{ key: 'w', value: filled(LENGTH + 1, 1) }]],
    ['other rows', [{ key: 'w', value: filled(LENGTH, 1), rowLength: 10 }]],
    ['more keys', [{ key: 'w', value: filled(LENGTH, 1) }, { key: 'v', value: filled(3, 1) }]], // prettier-ignore
  ])('refuses a worker whose plan has %s', async (_what, keys) => {
    const [first, second] = await connect(2, { consistency: { kind: 'asynchronous' } });
    await first!.init({ key: 'w', value: filled(LENGTH, 1) });
    await expect(second!.init(keys as never)).rejects.toThrow(/worker 1 has another plan/);
    await push(first!, 1);
    expect(await valueOf(first!)).toEqual([2]);
    // It can still do what the others did.
    await second!.init({ key: 'w', value: filled(LENGTH, 5) });
    expect(await valueOf(second!)).toEqual([2]);
  });

  it('refuses a worker that cuts keys otherwise', async () => {
    const consistency = { kind: 'asynchronous' } as const;
    const [first] = await connect(1, { workers: 2, consistency });
    await first!.init({ key: 'w', value: filled(LENGTH, 1) });
    const [second] = await connect(1, { worker: 1, workers: 2, consistency, chunkBytes: 128 });
    await expect(second!.init({ key: 'w', value: filled(LENGTH, 1) })).rejects.toThrow(/another plan/);
    await push(first!, 1);
    expect(await valueOf(first!)).toEqual([2]);
  });

  it.each<[string, Options, string, string]>([
    [
      ...(['consistency', { consistency: { kind: 'bounded', staleness: 3 } }] as const),
      ...(['consistency is {"kind":"bounded","staleness":3}', '{"kind":"synchronous"}'] as const),
    ],
    ['combination', { combine: 'mean' }, "combine is 'mean'", "'sum'"],
    ['number of workers', { workers: 3 }, 'workers is 3', '2'],
    [
      ...(['number and combination', { workers: 3, combine: 'mean' }] as const),
      ...(["workers is 3 and combine is 'mean'", "2 and 'sum'"] as const),
    ],
    ['way of updating', { held: true }, 'held is true', 'false'],
  ])(
    'refuses a worker with another %s, also under the number of one that is here',
    async (_what, options, here, begun) => {
      const [first, second] = await pair();
      for (const worker of [1, 2]) {
        await expect(connect(1, { workers: 2, worker, ...options })).rejects.toThrow(
          `worker ${worker}: ${here} here, but service '${access.namespace}' was begun with ${begun}; use the same, another service, or start the server again, with another folder if it has one`,
        );
      }
      await Promise.all([push(first, 1), push(second, 2)]);
      expect(await valueOf(second)).toEqual([4]);
    },
  );

  it('keeps to the settings that a service was created with', async () => {
    const settings = {
      aggregation: 'tall',
      rows: 'lazy',
      combine: 'sum',
      workers: 1,
      consistency: { kind: 'synchronous' },
      updater: 'accumulate',
    } as const;
    access = ground.createService({ settings });
    const [store] = await connect(1);
    await store!.init({ key: 'w', value: filled(LENGTH, 1) });
    await push(store!, 1);
    await expect(connect(1, { worker: 0, combine: 'mean' })).rejects.toThrow(/: combine is 'mean' here, but/);
  });

  it.each([
    ['an unknown consistency', { ...SETTINGS, consistency: { kind: 'none' } }],
    ['an alpha beyond', { ...SETTINGS, consistency: { kind: 'elastic', alpha: 5 } }],
    ['no workers', { ...SETTINGS, workers: 0 }],
  ])('does not create a service with %s', async (_what, settings) => {
    expect(() => ground.createService({ settings: settings as never })).toThrow(
      /settings|consistency|alpha|workers/,
    );
    const [store] = await connect(1);
    await store!.init({ key: 'w', value: filled(LENGTH, 1) });
  });

  it('gives the number of a worker to a new process, and tells the old one', async () => {
    const [old] = await connect(1, { consistency: { kind: 'asynchronous' } });
    await old!.init({ key: 'w', value: filled(LENGTH, 1) });
    const [next] = await connect(1, { consistency: { kind: 'asynchronous' } });
    await next!.init({ key: 'w', value: filled(LENGTH, 1) });
    await push(next!, 1);
    const late = push(old!, 1).then(() => 'pushed', (error: { code: string }) => error.code); // prettier-ignore
    for (let i = 0; i < 5; i++) await push(next!, 1);
    expect(await late).toBe('REFUSED');
    expect(await valueOf(next!)).toEqual([7]);
  });

  it.each<[string, unknown]>([
    ['a text', 'sgd'],
    ['nothing', null],
    ['a list', []],
    ['no name', {}],
    ['an unknown name', { name: 'sdg', lr: 1 }],
    ['the name of something else', { name: '__proto__', lr: 1 }],
    ['the name of a method', { name: 'toString', lr: 1 }],
    ['a rate of NaN', { name: 'sgd', lr: NaN }],
    ['no rate', { name: 'sgd' }],
    ['a rate that is a text', { name: 'sgd', lr: '0.1' }],
    ['an unknown field', { name: 'sgd', lr: 1, moment: 1 }],
    ['betas that are none', { name: 'adam', betas: [2, 'x'] }],
  ])('says what is wrong with an optimizer that is %s', async (_what, spec) => {
    const [store] = await connect(1);
    await store!.init({ key: 'w', value: filled(LENGTH, 1) });
    await expect(store!.setOptimizer(spec as never)).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
    await store!.setOptimizer({ name: 'sgd', lr: 1 });
    await push(store!, 1);
    expect(await valueOf(store!)).toEqual([0]);
  });

  it('sets an optimizer with slots while keys are being opened', async () => {
    const raw = await RawWorker.admitted(ground.servers[0]!, access);
    const open = {
      op: 'open',
      batch: 0,
      firstPiece: 0,
      awaitsValues: false,
      keys: [{ key: 'w', length: 4 }],
    };
    const pieces = [{ key: 0, start: 0, length: 4, ranges: [[0, 4]] }];
    const optimizer = { id: 2, op: 'optimizer', number: 0, spec: { name: 'adam' } };
    raw.write(Buffer.concat([encodeHead({ id: 1, ...open, pieces }, 0), encodeHead(optimizer, 0)]));
    for (const id of [1, 2]) expect(await raw.hear()).toMatchObject({ header: { id } });
    const values = await raw.ask({ op: 'values', batch: 0 }, new Uint8Array(16));
    await raw.close();
    expect(values).toMatchObject({ header: {} });
    expect((values as { header: object }).header).not.toHaveProperty('error');
  });
});

function push2(store: RemoteStore, key: string): Promise<unknown> {
  return store.push({ key, gradient: filled(LENGTH, 1) });
}
