/** Workers that come late: after they were counted out, or to one core of a server only. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { bytesOf, openRequest, pushRequest, RawWorker, SETTINGS, until } from './raw-worker.ts';

const ACCESS = { namespace: 'a', nonce: 'a'.padEnd(64, '0') };
const GRACE_MS = 1000;
const ones = new Float32Array(16).fill(1);

describe.skipIf(!hasSharedMemory())('a worker', () => {
  const closing: { close(): unknown }[] = [];
  const lines: string[] = [];
  const watched = { nowMs: 0, receivedBytes: 0 };
  let folder: string;
  let server: ParameterServer;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    closing.push({ close: () => rmSync(folder, { recursive: true, force: true }) });
    lines.length = 0;
  });

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function start(cores: number): Promise<void> {
    const options = { cores, log: (line: string) => void lines.push(line) };
    server = await ParameterServer.start(options, new OneThreadHost({ watched }));
    closing.push(server);
    server.createService({ ...ACCESS, folder, graceMs: GRACE_MS });
  }

  const identity = (worker: number, settings: object = {}) => ({
    ...{ worker, incarnation: String(worker).repeat(64) },
    settings: { ...SETTINGS, workers: 2, ...settings },
  });

  /** It is away for longer than it is waited for. */
  async function goAway(raw: RawWorker): Promise<void> {
    await raw.close();
    await until(() => {
      watched.nowMs += 2 * GRACE_MS;
      return lines.some((line) => line.includes('counted out'));
    });
  }

  it('goes on where it was after it was counted out, in asynchronous training', async () => {
    await start(1);
    const [own, other] = [identity(0), identity(1)];
    const first = await RawWorker.admitted(server, ACCESS, own);
    closing.push(await RawWorker.admitted(server, ACCESS, other));
    await first.openKey(new Float32Array(16));
    await first.done(pushRequest(1), bytesOf(ones));
    await goAway(first);
    const again = await RawWorker.admitted(server, ACCESS, own);
    closing.push(again);
    await again.done({ op: 'list', list: 0, entries: [{ piece: 0, isInPlace: false }] });
    // The answer to the first may have been lost: it counts once.
    for (const step of [1, 2]) {
      const { header } = await again.done(pushRequest(step), bytesOf(ones));
      expect((header.results as unknown[])[0]).toBeInstanceOf(Array);
    }
    expect(await again.pull()).toEqual(new Array(16).fill(2));
  });

  it('that ended while it waited for first values is not waited for when they come', async () => {
    await start(1);
    const settings = { consistency: { kind: 'synchronous' } };
    const first = await RawWorker.admitted(server, ACCESS, identity(0, settings));
    closing.push(first);
    const second = await RawWorker.admitted(server, ACCESS, identity(1, settings));
    await first.done(openRequest('w', 16));
    second.say({ id: 1, ...openRequest('w', 16), awaitsValues: true });
    // Its request is read before it goes.
    await second.done({ op: 'list', list: 0, entries: [] });
    await goAway(second);
    await first.done({ op: 'values', batch: 0 }, bytesOf(new Float32Array(16)));
    await first.done({ op: 'list', list: 0, entries: [{ piece: 0, isInPlace: false }] });
    await first.done(pushRequest(1), bytesOf(ones));
    expect(await first.pull()).toEqual([...ones]);
  });

  it('is told to start again after it was counted out, where the others went on in step', async () => {
    await start(1);
    const settings = { consistency: { kind: 'synchronous' } };
    const own = identity(0, settings);
    const first = await RawWorker.admitted(server, ACCESS, own);
    await first.openKey(new Float32Array(16));
    await goAway(first);
    const again = await RawWorker.dial(server);
    closing.push(again);
    const heard = await again.introduce(ACCESS, own);
    expect(heard).toMatchObject({ header: { kind: 'refused', error: { code: 'REFUSED' } } });
    expect(JSON.stringify(heard)).toContain('start it again');
  });

  it('gets a checkpoint that it asks one core for: whoever asked the others was answered before a restart', async () => {
    await start(2);
    const stranger = await RawWorker.dial(server);
    closing.push(stranger);
    const welcome = await stranger.introduce(ACCESS, identity(0));
    const ports = welcome === 'closed' ? [] : (welcome.header.ports as number[]);
    expect(ports).toHaveLength(2);
    const own = await Promise.all(ports.map((port) => RawWorker.admitted({ port }, ACCESS, identity(0))));
    closing.push(...own);
    for (const line of own) {
      await line.done(openRequest('w', 16));
      await line.done({ op: 'values', batch: 0 }, bytesOf(ones));
    }
    const [first] = own;
    await first!.done({ op: 'checkpoint', step: 1, isDurable: true });
    await first!.done({ op: 'checkpoints-written' });
  });
});
