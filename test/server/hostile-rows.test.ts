/**
 * Tables whose rows are exact, of tenants that mean badly: requests that look at rows which missed many updates, and pieces
 * that would make a core remember more rows than there are. Neighbours are served in between; by counts, on a clock of
 * the test.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { TURN_MS } from '../../src/server/cores/fair-turns.ts';
import { ParameterServer } from '../../src/server/index.ts';
import type { ServiceSettings } from '../../src/server/index.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { bytesOf, floatsOf, pushRequest, RawWorker, SETTINGS } from './raw-worker.ts';
import type { Heard } from './raw-worker.ts';

const EXACT: ServiceSettings = { ...SETTINGS, consistency: { kind: 'synchronous' }, rows: 'exact' };
const ROWS = 4096;
const ROW_LENGTH = 16;
const LENGTH = ROWS * ROW_LENGTH;
const MISSED = 400;
/** Exchanges of a neighbour in the meantime; without turns there would be one or two. */
const EXCHANGES = 10;
const SLOT = 'momentum_buffer';
const optimizer = (number: number, lr: number) => ({ op: 'optimizer', number, spec: { name: 'sgd', lr, momentum: 1 } }); // prettier-ignore

describe.skipIf(!hasSharedMemory())('exact rows of one tenant', () => {
  const closing: { close(): unknown }[] = [];
  let server: ParameterServer;

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function start(): Promise<void> {
    server = await ParameterServer.start({}, new OneThreadHost({ lookMs: TURN_MS / 10 }));
    closing.push(server);
  }

  async function worker(
    namespace: string,
    settings: ServiceSettings,
    quota: object = {},
    incarnation?: string,
  ) {
    const access = { namespace, nonce: namespace.padEnd(64, '0') };
    const isKnown = server.services.some((one) => one.namespace === namespace);
    if (!isKnown) server.createService({ ...access, ...quota });
    const raw = await RawWorker.admitted(server, access, {
      settings,
      ...(incarnation ? { incarnation } : {}),
    });
    closing.push(raw);
    return raw;
  }

  const openTable = (pieces: object[], rowLength = ROW_LENGTH, length = LENGTH) => ({
    ...{ op: 'open', batch: 0, keys: [{ key: 't', length, rowLength }], pieces },
    ...{ firstPiece: 0, awaitsValues: false },
  });
  const WHOLE = { key: 0, start: 0, length: LENGTH, ranges: [[0, LENGTH]] };
  const indices = bytesOf(Int32Array.from({ length: ROWS }, (_, i) => i));
  const row = (value: number) =>
    Buffer.concat([bytesOf(new Int32Array(1)), bytesOf(new Float32Array(ROW_LENGTH).fill(value))]);
  const pushRows = { op: 'push-rows', piece: 0, samples: 1, isSkipped: false };
  const announce = { op: 'list', list: 0, entries: [{ piece: 0, isInPlace: false }] };

  /** A table of which one row was pushed again and again, the first time all: every other row moves on with each. */
  async function table(
    settings: ServiceSettings,
    quota: object = {},
    incarnation?: string,
  ): Promise<RawWorker> {
    const raw = await worker('a', settings, quota, incarnation);
    await raw.done(openTable([WHOLE]));
    await raw.done({ op: 'values', batch: 0 }, Buffer.alloc(4 * LENGTH));
    await raw.done(optimizer(0, 1));
    await raw.done(announce);
    const ones = Buffer.concat([indices, bytesOf(new Float32Array(LENGTH).fill(-1))]);
    await raw.done({ ...pushRows, step: 1, count: ROWS }, ones);
    for (let step = 2; step <= MISSED; step++) await raw.done({ ...pushRows, step, count: 1 }, row(0));
    return raw;
  }

  const dense = Buffer.alloc(4 * LENGTH);
  const pull = pushRequest(1, { push: false, pull: true, steps: [] });
  const window = { piece: 0, slot: SLOT, first: 0, count: LENGTH };
  const requests: [what: string, request: object, body?: Buffer][] = [
    ['pulls the table', pull],
    ['pulls all rows', { op: 'pull-rows', piece: 0, count: ROWS }, indices],
    ['pushes all rows', { ...pushRows, step: MISSED + 1, count: ROWS }, Buffer.concat([indices, dense])],
    ['pushes the table', pushRequest(MISSED + 1), dense],
    ['asks for the state', { op: 'state', piece: 0 }],
    ['pulls the state', { op: 'pull-state', ...window }],
    ['pushes the state', { op: 'push-state', ...window }, dense],
    ['sets the steps', { op: 'set-steps', piece: 0, steps: 7 }],
    ['sets the optimizer', optimizer(1, 0.5)],
    ['takes a checkpoint', { op: 'checkpoint', step: 1, isDurable: true }],
  ];

  it.each(requests)('let others be served while it %s', async (_what, request, body) => {
    await start();
    const folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    closing.push({ close: () => rmSync(folder, { recursive: true, force: true }) });
    const [long, short] = [await table(EXACT, { folder }), await worker('b', SETTINGS)];
    await short.openKey(new Float32Array(1));
    const before = long.heardBytes;
    long.say({ id: 5000, ...request }, body);
    for (let i = 0; i < EXCHANGES; i++) {
      await short.pull();
      expect(long.heardBytes, `after ${i + 1} exchanges of another`).toBe(before);
    }
    const heard = (await long.hear()) as Heard;
    expect(heard.header).toMatchObject({ id: 5000 });
    expect(heard.header.error).toBeUndefined();
    const { body: values } = await long.done(pull);
    // One gradient of -1, and momentum for ever; a dense push of zeros is one more of it.
    const isPushed = JSON.stringify(request).includes(String(MISSED + 1));
    expect(floatsOf(values).every((value) => value === MISSED + (isPushed ? 1 : 0))).toBe(true);
    const { body: state } = await long.done({ op: 'pull-state', ...window });
    const kept = (request as { op: string }).op === 'push-state' ? 0 : 1;
    expect(floatsOf(state).every((value) => Math.abs(value) === kept)).toBe(true);
  });

  it('go on where they were if the connection ends meanwhile, and give back what it took', async () => {
    await start();
    const incarnation = randomBytes(32).toString('hex');
    // Room for the table, its momentum, what is remembered, and one request.
    const quota = { maxBytes: 10 * 4 * LENGTH };
    let raw = await table(EXACT, quota, incarnation);
    const short = await worker('b', SETTINGS);
    await short.openKey(new Float32Array(1));
    for (let i = 0; i < 8; i++) {
      raw.say({ id: 5000, op: 'pull-rows', piece: 0, count: ROWS }, indices);
      await short.pull();
      await short.pull();
      await raw.close();
      raw = await worker('a', EXACT, quota, incarnation);
    }
    const { body } = await raw.done({ op: 'pull-rows', piece: 0, count: ROWS }, indices);
    expect(floatsOf(body).every((value) => value === MISSED)).toBe(true);
  });

  it('count towards its quota', async () => {
    await start();
    const rows = 2 ** 20;
    const raw = await worker('a', EXACT, { maxBytes: 6 * rows });
    await raw.done(openTable([{ ...WHOLE, length: rows, ranges: [[0, rows]] }], 1, rows));
    const heard = await raw.ask({ op: 'values', batch: 0 }, Buffer.alloc(4 * rows));
    expect((heard as Heard).header.error).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
  });

  it.each<[string, object[], string]>([
    ['without elements', [{ ...WHOLE, ranges: [] }], "piece 0 of key 't' without elements"],
    [
      'of the same elements',
      [WHOLE, { ...WHOLE, start: 16, length: 32, ranges: [[16, 16]] }],
      "gave elements 32 to 48 of key 't' to pieces 0 and 1",
    ],
  ])('have no pieces %s', async (_what, pieces, message) => {
    await start();
    const raw = await worker('a', EXACT);
    const { error } = ((await raw.ask(openTable(pieces))) as Heard).header;
    expect(error).toMatchObject({ code: 'PROTOCOL_VIOLATION' });
    expect(JSON.stringify(error)).toContain(message);
    // Those of one key that do not overlap are pieces like others.
    const halves = [0, LENGTH / 2].map((first) => ({ ...WHOLE, ranges: [[first, LENGTH / 2]] }));
    await raw.done(openTable(halves.reverse()));
  });

  it('have no pieces of the same elements under two numbers of a key', async () => {
    await start();
    const raw = await worker('a', EXACT);
    const request = openTable([WHOLE, { ...WHOLE, key: 1 }]);
    const heard = await raw.ask({ ...request, keys: [...request.keys, ...request.keys] });
    const message = JSON.stringify((heard as Heard).header.error);
    expect(message).toContain(`gave elements 0 to ${LENGTH} of key 't' to pieces 0 and 1`);
  });
});
