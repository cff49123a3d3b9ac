/**
 * Servers that listen at several addresses: how the connections of workers spread over them, and
 * what remains when one of the addresses is gone. The addresses are those of the loopback
 * interface, of which Linux has many.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { listServices, ParameterServer, readListenAddresses } from '../../src/server/index.ts';
import type { ParameterServerOptions, ServiceAccess } from '../../src/server/index.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';

const HOSTS = ['127.0.0.1', '127.0.0.2', '127.0.0.3'];
const isLinux = process.platform === 'linux';

/**
 * Connections that are open at this port of a loopback address, seen from the side that accepted
 * them.
 */
function openAt(host: string, port: number): number {
  const local = `${Buffer.from(host.split('.').map(Number)).reverse().toString('hex')}:${port.toString(16).padStart(4, '0')}`;
  const rows = readFileSync('/proc/net/tcp', 'utf8').split('\n').slice(1);
  return rows.filter((row) => {
    const [, at, , state] = row.trim().split(/\s+/);
    return at?.toLowerCase() === local && state === '01';
  }).length;
}

/**
 * Passes bytes on between a port of its own and another; what goes through it can be cut or
 * swallowed.
 */
class Wire {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** Takes connections and never answers. */
  isDead = false;
  taken = 0;

  constructor(target: () => { host: string; port: number }) {
    this.#server = createServer((caller) => {
      this.taken++;
      this.#keep(caller);
      if (this.isDead) return;
      const other = connect(target());
      this.#keep(other);
      for (const [one, another] of [
        [caller, other],
        [other, caller],
      ] as const)
        one.on('close', () => another.destroy()).pipe(another);
    });
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('error', () => undefined);
  }

  async listen(host: string): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, host, resolve));
    return (this.#server.address() as AddressInfo).port;
  }

  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
  }

  async close(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

it('addresses are read as users write them', () => {
  expect(readListenAddresses(['10.0.0.5:7000, 10.1.0.5:0', '[::1]:7000'])).toEqual([
    { address: '10.0.0.5', port: 7000 },
    { address: '10.1.0.5', port: 0 },
    { address: '::1', port: 7000 },
  ]);
});

describe.skipIf(!hasSharedMemory() || !isLinux)('a server at several addresses', () => {
  const closing: { close(): Promise<void> }[] = [];
  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function start(options: ParameterServerOptions): Promise<ParameterServer> {
    const server = await ParameterServer.start(options);
    closing.push(server);
    return server;
  }

  const at = (hosts: readonly string[]) => hosts.map((address) => ({ address, port: 0 }));
  const textOf = ({ listening }: ParameterServer) =>
    listening.map(({ address, port }) => `${address}:${port}`).join('+');

  async function workersOf(servers: string[], access: ServiceAccess, workers: number, options: object = {}) {
    const stores = await Promise.all(
      Array.from({ length: workers }, (_, worker) =>
        RemoteStore.connect({
          ...{
            servers,
            access,
            worker,
            workers,
            updater: 'accumulate',
            sharedMemory: false,
            log: () => undefined,
          },
          ...options,
        }),
      ),
    );
    closing.push({ close: async () => void (await Promise.all(stores.map((store) => store.close()))) });
    return stores;
  }

  /** All workers push, and all pull the sum. */
  async function exchange(stores: readonly RemoteStore[], length = 60_000): Promise<number[]> {
    const values = stores.map(() => new Float32Array(length));
    await Promise.all(
      stores.map((store, i) =>
        store.pushpull({ key: 'w', gradient: new Float32Array(length).fill(1), into: values[i]! }),
      ),
    );
    return [...new Set(values.flatMap((into) => [...new Set(into)]))];
  }

  const init = (stores: readonly RemoteStore[], length = 60_000) =>
    Promise.all(stores.map((store) => store.init({ key: 'w', value: new Float32Array(length) })));

  it.each([
    [1, 2, 4],
    [2, 2, 2],
    [3, 2, 2],
    [4, 3, 3],
    [2, 3, 3],
  ])(
    'with %i cores at %i addresses has the connections of %i workers spread evenly',
    async (cores, count, workers) => {
      const server = await start({ cores, listen: at(HOSTS.slice(0, count)) });
      const access = server.createService({ namespace: 'a' });
      const stores = await workersOf([textOf(server)], access, workers);
      await init(stores);
      expect(await exchange(stores)).toEqual([workers]);
      const open = server.listening.map(({ address }, i) =>
        server.ports[i]!.reduce((sum, port) => sum + openAt(address, port), 0),
      );
      expect(open.reduce((sum, one) => sum + one)).toBe(cores * workers);
      expect(Math.max(...open) - Math.min(...open)).toBeLessThanOrEqual(1);
    },
  );

  it('serves a worker that knows one of them only', async () => {
    const server = await start({ cores: 2, listen: at(HOSTS.slice(0, 2)) });
    for (const { address, port } of server.listening) {
      const access = server.createService({ namespace: `by-${address}` });
      const stores = await workersOf([`${address}:${port}`], access, 1);
      await init(stores);
      expect(await exchange(stores)).toEqual([1]);
    }
  });

  it('goes on by another address when one is cut, or swallows all that is sent, and comes back', async () => {
    const server = await start({ cores: 1, listen: at(HOSTS.slice(0, 2)) });
    const access = server.createService({ namespace: 'a' });
    const wires = server.listening.map(({ address: host, port }) => new Wire(() => ({ host, port })));
    closing.push(...wires);
    const ports = await Promise.all(wires.map((wire, i) => wire.listen(HOSTS[i]!)));
    const address = ports.map((port, i) => `${HOSTS[i]}:${port}`).join('+');
    const stores = await workersOf([address], access, 1, { reconnectTimeoutMs: 4000 });
    await init(stores);
    expect(await exchange(stores)).toEqual([1]);
    expect(wires.map(({ taken }) => taken)).toEqual([1, 0]);
    // Takes connections, as a switch that is half dead, and says nothing.
    wires[0]!.isDead = true;
    wires[0]!.cut();
    expect(await exchange(stores)).toEqual([2]);
    expect(wires[1]!.taken).toBeGreaterThan(0);
    const { taken } = wires[0]!;
    wires[0]!.isDead = false;
    wires[1]!.cut();
    expect(await exchange(stores)).toEqual([3]);
    // The first one is tried first again.
    expect(wires[0]!.taken).toBeGreaterThan(taken);
  });

  it('is connected to by those of its addresses that work, from the beginning', async () => {
    const server = await start({ cores: 2, listen: at(['127.0.0.1']) });
    const access = server.createService({ namespace: 'a' });
    // Port 1 refuses at once.
    const stores = await workersOf([`127.0.0.9:1+${textOf(server)}`], access, 2, {
      reconnectTimeoutMs: 4000,
    });
    await init(stores);
    expect(await exchange(stores)).toEqual([2]);
  });

  it.skipIf(!hasOpenssl)('speaks TLS at each of them, and is administrated by any', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    closing.push({ close: () => Promise.resolve(rmSync(folder, { recursive: true })) });
    const tls = makeCertificates(folder, 'ours', ['IP:127.0.0.1', 'IP:127.0.0.2']);
    const secret = '0123456789abcdef'.repeat(2);
    const server = await start({ cores: 2, listen: at(HOSTS.slice(0, 2)), tls, administration: { secret } });
    const access = server.createService({ namespace: 'a' });
    const stores = await workersOf([textOf(server)], access, 2, { tls });
    await init(stores);
    expect(await exchange(stores)).toEqual([2]);
    for (const address of [textOf(server), textOf(server).split('+')[1]!]) {
      const [listed] = await listServices([address], { secret, tls });
      expect(listed!.answer).toMatchObject([{ namespace: 'a', connected: 2 }]);
    }
  });

  it('leaves nothing open where one of its addresses cannot be used', async () => {
    const taken = await start({ listen: at(['127.0.0.2']) });
    const listen = [...at(['127.0.0.1']), { address: '127.0.0.2', port: taken.port }];
    await expect(ParameterServer.start({ listen })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      facts: { address: '127.0.0.2' },
    });
    await expect(ParameterServer.start({ listen: at(['127.0.0.1', '192.0.2.1']) })).rejects.toMatchObject({
      message: expect.stringContaining('192.0.2.1 does not belong to this host') as string,
    });
  });

  it.each([
    ['none', [], 1, 'listens at 1 to 16 addresses, not at 0'],
    [
      'one twice',
      readListenAddresses(['127.0.0.1:7000,127.0.0.1:7000']),
      1,
      'cannot listen twice at 127.0.0.1:7000',
    ],
    ['seventeen', at(Array.from({ length: 17 }, (_, i) => `127.0.1.${i}`)), 1, 'not at 17'],
    ['too many ports', at(HOSTS.concat('127.0.0.4')), 200, '200 cores at 4 addresses are 800 ports'],
  ])('is refused %s', async (_what, listen, cores, fault) => {
    await expect(ParameterServer.start({ listen, cores })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining(fault) as string,
    });
  });

  it.each([
    '127.0.0.1',
    '127.0.0.1:0',
    ':7000',
    '127.0.0.1:99999',
    '127.0.0.1:7000+',
    '+',
    '127.0.0.1:7000+nowhere',
  ])('is no address for a worker: %s', async (address) => {
    const access = { namespace: 'a', nonce: '0'.repeat(64) };
    await expect(
      RemoteStore.connect({ servers: [address], access, worker: 0, workers: 1 }),
    ).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('is no address of a server') as string,
    });
  });
});
