/**
 * Services that are created and ended over the network, by administrators, by tenants who are none,
 * and by strangers.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { createServices, endServices, listServices, ParameterServer } from '../../src/server/index.ts';
import type { ParameterServerOptions, ServiceAccess } from '../../src/server/index.ts';
import { administer } from '../../src/server/administration/client.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import type { ServerHost } from '../../src/server/server-host.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { challenge } from '../../src/sockets/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { TlsRelay } from '../support/tls-relay.ts';
import { FaultyFiles } from './durability/faulty-files.ts';
import { askRaw, HELLO, keyOf } from './raw-administrator.ts';
import { RawWorker, until } from './raw-worker.ts';

const secret = randomBytes(32).toString('hex');
const key = keyOf(secret);
const salt = () => randomBytes(32).toString('hex');

describe.skipIf(!hasSharedMemory())('an administrator', () => {
  const folder = temporaryFolders();
  const servers: ParameterServer[] = [];
  const stores: RemoteStore[] = [];

  afterEach(async () => {
    for (const store of stores.splice(0)) await store.close();
    await Promise.all(servers.splice(0).map((server) => server.close()));
  });

  async function start(options: ParameterServerOptions = {}, host?: ServerHost): Promise<ParameterServer> {
    const server = await ParameterServer.start({ administration: { secret }, ...options }, host);
    servers.push(server);
    return server;
  }

  const addressOf = ({ port }: ParameterServer) => `127.0.0.1:${port}`;

  async function connect(all: readonly ParameterServer[], access: ServiceAccess, workers: number) {
    const connected = await Promise.all(
      Array.from({ length: workers }, (_, worker) =>
        RemoteStore.connect({
          ...{ servers: all.map(addressOf), access, worker, workers, updater: 'accumulate' },
          reconnectTimeoutMs: 2000,
        }),
      ),
    );
    stores.push(...connected);
    return connected;
  }

  it('creates a service on two servers, whose workers train with the nonce that it derives, and ends it', async () => {
    const all = [await start({ cores: 2 }), await start({ cores: 2 })];
    const addresses = all.map(addressOf);
    const { access, servers: made } = await createServices(
      addresses,
      { namespace: 'a', workers: 2 },
      { secret },
    );
    expect(made.map(({ answer }) => answer.isNew)).toEqual([true, true]);
    const workers = await connect(all, access, 2);
    await Promise.all(workers.map((store) => store.init({ key: 'w', value: new Float32Array(40_000) })));
    for (let step = 0; step < 3; step++) {
      await Promise.all(
        workers.map((store) => store.push({ key: 'w', gradient: new Float32Array(40_000).fill(1) })),
      );
    }
    const [listed] = await listServices(addresses, { secret });
    expect(listed!.answer).toMatchObject([
      { namespace: 'a', isCreated: true, workers: 2, mode: 'synchronous', connected: 2, steps: 3 },
    ]);
    expect(listed!.answer[0]!.bytes).toBeGreaterThan(0);

    const ended = await endServices(addresses, 'a', { secret });
    expect(ended.map(({ answer }) => answer.wasThere)).toEqual([true, true]);
    expect(all.map(({ services }) => services)).toEqual([[], []]);
    const again = await endServices(addresses, 'a', { secret });
    expect(again.map(({ answer }) => answer.wasThere)).toEqual([false, false]);
  });

  it('counts workers that are connected, and those only', async () => {
    const server = await start();
    const { access } = await createServices([addressOf(server)], { namespace: 'a' }, { secret });
    const list = async () => (await listServices([addressOf(server)], { secret }))[0]!.answer[0]!;
    expect(await list()).toMatchObject({ workers: null, mode: null, connected: 0, steps: 0 });
    const worker = await RawWorker.admitted(server, access);
    expect(await list()).toMatchObject({ workers: 1, mode: 'asynchronous', connected: 1 });
    await worker.close();
    while ((await list()).connected > 0);
  });

  it('gives the number of workers, and others are refused before the first one counts', async () => {
    const server = await start();
    const { access } = await createServices([addressOf(server)], { namespace: 'a', workers: 2 }, { secret });
    await expect(connect([server], access, 1)).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining("workers is 1 here, but service 'a' was created for 2") as string,
    });
    await connect([server], access, 2);
  });

  it('creates again what is there, and gets the same nonce', async () => {
    const server = await start();
    const create = (options: object = {}) =>
      createServices([addressOf(server)], { namespace: 'a', graceMs: 9, ...options }, { secret });
    const first = await create();
    const second = await create({ lostWorkers: 'release' });
    expect(second.servers[0]!.answer.isNew).toBe(false);
    expect(second.access).toEqual(first.access);
    await expect(create({ workers: 3, graceMs: 5 })).rejects.toMatchObject({
      code: 'SERVICE_EXISTS',
      message: expect.stringMatching(
        /workers as the first worker says, not 3 and graceMs 9, not 5; .*end it first/,
      ) as string,
    });
    await endServices([addressOf(server)], 'a', { secret });
    const third = await create();
    expect(third.servers[0]!.answer.isNew).toBe(true);
    expect(third.access.nonce).not.toBe(first.access.nonce);
  });

  it('finishes what failed on one of two servers, with the nonce of the other', async () => {
    const one = await start();
    const { access } = await createServices([addressOf(one)], { namespace: 'a' }, { secret });
    const other = await start();
    const both = await createServices([one, other].map(addressOf), { namespace: 'a' }, { secret });
    expect(both.servers.map(({ answer }) => answer.isNew)).toEqual([false, true]);
    expect(both.access).toEqual(access);
    await connect([one, other], access, 1);
  });

  it('is told when two servers have a service from two commands', async () => {
    const both = [await start(), await start()];
    for (const server of both) await createServices([addressOf(server)], { namespace: 'a' }, { secret });
    await expect(createServices(both.map(addressOf), { namespace: 'a' }, { secret })).rejects.toMatchObject({
      code: 'SERVICE_EXISTS',
      message: expect.stringContaining('another nonce') as string,
    });
  });

  it('creates nothing where one of the servers could not, and learns which one', async () => {
    const one = await start();
    const other = await start({ administration: { secret: randomBytes(32) } });
    const addresses = [one, other].map(addressOf);
    await expect(createServices(addresses, { namespace: 'a' }, { secret })).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringContaining(addresses[1]!) as string,
    });
    expect(one.services).toEqual([]);
  });

  it('cannot touch what was given at the start, but sees it', async () => {
    const server = await start();
    const access = server.createService({ namespace: 'given' });
    await connect([server], access, 1);
    const address = addressOf(server);
    await expect(createServices([address], { namespace: 'given' }, { secret })).rejects.toMatchObject({
      code: 'SERVICE_EXISTS',
    });
    await expect(endServices([address], 'given', { secret })).rejects.toMatchObject({
      code: 'SERVICE_EXISTS',
    });
    const [listed] = await listServices([addressOf(server)], { secret });
    expect(listed!.answer).toMatchObject([{ namespace: 'given', isCreated: false, connected: 1 }]);
  });

  it.each([
    ['--lost-workers wait', { lostWorkers: 'wait' as const }],
    ['--durability', { durability: 'disk' as const }],
    ['--max-log-bytes', { maxLogBytes: 1 }],
  ])('is refused %s by a server that keeps nothing', async (name, options) => {
    const server = await start();
    await expect(
      createServices([addressOf(server)], { namespace: 'a', ...options }, { secret }),
    ).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining(
        `${name}, and the server keeps nothing; start it with --folder`,
      ) as string,
    });
    expect(server.services).toEqual([]);
  });

  describe('who is none', () => {
    it('is refused at once with a wrong secret, and the log has a line without it', async () => {
      const lines: string[] = [];
      const server = await start({ log: (line) => lines.push(line) });
      const wrong = randomBytes(32).toString('hex');
      await expect(listServices([addressOf(server)], { secret: wrong })).rejects.toMatchObject({
        code: 'REFUSED',
        message: expect.stringContaining('--admin-secret-file') as string,
      });
      await until(() => lines.length > 0);
      expect(lines.join()).toContain("does not know the administrator's secret");
      for (const one of [wrong, secret]) expect(lines.join()).not.toContain(one);
    });

    it('is refused by name where the server has no administrator', async () => {
      const server = await start({ administration: undefined });
      await expect(listServices([addressOf(server)], { secret })).rejects.toMatchObject({
        code: 'REFUSED',
        message: expect.stringContaining('start it with --admin-secret-file FILE') as string,
      });
    });

    it('cannot be a worker, by the nonce of a service that it has', async () => {
      const server = await start();
      const { access } = await createServices([addressOf(server)], { namespace: 'a' }, { secret });
      const request = { op: 'end', namespace: 'a' };
      for (const purpose of [undefined, 'parameter server a']) {
        const heard = await askRaw(server, request, { key: access.nonce, ...(purpose && { purpose }) });
        expect(heard).toMatchObject({ header: { kind: 'refused' } });
      }
      // Nor does a worker's proof that it has begun become one of an administrator.
      const worker = await RawWorker.admitted(server, access);
      await worker.ask({ kind: 'request', request });
      await worker.close();
      expect(server.services).toHaveLength(1);
    });

    it('cannot alter what is asked, nor ask again what somebody else has asked', async () => {
      const server = await start();
      const list = { op: 'list' };
      expect(await askRaw(server, list, { key })).toMatchObject({ header: { kind: 'answer' } });
      const end = { request: { op: 'end', namespace: 'a' } };
      expect(await askRaw(server, list, { key, change: end })).toMatchObject({ header: { kind: 'refused' } });
      const recorded = await RawWorker.dial(server);
      recorded.say({ ...HELLO, nonce: challenge() });
      await recorded.hear();
      const again = await RawWorker.dial(server);
      for (const bytes of recorded.said) again.write(bytes);
      expect(await again.hear()).toMatchObject({ header: { kind: 'challenge' } });
      again.say({ kind: 'request', request: list, proof: '0'.repeat(64) });
      expect(await again.hear()).toMatchObject({ header: { kind: 'refused' } });
      expect(await again.hear()).toBe('closed');
      await recorded.close();
    });

    it.each([
      ['a number', { request: 7 }],
      ['an unknown request', { request: { op: 'stop' } }],
      ['a name that leads out of its folder', { request: { op: 'end', namespace: '../a' } }],
      ['a service without salt', { request: create({ salt: undefined }) }],
      ['an option that is not known', { request: create({ rule: './mine.js' }) }],
      ['no workers', { request: create({ workers: 0 }) }],
      ['a fraction of a worker', { request: create({ workers: 1.5 }) }],
      ['another kind of durability', { request: create({ durability: 'tape' }) }],
      ['a negative time', { request: create({ graceMs: -1 }) }],
      ['bytes beyond all memory', { request: create({ maxBytes: 2 ** 60 }) }],
      ['a service that is a list', { request: { op: 'create', isTrial: false, service: [] } }],
    ])('that knows the secret and asks for %s gets an error that is proved', async (_what, { request }) => {
      const server = await start();
      await expect(administer(addressOf(server), request as never, { secret })).rejects.toMatchObject({
        code: 'PROTOCOL_VIOLATION',
        message: expect.stringContaining(addressOf(server)) as string,
      });
      expect(server.services).toEqual([]);
      expect((await listServices([addressOf(server)], { secret }))[0]!.answer).toEqual([]);
    });

    it.each([
      ['a hello without a nonce', [HELLO]],
      ['another version', [{ ...HELLO, version: 99, nonce: challenge() }]],
      ['a request before its hello', [{ kind: 'request', request: { op: 'list' }, proof: '0'.repeat(64) }]],
      [
        'a proof that is none',
        [
          { ...HELLO, nonce: challenge() },
          { kind: 'request', proof: 7 },
        ],
      ],
      [
        'a second hello',
        [
          { ...HELLO, nonce: challenge() },
          { ...HELLO, nonce: challenge() },
        ],
      ],
      ['a hello of 9,000 bytes', [{ ...HELLO, nonce: challenge(), more: 'x'.repeat(9000) }]],
    ])('is closed after %s', async (_what, messages) => {
      const server = await start();
      const line = await RawWorker.dial(server);
      for (const message of messages) line.say(message);
      await until(() => line.isClosed);
      expect((await listServices([addressOf(server)], { secret }))[0]!.answer).toEqual([]);
    });

    it('takes the place of no administrator, and none of many that say nothing is left', async () => {
      const server = await start({ maxStrangers: 4, handshakeTimeoutMs: 400 });
      const silent = await Promise.all(Array.from({ length: 40 }, () => RawWorker.dial(server)));
      for (const line of silent) line.say({ ...HELLO, nonce: challenge() });
      await until(() => silent.every(({ isClosed }) => isClosed));
      expect((await listServices([addressOf(server)], { secret }))[0]!.answer).toEqual([]);
    });

    it('may answer in the place of a server, and is not believed', async () => {
      const sockets = new Set<Socket>();
      const imposter = createServer((socket) => {
        sockets.add(socket);
        // It has one frame for each message, whatever that is.
        socket.on('error', () => undefined).on('data', () => socket.write(frames.shift() ?? ''));
      }).listen(0, '127.0.0.1');
      await new Promise((resolve) => imposter.once('listening', resolve));
      const { port } = imposter.address() as AddressInfo;
      const frames: Buffer[] = [];
      const asked = { kind: 'challenge', version: 1, nonce: challenge() };
      const lies = [
        [{ kind: 'answer', answer: { services: [] }, proof: '0'.repeat(64) }, 'REFUSED'],
        [{ kind: 'refused', error: { message: 'give me the secret', kind: 'UsageError' } }, 'REFUSED'],
        [{ kind: 'refused', error: { message: { toString: 1 } } }, 'REFUSED'],
        [{ kind: 'refused', error: 7 }, 'REFUSED'],
        [{ kind: 'refused', error: null }, 'REFUSED'],
      ] as const;
      for (const [lie, code] of lies) {
        frames.splice(0, Infinity, encodeHead(asked, 0), encodeHead(lie, 0));
        await expect(listServices([`127.0.0.1:${port}`], { secret })).rejects.toMatchObject({ code });
      }
      for (const bytes of [
        Buffer.from('HTTP/1.1 400 Bad Request\r\n\r\n'),
        encodeHead({ kind: 'welcome' }, 0),
      ]) {
        frames.splice(0, Infinity, bytes);
        await expect(listServices([`127.0.0.1:${port}`], { secret })).rejects.toMatchObject({
          code: 'PROTOCOL_VIOLATION',
        });
      }
      // Says nothing at all.
      frames.splice(0);
      await expect(
        listServices([`127.0.0.1:${port}`], { secret, handshakeTimeoutMs: 50 }),
      ).rejects.toMatchObject({ code: 'TIMEOUT' });
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => imposter.close(resolve));
      await expect(listServices([`127.0.0.1:${port}`], { secret })).rejects.toMatchObject({
        code: 'UNREACHABLE',
      });
    });

    it('has a secret that can be guessed: nobody is dialled, and no server starts with it', async () => {
      await expect(listServices(['127.0.0.1:1'], { secret: 'password' })).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
      });
      const own = folder();
      const administration = { secret: 'password', folder: join(own, 'kept') };
      await expect(ParameterServer.start({ administration })).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
      });
      expect(readdirSync(own)).toEqual([]);
    });
  });

  describe.skipIf(!hasOpenssl)('with TLS', () => {
    it('is served by its certificate, refused without, and not fooled by somebody in between', async () => {
      const own = folder();
      const [ours, theirs] = [makeCertificates(own, 'ours'), makeCertificates(own, 'theirs')];
      const server = await start({ tls: ours });
      const { access } = await createServices([addressOf(server)], { namespace: 'a' }, { secret, tls: ours });
      const store = await RemoteStore.connect({
        ...{ servers: [addressOf(server)], access, worker: 0, workers: 1, tls: ours },
      });
      await store.close();
      const list = (options: object, port = server.port) =>
        listServices([`127.0.0.1:${port}`], { secret, handshakeTimeoutMs: 5000, ...options });
      await expect(list({})).rejects.toMatchObject({ code: 'UNREACHABLE' });
      await expect(list({ tls: { ...theirs, ca: ours.ca } })).rejects.toMatchObject({ code: 'UNREACHABLE' });
      await expect(list({ tls: { ...ours, serverName: 'other.name' } })).rejects.toMatchObject({
        code: 'UNREACHABLE',
      });
      await expect(list({ tls: { ...ours, key: 'no key' } })).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
      });
      const between = await TlsRelay.listen(ours, server.port);
      await expect(list({ tls: ours }, between.port)).rejects.toMatchObject({ code: 'REFUSED' });
      expect(between.connections).toBeGreaterThan(0);
      await between.close();
    });
  });

  describe('of a server with a folder', () => {
    const fileOf = (own: string) => join(own, '.services', 'services.json');
    const hostWith = (files: FaultyFiles): ServerHost => ({
      ...systemServerHost,
      get libc() {
        return systemServerHost.libc;
      },
      files,
    });

    it('finds what it created when the server is started again, with the nonces that workers have', async () => {
      const own = folder();
      const administration = { secret, folder: own };
      const before = await start({ administration });
      const created = await createServices(
        [addressOf(before)],
        { namespace: 'a', workers: 1, lostWorkers: 'wait' },
        { secret },
      );
      await createServices([addressOf(before)], { namespace: 'b' }, { secret });
      await endServices([addressOf(before)], 'b', { secret });
      expect(readFileSync(fileOf(own), 'utf8')).not.toContain(created.access.nonce);
      await before.close();
      const after = await start({ administration });
      expect(after.services.map(({ namespace }) => namespace)).toEqual(['a']);
      await connect([after], created.access, 1);
    });

    it('has the memory of an ended service back, and its folder free, when it is answered', async () => {
      const own = folder();
      const server = await start({ administration: { secret, folder: own } });
      const service = { namespace: 'a', durability: 'disk' as const };
      for (let round = 0; round < 3; round++) {
        const { access } = await createServices([addressOf(server)], service, { secret });
        const [store] = await connectAsynchronous(server, access);
        await store.init({ key: 'w', value: new Float32Array(100) });
        await store.push({ key: 'w', gradient: new Float32Array(100).fill(1) });
        const into = new Float32Array(1000).subarray(0, 100);
        await store.pull({ key: 'w', into });
        // What is under the name goes on.
        expect(into[0]).toBe(round + 1);
        await endServices([addressOf(server)], 'a', { secret });
      }
    });

    async function connectAsynchronous(server: ParameterServer, access: ServiceAccess) {
      const store = await RemoteStore.connect({
        ...{ servers: [addressOf(server)], access, worker: 0, workers: 1, updater: 'accumulate' },
        consistency: { kind: 'asynchronous' },
      });
      stores.push(store);
      return [store] as const;
    }

    it.each(['open', 'write', 'flush', 'rename'] as const)(
      'is refused what cannot be kept: a failing %s creates nothing and ends nothing',
      async (call) => {
        const own = folder();
        const files = new FaultyFiles();
        const server = await start({ administration: { secret, folder: own } }, hostWith(files));
        const options = { secret };
        await createServices([addressOf(server)], { namespace: 'first' }, options);
        files.fault = (one, path) => (one === call && path.includes('.services') ? 'EIO' : undefined);
        await expect(
          createServices([addressOf(server)], { namespace: 'second' }, options),
        ).rejects.toMatchObject({
          code: 'FILE_NOT_WRITTEN',
        });
        await expect(endServices([addressOf(server)], 'first', options)).rejects.toMatchObject({
          code: 'FILE_NOT_WRITTEN',
        });
        expect(server.services.map(({ namespace }) => namespace)).toEqual(['first']);
        files.fault = () => undefined;
        await createServices([addressOf(server)], { namespace: 'second' }, options);
        await server.close();
        const after = await start({ administration: { secret, folder: own } });
        expect(after.services.map(({ namespace }) => namespace)).toEqual(['first', 'second']);
      },
    );

    it('finds what was answered after a power cut', async () => {
      const own = folder();
      const files = new FaultyFiles();
      const server = await start({ administration: { secret, folder: own } }, hostWith(files));
      await createServices([addressOf(server)], { namespace: 'a' }, { secret });
      await createServices([addressOf(server)], { namespace: 'b' }, { secret });
      await endServices([addressOf(server)], 'a', { secret });
      await server.close();
      files.cutPower('nothing');
      const after = await start({ administration: { secret, folder: own } });
      expect(after.services.map(({ namespace }) => namespace)).toEqual(['b']);
    });

    it('is told of a second server in the same folder', async () => {
      const administration = { secret, folder: folder() };
      await start({ administration });
      await expect(ParameterServer.start({ administration })).rejects.toMatchObject({
        code: 'FOLDER_IN_USE',
        message: expect.stringContaining(String(process.pid)) as string,
      });
    });

    it('gets no server that would offer services with other nonces, or that cannot read what it kept', async () => {
      const own = folder();
      const server = await start({ administration: { secret, folder: own } });
      await createServices([addressOf(server)], { namespace: 'a' }, { secret });
      await server.close();
      const other = { secret: randomBytes(32), folder: own };
      await expect(ParameterServer.start({ administration: other })).rejects.toMatchObject({
        code: 'INVALID_ARGUMENT',
        message: expect.stringContaining("another administrator's secret") as string,
      });
      const whole = readFileSync(fileOf(own), 'utf8');
      const kept = JSON.parse(whole) as { services: object[] };
      const faults = [
        '',
        whole.slice(0, -4),
        'null',
        '7',
        JSON.stringify({ ...kept, version: 2 }),
        JSON.stringify({ ...kept, services: [...kept.services, ...kept.services] }),
        JSON.stringify({ ...kept, services: [{ ...kept.services[0], namespace: '../a' }] }),
        JSON.stringify({ ...kept, services: [{ ...kept.services[0], salt: 'x' }] }),
        JSON.stringify({ ...kept, services: [null] }),
      ];
      for (const text of faults) {
        writeFileSync(fileOf(own), text);
        await expect(
          ParameterServer.start({ administration: { secret, folder: own } }),
          text,
        ).rejects.toMatchObject({
          code: 'INVALID_DATA',
          message: expect.stringContaining(fileOf(own)) as string,
        });
      }
      writeFileSync(fileOf(own), whole);
      const after = await start({ administration: { secret, folder: own } });
      expect(after.services).toHaveLength(1);
    });

    it('leaves alone what a killed process has left beside the file', async () => {
      const own = folder();
      mkdirSync(join(own, '.services'), { recursive: true, mode: 0o700 });
      writeFileSync(`${fileOf(own)}.new`, 'half a fi');
      const server = await start({ administration: { secret, folder: own } });
      await createServices([addressOf(server)], { namespace: 'a' }, { secret });
      expect(existsSync(`${fileOf(own)}.new`)).toBe(false);
    });
  });
});

function create(change: object): object {
  return { op: 'create', isTrial: false, service: { namespace: 'a', salt: salt(), ...change } };
}
