/** What strangers and tenants can make a server write to its log, by a clock of the test. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ParameterServer } from '../../src/server/index.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { openRequest, RawWorker, SETTINGS, until } from './raw-worker.ts';

it.skipIf(!hasSharedMemory())('strangers cannot fill the log of a server', async () => {
  const watched = { nowMs: 0, receivedBytes: 0 };
  const lines: string[] = [];
  const log = (line: string) => void lines.push(line);
  const server = await ParameterServer.start({ log }, new OneThreadHost({ watched }));
  try {
    for (let i = 0; i < 30; i++) {
      const raw = await RawWorker.dial(server);
      raw.write(Buffer.from('GET / HTTP/1.0\r\n\r\n'.padEnd(64, 'x')));
      await until(() => raw.isClosed);
    }
    await until(() => lines.length >= 10);
    watched.nowMs += 60_000;
    await until(() => lines.some((line) => line.includes('left out')));
    expect(lines).toHaveLength(11);
    expect(lines[10]).toContain('left out 20 lines');
  } finally {
    await server.close();
  }
});

it.skipIf(!hasSharedMemory())('strangers cannot write to the terminal of whoever reads a log', async () => {
  const lines: string[] = [];
  const server = await ParameterServer.start({ log: (line) => void lines.push(line) });
  try {
    const raw = await RawWorker.dial(server);
    const evil = ['\u009b31m', '\u2028closed by the owner', '\u202e'].join('');
    raw.write(encodeHead({ kind: 'hello', version: evil }, 0));
    await until(() => lines.length > 0);
    expect(lines[0]).toContain('\\u009b31m\\u2028closed by the owner\\u202e');
  } finally {
    await server.close();
  }
});

describe.skipIf(!hasSharedMemory())('a tenant cannot fill the log of a server', () => {
  const access = { namespace: 'a', nonce: 'a'.padEnd(64, '0') };
  const neighbour = { namespace: 'b', nonce: 'b'.padEnd(64, '0') };
  const settings = { ...SETTINGS, workers: 2, consistency: { kind: 'synchronous' } };
  const incarnation = '1'.repeat(64);
  const watched = { nowMs: 0, receivedBytes: 0 };
  let folder: string;
  let lines: string[];
  let server: ParameterServer;

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    lines = [];
    server = await ParameterServer.start(
      { log: (line) => void lines.push(line) },
      new OneThreadHost({ watched }),
    );
  });
  afterEach(async () => {
    await server.close();
    rmSync(folder, { recursive: true, force: true });
  });

  async function loseOne(of = access): Promise<void> {
    const raw = await RawWorker.admitted(server, of, { settings, incarnation });
    const before = lines.length;
    await raw.close();
    if (lines.length < 100) await until(() => lines.length > before);
  }

  it('by workers that come and go', async () => {
    for (const one of [access, neighbour])
      server.createService({ ...one, lostWorkers: 'wait', folder: join(folder, one.namespace) });
    for (let i = 0; i < 80; i++) await loseOne();
    expect(lines).toHaveLength(100);
    // The lines of another one are there all the same.
    await loseOne(neighbour);
    await until(() => lines.at(-1)!.includes("'b' is lost"));
    watched.nowMs += 60_000;
    await loseOne();
    await until(() => lines.some((line) => line.includes("left out 59 lines about service 'a'")));
  });

  it('by checkpoints that it has no room for', async () => {
    server.createService({ ...access, maxBytes: 2 ** 20, folder });
    const raw = await RawWorker.admitted(server, access);
    await raw.done(openRequest('w', 200_000));
    await raw.done({ op: 'values', batch: 0 }, new Uint8Array(800_000));
    for (let step = 0; step < 120; step++) {
      const heard = await raw.ask({ op: 'checkpoint', step, isDurable: true });
      expect(heard).toMatchObject({ header: { error: { code: 'CHECKPOINT_NOT_WRITTEN' } } });
    }
    expect(lines).toHaveLength(100);
    await raw.close();
  });
});
