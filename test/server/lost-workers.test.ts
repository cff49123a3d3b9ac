/** Workers that are gone and are waited for: what the server logs of them, and what it tells those who wait. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import type { Consistency } from '../../src/server/index.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { RawWorker, SETTINGS, until } from './raw-worker.ts';

const ACCESS = { namespace: 'mnist', nonce: 'a'.padEnd(64, '0') };

describe.skipIf(!hasSharedMemory())('a worker that is waited for', () => {
  const closing: { close(): unknown }[] = [];
  const lines: string[] = [];
  let server: ParameterServer;

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
    lines.length = 0;
  });

  async function start(lostWorkers: 'wait' | 'release'): Promise<void> {
    const folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    closing.push({ close: () => rmSync(folder, { recursive: true, force: true }) });
    const options = { cores: 2, log: (line: string) => void lines.push(line) };
    server = await ParameterServer.start(options, new OneThreadHost());
    closing.push(server);
    server.createService({ ...ACCESS, folder, lostWorkers });
  }

  /** One process of a worker of three: a connection to each of the two cores. */
  async function started(worker: number, process: number, kind: 'synchronous' | 'asynchronous') {
    const consistency: Consistency = { kind };
    const settings = { ...SETTINGS, workers: 3, consistency };
    const identity = { worker, incarnation: String(process).padStart(64, '0'), settings };
    const first = await RawWorker.dial(server);
    closing.push(first);
    const welcome = await first.introduce(ACCESS, identity);
    const [, ...others] = welcome === 'closed' ? [] : (welcome.header.ports as number[]);
    const more = await Promise.all(others.map((port) => RawWorker.admitted({ port }, ACCESS, identity)));
    closing.push(...more);
    return [first, ...more];
  }

  const absent = async (cores: readonly RawWorker[]) =>
    Promise.all(cores.map(async (core) => (await core.done({ op: 'beat' })).header.absent));
  const end = (cores: readonly RawWorker[]) => Promise.all(cores.map((core) => core.close()));

  it('is logged once when it is lost, and when it is back, and named to the others meanwhile', async () => {
    await start('wait');
    const waiting = await started(0, 0, 'synchronous');
    const lost = await started(1, 1, 'synchronous');
    expect(await absent(waiting)).toEqual([[2], [2]]);
    await started(2, 2, 'synchronous');
    expect(await absent(waiting)).toEqual([undefined, undefined]);
    await end(lost);
    await until(() => lines.length > 0);
    while ((await absent(waiting)).some((workers) => workers === undefined)) continue;
    expect(await absent(waiting)).toEqual([[1], [1]]);
    const again = await started(1, 3, 'synchronous');
    expect(await absent(waiting)).toEqual([undefined, undefined]);
    await again[0]!.done({ op: 'bye' });
    await end(again);
    await until(() => lines.length > 1);
    expect(lines).toEqual([
      "worker 1 of 'mnist' is lost: its connection has ended; the others wait until it is started again under its number",
      "worker 1 of 'mnist' is back",
    ]);
  });

  it('is not one whose pushes nobody waits for', async () => {
    await start('wait');
    const others = await started(0, 0, 'asynchronous');
    await end(await started(1, 1, 'asynchronous'));
    expect(await absent(others)).toEqual([undefined, undefined]);
    expect(lines).toEqual([]);
  });

  it('is named to the others while it has time to come back, too', async () => {
    await start('release');
    const others = await started(0, 0, 'synchronous');
    await started(2, 2, 'synchronous');
    await end(await started(1, 1, 'synchronous'));
    while ((await absent(others)).some((workers) => workers === undefined)) continue;
    expect(await absent(others)).toEqual([[1], [1]]);
    expect(lines).toEqual([]);
  });
});
