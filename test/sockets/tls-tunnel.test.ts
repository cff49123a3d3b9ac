/** The thread that carries connections over TLS: what callers do to it, and what becomes of them when it dies. */
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import type { Worker } from 'node:worker_threads';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import {
  dialAt,
  EAGAIN,
  libc,
  readTunnelRecord,
  TlsTunnel,
  TUNNEL_RECORD_BYTES,
  writeTunnelRecord,
} from '../../src/sockets/index.ts';
import type { TlsOptions } from '../../src/sockets/index.ts';
import { each, Servers } from '../kvstore/servers.ts';
import { until } from '../server/raw-worker.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { TlsRelay } from '../support/tls-relay.ts';
import { closeEnds, memberAddress, openEnd, openEnds } from '../transport/tcp-pair.ts';
import type { End } from '../transport/tcp-pair.ts';

const filled = (length: number, value: number): Float32Array => new Float32Array(length).fill(value);

describe.skipIf(!hasSharedMemory() || !hasOpenssl)('a TLS tunnel', () => {
  let folder = '';
  let tls: TlsOptions;

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    tls = makeCertificates(folder, 'ours');
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  const limits = { handshakeTimeoutMs: 5000, maxPendingHandshakes: 4, log: () => undefined };

  const anywhere = { host: '127.0.0.1', ports: [0, 0], socketBufferBytes: 0 } as const;

  const call = (tunnel: TlsTunnel, port: number): number => {
    const fd = dialAt(libc(), tunnel.dialAddress, 0);
    libc().sendBytes(fd, writeTunnelRecord({ host: '127.0.0.1', port }));
    return fd;
  };

  /** How a call through the tunnel ends. */
  const ended = async (fd: number): Promise<ReturnType<typeof readTunnelRecord> | 'closed'> => {
    const bytes = new Uint8Array(TUNNEL_RECORD_BYTES);
    let got = -EAGAIN;
    await until(() => (got = libc().receiveBytes(fd, bytes)) !== -EAGAIN);
    libc().close(fd);
    return got > 0 ? readTunnelRecord(bytes) : 'closed';
  };

  it('outlives calls that were given up before they were answered', async () => {
    const port = await freePort();
    const tunnel = await TlsTunnel.open(tls, limits);
    for (let i = 0; i < 20; i++) libc().close(call(tunnel, port));
    for (let i = 0; i < 5; i++) expect(await ended(call(tunnel, port))).toEqual({ problem: 'ECONNREFUSED' });
    expect(tunnel.failure).toBeUndefined();
    await tunnel.close();
  });

  it('checks that the certificate of the other side is for the address that is dialled, or for serverName', async () => {
    const elsewhere = makeCertificates(folder, 'elsewhere', ['DNS:elsewhere.tributary', 'IP:127.0.0.2']);
    const other = await TlsRelay.listen(elsewhere, await freePort());
    const result = async (more: Partial<TlsOptions>): Promise<unknown> => {
      const tunnel = await TlsTunnel.open(
        { ...elsewhere, ...more },
        { ...limits, handshakeTimeoutMs: 30_000 },
      );
      const record = await ended(call(tunnel, other.port));
      await tunnel.close();
      return record;
    };
    const wrong = { problem: 'ERR_TLS_CERT_ALTNAME_INVALID' };
    expect(await result({})).toEqual(wrong);
    expect(await result({ serverName: 'somewhere.tributary' })).toEqual(wrong);
    expect(await result({ serverName: 'elsewhere.tributary' })).toEqual({
      channel: expect.stringMatching(/^[0-9a-f]{64}$/) as string,
    });
    await other.close();
  });

  it('gives a call up that nobody answers', async () => {
    const silent = createServer().listen(0, '127.0.0.1');
    await once(silent, 'listening');
    const tunnel = await TlsTunnel.open(tls, { ...limits, handshakeTimeoutMs: 50 });
    const { port } = silent.address() as AddressInfo;
    expect(await ended(call(tunnel, port))).toEqual({ problem: 'ETIMEDOUT' });
    await tunnel.close();
    silent.close();
  });

  it('takes a call though others have connected and say nothing', async () => {
    const strangers: Socket[] = [];
    const tunnel = await TlsTunnel.open(tls, { ...limits, handshakeTimeoutMs: 60_000 }, anywhere);
    const caller = await TlsTunnel.open(tls, limits);
    for (let i = 0; i < 3 * limits.maxPendingHandshakes; i++) {
      const { port } = tunnel.listening!;
      const stranger = connect({ port, host: '127.0.0.1', localAddress: '127.0.0.2' });
      stranger.on('error', () => undefined);
      strangers.push(stranger);
      await once(stranger, 'connect');
    }
    expect(await ended(call(caller, tunnel.listening!.port))).toHaveProperty('channel');
    for (const stranger of strangers) stranger.destroy();
    await caller.close();
    libc().close(tunnel.listening!.fd);
    await tunnel.close();
  });

  it('lets go of a caller that does not close when the engine has, after all that was sent to it', async () => {
    const answer = new Uint8Array(100_000).fill(7);
    const tunnel = await TlsTunnel.open(tls, limits, anywhere);
    const { fd, port } = tunnel.listening!;
    const before = localSockets();
    const { key, cert, ca } = tls;
    const caller = connectTls({ ...{ key, cert, ca, host: '127.0.0.1', port, allowHalfOpen: true } });
    let received = 0;
    caller.on('data', (bytes: Buffer) => (received += bytes.length));
    let accepted = -EAGAIN;
    await until(() => (accepted = libc().accept(fd)) !== -EAGAIN);
    await until(() => libc().receiveBytes(accepted, new Uint8Array(TUNNEL_RECORD_BYTES)) !== -EAGAIN);
    expect(libc().sendBytes(accepted, answer)).toBe(answer.length);
    libc().close(accepted);
    await once(caller, 'end');
    expect(received).toBe(answer.length);
    const ofCaller = 1;
    await until(() => localSockets() === before + ofCaller);
    caller.destroy();
    libc().close(fd);
    await tunnel.close();
  });

  it('leaves no socket behind when a store was connected and closed', async () => {
    const ground = await Servers.start(1, { tls });
    const access = ground.createService();
    const connectAndClose = async (): Promise<void> => {
      const [store] = await ground.connect(1, { access, tls });
      await store!.init({ key: 'w', value: filled(16, 1) });
      await ground.closeStores();
    };
    await connectAndClose();
    const before = localSockets();
    for (let i = 0; i < 5; i++) await connectAndClose();
    expect(localSockets()).toBe(before);
    await ground.close();
  });
});

describe.skipIf(!hasSharedMemory() || !hasOpenssl)('the death of a tunnel', () => {
  let folder = '';
  let tls: TlsOptions;
  /** Threads that were started since. */
  const threads: Worker[] = [];
  const onThread = (thread: Worker): void => void threads.push(thread);
  /** Forgets those that were started so far; the process is told of each a little later. */
  const startWatching = async (): Promise<void> => {
    await new Promise(setImmediate);
    threads.length = 0;
  };

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    tls = makeCertificates(folder, 'ours');
    process.on('worker', onThread);
  });
  afterAll(() => {
    process.off('worker', onThread);
    rmSync(folder, { recursive: true, force: true });
  });

  it('is the loss of all peers to a transport, by name, and ends what waits for others', async () => {
    await startWatching();
    const ends = await openEnds(2, { tls });
    const [a, b] = ends as [End, End];
    await threads[0]!.terminate();
    await until(() => {
      a.transport.poll();
      b.transport.poll();
      return a.told.lost.length > 0 && b.told.lost.length > 0;
    });
    expect(a.told.lost).toMatchObject([
      { peer: 1, error: { code: 'PEER_LOST', message: expect.stringContaining('TLS tunnel') as string } },
    ]);
    expect(b.told.lost).toMatchObject([{ peer: 0, error: { code: 'PEER_LOST' } }]);
    const later = await openEnd({ tls });
    const waiting = a.transport.connect(0, [memberAddress(2, later.transport)]);
    await expect(waiting).rejects.toMatchObject({
      code: 'PEER_LOST',
      message: expect.stringContaining('TLS tunnel of this process has failed') as string,
    });
    await closeEnds([...ends, later]);
  });

  it('ends what a store waits for, and all that it is asked for later', async () => {
    const ground = await Servers.start(1, { tls });
    const access = ground.createService();
    await startWatching();
    const stores = await ground.connect(2, { access, tls, sharedMemory: false });
    await each(stores, (store) => store.init({ key: 'w', value: filled(16, 1) }));
    const waiting = stores[0]!.barrier();
    const failure = expect(waiting).rejects.toMatchObject({
      code: 'PEER_LOST',
      message: expect.stringContaining('TLS tunnel of this process has failed') as string,
    });
    await threads[0]!.terminate();
    await failure;
    await expect(stores[0]!.pull({ key: 'w', into: filled(16, 0) })).rejects.toMatchObject({
      code: 'PEER_LOST',
    });
    await ground.closeStores();
    await ground.close();
  });

  it('is the failure of a server', async () => {
    await startWatching();
    const lines: string[] = [];
    const ground = await Servers.start(1, { tls, log: (line) => void lines.push(line) });
    await threads[0]!.terminate();
    await until(() => ground.servers[0]!.failure !== undefined);
    expect(ground.servers[0]!.failure).toMatchObject({ code: 'PEER_LOST' });
    expect(lines.join('\n')).toContain('TLS tunnel of this process has failed');
    await ground.close();
  });
});

/** Listening sockets and others that this process holds. */
function localSockets(): number {
  const target = (fd: string): string => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return '';
    }
  };
  return readdirSync('/proc/self/fd').filter((fd) => target(fd).startsWith('socket:')).length;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
