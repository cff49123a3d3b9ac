/**
 * The end of a service, and of a core: when the memory of a tenant becomes another's, and what is left when a folder cannot be
 * used or a thread dies. The threads are real; what they say to each other can be held back.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { RemoteStore } from '../../src/kvstore/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import type { ServerHost, ThreadLine } from '../../src/server/server-host.ts';
import type { ToCore, ToOffice } from '../../src/server/cores/office.ts';
import { bytesOf, openRequest, pushRequest, RawWorker, until } from './raw-worker.ts';

const LENGTH = 16_384;
const MIB = 2 ** 20;
const filled = (value: number): Float32Array => new Float32Array(LENGTH).fill(value);

/** The machine, but for the ends of services, which are told to cores when the test lets them, and timers, which it fires. */
class HeldHost implements ServerHost {
  readonly files = systemServerHost.files;
  readonly libc = systemServerHost.libc;
  readonly randomHex = systemServerHost.randomHex;
  readonly startCheckpoints = (data: Parameters<ServerHost['startCheckpoints']>[0]) =>
    systemServerHost.startCheckpoints(data);
  readonly lines: ThreadLine<ToOffice, ToCore>[] = [];
  holdsServices = false;
  readonly #held: (() => void)[] = [];
  readonly #timers: (() => void)[] = [];
  readonly clock = {
    ...systemServerHost.clock,
    after: (_delayMs: number, act: () => void) => {
      this.#timers.push(act);
      return () => undefined;
    },
  };

  startCore(...args: Parameters<ServerHost['startCore']>): ThreadLine<ToOffice, ToCore> {
    const line = systemServerHost.startCore(...args);
    const [, { doorbell }] = args;
    this.lines.push(line);
    const post = (message: ToCore) => {
      const isHeld = 'endService' in message || ('service' in message && this.holdsServices);
      if (!isHeld) return line.post(message);
      this.#held.push(() => {
        line.post(message);
        this.libc.ring(doorbell);
      });
    };
    return { ...line, post };
  }

  /** However long it takes: all time passes. */
  passTime(): void {
    for (const act of this.#timers.splice(0)) act();
  }

  tellOne(): void {
    this.#held.shift()?.();
  }
}

describe.skipIf(!hasSharedMemory())('an ended service', () => {
  const closing: { close(): Promise<void> }[] = [];
  const folders: string[] = [];

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
    for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
  });

  async function start(host: ServerHost, cores = 1, log?: (line: string) => void): Promise<ParameterServer> {
    const space = SharedSpace.create({ maxBytes: 32 * MIB });
    const server = await ParameterServer.start({ space, cores, log }, host);
    closing.push(server);
    return server;
  }

  async function storeOf({ port }: ParameterServer, access: ServiceAccess): Promise<RemoteStore> {
    const servers = [`127.0.0.1:${port}`];
    const one = { worker: 0, workers: 1, sharedMemory: false, reconnectTimeoutMs: 500 };
    const updater = 'accumulate';
    const store = await RemoteStore.connect({ servers, access, updater, ...one });
    closing.push(store);
    return store;
  }

  async function opened(server: ParameterServer, access: ServiceAccess): Promise<RawWorker> {
    const worker = await RawWorker.admitted(server, access);
    closing.push(worker);
    await worker.openKey(filled(1));
    return worker;
  }

  async function valuesOf(store: RemoteStore): Promise<Float32Array> {
    const into = filled(0);
    await store.pull({ key: 'w', into });
    return into;
  }

  it('keeps its memory until its core has let go of it, however long that takes', async () => {
    const host = new HeldHost();
    const server = await start(host);
    const worker = await opened(server, server.createService({ namespace: 'a' }));
    server.endService('a');
    host.passTime();
    // What the service that has ended held must not be what the next one gets.
    const theirs = await storeOf(server, server.createService({ namespace: 'b' }));
    await theirs.init({ key: 'w', value: filled(7) });
    await theirs.push({ key: 'w', gradient: filled(0) });
    await worker.done(pushRequest(1), bytesOf(filled(666)));
    expect(await valuesOf(theirs)).toEqual(filled(7));
    host.tellOne();
    await until(() => worker.isClosed);
  });

  it('gives its memory back once all cores have let go, and not before', async () => {
    const host = new HeldHost();
    const space = SharedSpace.create({ maxBytes: 8 * MIB });
    const server = await ParameterServer.start({ space, cores: 2 }, host);
    closing.push(server);
    const large = openRequest('w', MIB);
    const room = async (namespace: string): Promise<unknown> => {
      const worker = await RawWorker.admitted(server, server.createService({ namespace, maxBytes: 7 * MIB }));
      const heard = await worker.ask(large);
      await worker.close();
      return heard === 'closed' ? heard : heard.header.error;
    };
    expect(await room('a')).toBeUndefined();
    server.endService('a');
    host.tellOne();
    host.passTime();
    expect(await room('b')).toMatchObject({
      code: expect.stringMatching(/MODEL_TOO_LARGE|OUT_OF/) as string,
    });
    host.tellOne();
    // The room of the first service comes back when the second core has let go, too.
    let error: unknown = 'none';
    for (let i = 0; error !== undefined && i < 200; i++) error = await room(`c${i}`);
    expect(error).toBeUndefined();
  });

  it('asks nothing of the service that has its name now', async () => {
    const host = new HeldHost();
    const server = await start(host);
    const worker = await opened(server, server.createService({ namespace: 'same' }));
    host.holdsServices = true;
    server.endService('same');
    server.createService({ namespace: 'same' });
    worker.say({ id: 900, ...openRequest('more', LENGTH, 1, 1) });
    worker.say({ id: 901, op: 'map', segment: 'of nobody' });
    worker.say({ id: 902, ...pushRequest(1) }, bytesOf(filled(1)));
    await until(() => worker.take()?.header.id === 902);
    expect(server.services).toEqual([{ namespace: 'same', bytes: 0 }]);
    host.tellOne();
    await until(() => worker.isClosed);
    expect(server.services).toEqual([{ namespace: 'same', bytes: 0 }]);
  });

  it('whose folder cannot be used ends like any other', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tributary-ended-'));
    folders.push(folder);
    const file = join(folder, 'file');
    writeFileSync(file, 'no folder');
    const unhandled: unknown[] = [];
    const note = (error: unknown) => void unhandled.push(error);
    process.on('unhandledRejection', note);
    try {
      const server = await start(systemServerHost);
      const access = server.createService({ namespace: 'a', folder: join(file, 'inside') });
      const worker = await RawWorker.admitted(server, access);
      await worker.done(openRequest('w', 16)).catch(() => undefined);
      await worker.ask({ op: 'checkpoint', step: 1, isDurable: true });
      server.endService('a');
      await until(() => worker.isClosed);
      await server.close();
      await new Promise(setImmediate);
    } finally {
      process.off('unhandledRejection', note);
    }
    expect(unhandled).toEqual([]);
  });
});

describe.skipIf(!hasSharedMemory())('the death of a core', () => {
  it('is a failure of the server: named, and nobody is left waiting', async () => {
    const host = new HeldHost();
    const lines: string[] = [];
    const log = (line: string) => void lines.push(line);
    const server = await ParameterServer.start({ cores: 2, log }, host);
    const access = server.createService({ namespace: 'a' });
    const first = await RawWorker.admitted(server, access);
    await first.openKey(filled(1));
    const [, second] = await portsOf(server, access);
    const other = await RawWorker.admitted({ port: second! }, access, { worker: 1 });
    await host.lines[0]!.terminate();
    await until(() => first.isClosed && other.isClosed);
    expect(server.failure).toMatchObject({ code: 'BROKEN_INVARIANT', facts: { core: 0 } });
    expect(lines.join('\n')).toContain('core 0 ended without being asked to');
    await expect(RawWorker.dial(server)).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    expect(() => server.createService({ namespace: 'b' })).toThrow('core 0 ended');
    server.endService('a');
    await server.close();
  });
});

async function portsOf(server: ParameterServer, access: ServiceAccess): Promise<readonly number[]> {
  const worker = await RawWorker.dial(server);
  const welcome = await worker.introduce(access, { worker: 2 });
  await worker.close();
  return welcome === 'closed' ? [] : (welcome.header.ports as number[]);
}
