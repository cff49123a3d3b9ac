/**
 * What a connection does that nobody asks anything, while its thread waits for another server: it
 * is made again, since others may wait until this worker has told the server what it lost; but it
 * costs nothing for ever, and later requests have all their time. Real sockets, a clock by hand.
 */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { PeerError } from '../../src/base/index.ts';
import { Kernels } from '../../src/kernels/index.ts';
import { CoreLine } from '../../src/kvstore/remote/core-line.ts';
import { KeyTable } from '../../src/kvstore/remote/key-table.ts';
import { LinePump } from '../../src/kvstore/remote/line-pump.ts';
import { OtherWorkers } from '../../src/kvstore/remote/other-workers.ts';
import type { ServerLines } from '../../src/kvstore/remote/server-lines.ts';
import { settingsOf } from '../../src/kvstore/remote/store-options.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { ParameterServer, StreamResources } from '../../src/server/index.ts';
import type { Header, ServiceAccess } from '../../src/server/index.ts';
import { internetAddress, systemHost } from '../../src/sockets/index.ts';
import type { ByteRange } from '../../src/sockets/index.ts';
import { until } from '../server/raw-worker.ts';
import { MeddlingProxy } from './meddling-proxy.ts';
import { each, Servers } from './servers.ts';

const RECONNECT_MS = 30_000;

/** Turns only when the test says so. */
class StillPump extends LinePump {
  override wake(): void {}
}

describe.skipIf(!hasSharedMemory())('a connection that nobody asks anything', () => {
  let ground: Servers;
  let proxy: MeddlingProxy;
  let access: ServiceAccess;
  let resources: StreamResources;
  let line: CoreLine;
  let nowMs: number;
  let restarts: number;
  /** What people read. */
  let lines: string[];

  beforeEach(async () => {
    ground = await Servers.start(1);
    proxy = await MeddlingProxy.start(ground.servers[0]!.port);
    access = ground.createService();
    [nowMs, restarts, lines] = [1000, 0, []];
    resources = new StreamResources(SharedSpace.create({ maxBytes: 2 ** 22 }), systemHost.libc);
    const host = { ...systemHost, clock: { ...systemHost.clock, nowMs: () => nowMs } };
    line = new CoreLine({
      ...{ host, pump: new StillPump(host), title: `server 0 at ${proxy.address}`, resources },
      address: internetAddress('127.0.0.1', Number(proxy.address.split(':')[1])),
      ...{ throughTunnel: undefined, access, worker: 0, incarnation: 'ab'.repeat(32) },
      ...{ reconnectTimeoutMs: RECONNECT_MS, requestTimeoutMs: 1e9 },
      settings: settingsOf({ servers: [], access, worker: 0, workers: 1 }),
      onWaiting: (_, text) => void lines.push(text),
      others: new OtherWorkers({ worker: 0, workers: 1, namespace: '', log: () => undefined }),
      onRestart: () => Promise.resolve(void restarts++),
    });
    const opened = line.open();
    await stepUntil(opened);
  });

  afterEach(async () => {
    line.close(new PeerError('CANCELLED', 'the test is over', {}));
    await proxy.close();
    await ground.close();
    resources.close();
  });

  /** The thread waits for something else meanwhile. */
  async function stepUntil<T>(what: (() => boolean) | Promise<T>): Promise<void> {
    let isDone = false;
    if (what instanceof Promise) void what.finally(() => (isDone = true)).catch(() => undefined);
    await until(() => {
      line.step(nowMs);
      return isDone || (typeof what === 'function' && what());
    });
  }

  /** Time goes by, and the thread looks now and then. */
  async function pass(ms: number, everyMs = 100): Promise<void> {
    for (const endMs = nowMs + ms; nowMs < endMs; nowMs += everyMs) {
      line.step(nowMs);
      await new Promise(setImmediate);
    }
  }

  function waitToDial(): void {
    if (line.fd === undefined) nowMs += 20;
  }

  /** What the worker says arrives nowhere. */
  function silence(): void {
    proxy.meddle = () => '';
  }

  it('is made again when it breaks, and a server that was started again is told so', async () => {
    await ground.servers[0]!.close();
    const { port } = ground.servers[0]!;
    await stepUntil(() => line.fd === undefined);
    const again = await Servers.start(1, { port });
    again.servers[0]!.createService(access);
    try {
      await stepUntil(() => {
        waitToDial();
        return restarts > 0;
      });
    } finally {
      await again.close();
    }
    expect(restarts).toBe(1);
  });

  it('is found to be silent, and made again however long this thread was busy', async () => {
    silence();
    nowMs += 3000;
    line.step(nowMs);
    // Its beat is on its way while nobody looks.
    nowMs += 20 * RECONNECT_MS;
    line.step(nowMs);
    proxy.meddle = (text) => text;
    nowMs += 100;
    await stepUntil(() => proxy.connections === 2);
  });

  it('is given up in time, without a line for people then, and does not end', async () => {
    await proxy.refuse();
    await stepUntil(() => line.fd === undefined);
    await pass(RECONNECT_MS - 1000);
    expect(lines.at(-1)).toMatch(/has been trying server 0/);
    await pass(2000);
    lines.length = 0;
    await pass(10 * RECONNECT_MS, 1000);
    expect(lines).toEqual([]);
    const asked = line.request({ op: 'beat' });
    await pass(RECONNECT_MS - 1000, 1000);
    const state = await Promise.race([asked.catch(() => 'failed'), Promise.resolve('waiting')]);
    expect(state).toBe('waiting');
    nowMs += 2000;
    line.step(nowMs);
    await expect(asked).rejects.toMatchObject({ code: 'UNREACHABLE' });
  });

  it('is given up although each new one breaks only after it was made', async () => {
    proxy.meddle = (text) => (text.includes('"op":"beat"') ? undefined : text);
    const isBroken = () => {
      nowMs += 100;
      return line.fd === undefined;
    };
    await stepUntil(isBroken);
    await pass(RECONNECT_MS);
    await stepUntil(isBroken);
    const { connections } = proxy;
    await pass(2 * RECONNECT_MS);
    expect(proxy.connections).toBe(connections);
  });

  it('leaves no half-made connection to those who ask later', async () => {
    silence();
    proxy.cut();
    await stepUntil(() => {
      waitToDial();
      return proxy.connections === 2;
    });
    await pass(RECONNECT_MS + 1000, 1000);
    expect(line.fd).toBeUndefined();
    proxy.meddle = (text) => text;
    const answered = line.request({ op: 'beat' });
    await stepUntil(answered);
    expect(await answered).toHaveProperty('id');
  });

  it('has no new time for each request after one that was called off', async () => {
    await proxy.refuse();
    await stepUntil(() => line.fd === undefined);
    for (let i = 0; i < 5; i++) {
      const asked = line.request({ op: 'beat' });
      await pass(RECONNECT_MS / 6);
      line.failAll(new PeerError('REWOUND', 'another server was lost', {}));
      await expect(asked).rejects.toMatchObject({ code: 'REWOUND' });
    }
    const asked = line.request({ op: 'beat' });
    const ended = expect(asked).rejects.toMatchObject({ code: 'UNREACHABLE' });
    await pass(RECONNECT_MS / 3);
    line.failAll(new PeerError('REWOUND', 'another server was lost', {}));
    await ended;
  });
});

describe.skipIf(!hasSharedMemory())('a worker that waits for one of two servers', () => {
  let ground: Servers;
  let again: ParameterServer | undefined;
  beforeEach(async () => {
    ground = await Servers.start(2);
    again = undefined;
  });
  afterEach(async () => {
    await ground.closeStores();
    await ground.close();
    await again?.close();
  });

  it('hears that the other one was started again, and goes back', async () => {
    const access = ground.createService();
    const stores = await ground.connect(2, { access, sharedMemory: false, log: () => undefined });
    const value = new Float32Array(1000);
    await each(stores, (store) => store.init({ key: 'w', value }));
    await each(stores, (store) => store.push({ key: 'w', gradient: value }));
    // Only the first server is asked for it.
    const met = stores[0]!.barrier();
    const failed = expect(met).rejects.toMatchObject({ code: 'REWOUND' });
    const { port } = ground.servers[1]!;
    await ground.servers[1]!.close();
    again = await ParameterServer.start({ port });
    again.createService(access);
    await failed;
  });
});

describe('keys that were not opened on all servers yet', () => {
  it('are opened again, with their values, on one that has answered and was lost since', async () => {
    const kernels = Kernels.create(SharedSpace.create({ maxBytes: 2 ** 22 }));
    const asked: { readonly core: number; readonly op: string; readonly bytes: number }[] = [];
    const lineOf = (core: number, answer: () => Promise<Header>) =>
      ({
        request: ({ op }: { op: string }, body: readonly ByteRange[] = []) => {
          asked.push({ core, op, bytes: body.reduce((sum, { byteLength }) => sum + byteLength, 0) });
          return answer();
        },
      }) as unknown as CoreLine;
    const opened = { isFilled: false, places: [], steps: [0] };
    const never = new Promise<Header>(() => undefined);
    const lines = [lineOf(0, () => Promise.resolve(opened)), lineOf(1, () => never)];
    const servers = { lines, servers: 2, coresPerServer: 1, isShared: [false, false] };
    const keys = new KeyTable(0, servers as unknown as ServerLines, kernels, undefined);
    void keys.open([{ key: 'w', value: new Float32Array(1000) }]);
    await new Promise(setImmediate);
    asked.length = 0;
    await keys.openAgain(lines[0]!, true);
    await keys.sendFirstValuesAgain(lines[0]!, true);
    expect(asked.map(({ core, op }) => [core, op])).toEqual([
      [0, 'open'],
      [0, 'values'],
    ]);
    expect(asked[1]!.bytes).toBeGreaterThan(0);
    asked.length = 0;
    await keys.openAgain(lines[1]!, true);
    await keys.sendFirstValuesAgain(lines[1]!, true);
    expect(asked).toEqual([]);
    keys.close();
  });
});
