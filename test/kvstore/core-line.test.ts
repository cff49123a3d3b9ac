/** How every request of a worker ends: answered, refused for good, or given up because the server is gone or silent. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { CoreLine } from '../../src/kvstore/remote/core-line.ts';
import { OtherWorkers } from '../../src/kvstore/remote/other-workers.ts';
import { seldom } from '../../src/kvstore/remote/server-lines.ts';
import { settingsOf } from '../../src/kvstore/remote/store-options.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { StreamResources } from '../../src/server/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import { internetAddress, systemHost } from '../../src/sockets/index.ts';
import { linePumpOf } from '../../src/kvstore/remote/line-pump.ts';
import { RawWorker, until } from '../server/raw-worker.ts';
import { KillGround } from './kill-ground.ts';
import { MeddlingProxy } from './meddling-proxy.ts';
import { Servers } from './servers.ts';

/** Long enough for a handshake on a busy machine. */
const REACHABLE_MS = 2000;
const filled = (length: number, value: number) => new Float32Array(length).fill(value);

describe.skipIf(!hasSharedMemory())('a worker behind a proxy', () => {
  let ground: Servers;
  let proxy: MeddlingProxy;
  let access: ServiceAccess;
  const stores: RemoteStore[] = [];
  beforeEach(async () => {
    ground = await Servers.start(1);
    proxy = await MeddlingProxy.start(ground.servers[0]!.port);
    access = ground.createService();
  });
  afterEach(async () => {
    proxy.meddle = (text) => text;
    await Promise.all(stores.splice(0).map((store) => store.close()));
    await proxy.close();
    await ground.close();
  });

  async function connect(options: Partial<RemoteStoreOptions> = {}): Promise<RemoteStore> {
    const store = await RemoteStore.connect({
      ...{ servers: [proxy.address], access, worker: 0, workers: 1, sharedMemory: false },
      ...{ updater: 'accumulate', log: () => undefined, ...options },
    });
    stores.push(store);
    return store;
  }

  it('dials again when its connection breaks, and repeats what was not answered', async () => {
    const store = await connect();
    await store.init({ key: 'w', value: filled(4, 0) });
    let isCut = false;
    proxy.meddle = (text) => {
      if (isCut || !text.includes('"op":"exchange"')) return text;
      isCut = true;
      return undefined;
    };
    const into = filled(4, 0);
    await store.pushpull({ key: 'w', gradient: filled(4, 1), into });
    expect([...into]).toEqual([1, 1, 1, 1]);
    expect(proxy.connections).toBe(2);
  });

  it('gives up a request at which every connection breaks, however often it gets through to the server', async () => {
    const store = await connect({ reconnectTimeoutMs: REACHABLE_MS });
    await store.init({ key: 'w', value: filled(4, 0) });
    // A list that each connection is told, and that is answered each time.
    await store.pull({ key: 'w', into: filled(4, 0) });
    proxy.meddle = (text) => (text.includes('"op":"barrier"') ? undefined : text);
    await expect(store.barrier()).rejects.toMatchObject({
      ...{
        code: 'UNREACHABLE',
        message: expect.stringMatching(/for 2000 ms: it closed the connection/) as string,
      },
    });
    expect(proxy.connections).toBeGreaterThan(2);
  });

  it('says what the server closed the connection for', async () => {
    const store = await connect({ reconnectTimeoutMs: REACHABLE_MS });
    proxy.meddle = (text) => (text.includes('"op":"barrier"') ? text.replace('TRPS', 'HTTP') : text);
    await expect(store.barrier()).rejects.toMatchObject({
      code: 'UNREACHABLE',
      message: expect.stringMatching(/it closed the connection: worker 0 speaks another protocol/) as string,
    });
  });

  it.each([
    ['is malformed', (text: string) => text.replace('"number":', '"numbed":')],
    ['nobody knows', (text: string) => text.replace('"op":"barrier"', '"op":"barrel"')],
  ])('hears at once that a request %s, and goes on', async (_what, change) => {
    const store = await connect();
    await store.init({ key: 'w', value: filled(4, 0) });
    proxy.meddle = (text) => {
      const changed = change(text);
      // The length of the header is in its prefix.
      return changed.replace(/TRPS.{4}/s, (prefix) =>
        changed.length === text.length ? prefix : `TRPS${lengthOf(changed.length - 16)}`,
      );
    };
    await expect(store.barrier()).rejects.toMatchObject({ name: 'PeerError', code: 'PROTOCOL_VIOLATION' });
    proxy.meddle = (text) => text;
    await store.barrier();
    await store.push({ key: 'w', gradient: filled(4, 1) });
    expect(proxy.connections).toBe(1);
  });

  it('waits for others as long as its server answers beats', async () => {
    const options = { workers: 2, reconnectTimeoutMs: REACHABLE_MS };
    const [slow, first] = await Promise.all([
      connect({ ...options, servers: ground.addresses, worker: 1 }),
      connect(options),
    ]);
    await Promise.all([first, slow].map((store) => store.init({ key: 'w', value: filled(4, 0) })));
    let beats = 0;
    proxy.heard = (text) => (beats += text.split('"op":"beat"').length - 1);
    const into = filled(4, 0);
    const pushed = first.pushpull({ key: 'w', gradient: filled(4, 1), into });
    // Four beats take as long as it would try a server that is gone.
    await until(() => beats >= 6);
    await slow.push({ key: 'w', gradient: filled(4, 10) });
    await pushed;
    expect([...into]).toEqual([11, 11, 11, 11]);
    expect(proxy.connections).toBe(1);
  });

  it('says after two seconds which workers it waits for', async () => {
    const lines: string[] = [];
    const store = await connect({ workers: 2, log: (line) => void lines.push(line) });
    await store.init({ key: 'w', value: filled(4, 0) });
    const into = filled(4, 0);
    await store.pull({ key: 'w', into });
    const pushed = store.pushpull({ key: 'w', gradient: filled(4, 1), into });
    await until(() => lines.length > 0);
    expect(lines).toEqual([
      `worker 0 of 2 has waited 2 s for worker 1 of service '${access.namespace}': server 0 at ${proxy.address} has not answered 'exchange' yet; start it if it does not run`,
    ]);
    const late = await connect({ workers: 2, worker: 1 });
    await late.init({ key: 'w', value: filled(4, 0) });
    await late.push({ key: 'w', gradient: filled(4, 10) });
    await pushed;
    expect([...into]).toEqual([11, 11, 11, 11]);
  });

  it('says which worker was lost after all have met', async () => {
    const lines: string[] = [];
    const options = {
      workers: 2,
      updater: 'accumulate',
      log: (line: string) => void lines.push(line),
    } as const;
    const store = await connect(options);
    await store.init({ key: 'w', value: filled(4, 0) });
    const settings = settingsOf({ servers: [], access, worker: 1, ...options });
    const other = await RawWorker.admitted(ground.servers[0]!, access, { worker: 1, settings });
    const met = store.barrier();
    await other.done({ op: 'barrier', number: 0 });
    await met;
    await other.close();
    const pushed = store.push({ key: 'w', gradient: filled(4, 1) });
    await until(() => lines.length > 0);
    expect(lines).toEqual([
      expect.stringMatching(
        /^worker 0 of 2 has waited 2 s for worker 1 of service '.*', which is not connected: server 0 at .* has not answered 'exchange' yet; start it again under its number if it does not run$/,
      ),
    ]);
    await store.close();
    await expect(pushed).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  it('says after two seconds what to compare if its nonce is wrong', async () => {
    const lines: string[] = [];
    const wrong = { ...access, nonce: '0'.repeat(64) };
    const connecting = connect({
      access: wrong,
      reconnectTimeoutMs: 3000,
      log: (line) => void lines.push(line),
    });
    const nextStep =
      /compare the service's name \(access\.namespace\) and the nonce with .* \(nonces\/.*\.nonce\), and check the address/;
    await expect(connecting).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringMatching(nextStep) as string,
    });
    expect(lines).toEqual([expect.stringMatching(nextStep)]);
  });

  it('does not wait for ever for others who never come', async () => {
    const store = await connect({ workers: 2, requestTimeoutMs: 500 });
    await expect(store.barrier()).rejects.toMatchObject({
      code: 'TIMEOUT',
      message: expect.stringMatching(
        /worker 0 has waited 500 ms .* 'barrier'.*raise requestTimeoutMs/,
      ) as string,
    });
  });
});

describe.skipIf(!hasSharedMemory())('a worker whose server process is stopped', () => {
  let ground: KillGround;
  let store: RemoteStore | undefined;
  afterEach(async () => {
    await store?.close();
    await ground.close();
  });

  it.each([true, false])('is told so (shared memory: %s)', async (sharedMemory) => {
    ground = await KillGround.start({ servers: 1, cores: 2 });
    const [server] = ground.servers;
    // Before it is stopped a busy machine may take its time; then the worker's time flies.
    let stoppedMs = Infinity;
    const { clock } = systemHost;
    const nowMs = () => clock.nowMs() + 20 * Math.max(0, clock.nowMs() - stoppedMs);
    store = await RemoteStore.connect(
      {
        ...{ servers: ground.addresses, access: ground.access, worker: 0, workers: 1, sharedMemory },
        ...{ reconnectTimeoutMs: 30_000, log: () => undefined },
      },
      { ...systemHost, clock: { ...clock, nowMs } },
    );
    await store.init({ key: 'w', value: filled(10_000, 0) });
    await store.push({ key: 'w', gradient: filled(10_000, 1) });
    server!.process.signal('SIGSTOP');
    stoppedMs = clock.nowMs();
    try {
      await expect(store.push({ key: 'w', gradient: filled(10_000, 1) })).rejects.toMatchObject({
        ...{ name: 'PeerError', code: 'UNREACHABLE' },
        message: expect.stringMatching(/worker 0 has not reached server 0 at .* for 30000 ms/) as string,
      });
    } finally {
      server!.process.signal('SIGCONT');
    }
  });
});

describe.skipIf(!hasSharedMemory())('a worker whose server is not there', () => {
  it('tells people after two seconds what is being tried', async () => {
    const lines: string[] = [];
    const resources = new StreamResources(SharedSpace.create({ maxBytes: 2 ** 20 }), systemHost.libc);
    const line = new CoreLine({
      ...{ host: systemHost, pump: linePumpOf(systemHost) },
      ...{ title: 'server 0 at 127.0.0.1:1', resources },
      places: [{ address: internetAddress('127.0.0.1', 1), throughTunnel: undefined }],
      access: { namespace: 'none', nonce: '0'.repeat(64) },
      ...{ worker: 3, incarnation: '0'.repeat(64), reconnectTimeoutMs: 30_000, requestTimeoutMs: 1e9 },
      settings: settingsOf({ servers: [], access: { namespace: '', nonce: '' }, worker: 3, workers: 4 }),
      onWaiting: (_, text) => void lines.push(text),
      others: new OtherWorkers({ worker: 3, workers: 4, namespace: 'none', log: () => undefined }),
      onRestart: () => Promise.resolve(),
    });
    const opened = expect(line.open()).rejects.toMatchObject({ code: 'UNREACHABLE' });
    const startMs = performance.now();
    line.step(startMs + 1500);
    expect(lines).toEqual([]);
    line.step(startMs + 2500);
    expect(lines).toEqual([
      expect.stringMatching(
        /^worker 3 has been trying server 0 at 127\.0\.0\.1:1 for 2 s: .*; check that the server runs and that its address is right; it gives up after 30 s \(reconnectTimeoutMs\)$/,
      ),
    ]);
    line.step(startMs + 31_000);
    await opened;
    resources.close();
  });

  it('tells them seldom', () => {
    const lines: string[] = [];
    const note = seldom((line) => void lines.push(line));
    for (let ms = 0; ms < 25_000; ms += 16) note(ms, `after ${ms} ms`);
    expect(lines).toEqual(['after 0 ms', 'after 10000 ms', 'after 20000 ms']);
  });
});

function lengthOf(bytes: number): string {
  const word = Buffer.alloc(4);
  word.writeUInt32LE(bytes);
  return word.toString('latin1');
}
