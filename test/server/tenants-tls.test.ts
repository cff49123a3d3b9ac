/** A parameter server behind TLS: stores whose certificates one authority signed, and strangers with others or none. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RemoteStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import type { TlsOptions } from '../../src/sockets/index.ts';
import { Servers } from '../kvstore/servers.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { TlsRelay } from '../support/tls-relay.ts';
import { RawWorker } from './raw-worker.ts';

const filled = (length: number, value: number): Float32Array => new Float32Array(length).fill(value);

describe.skipIf(!hasSharedMemory() || !hasOpenssl)('a parameter server with TLS', () => {
  let folder = '';
  let ours: TlsOptions;
  let theirs: TlsOptions;
  let ground: Servers;
  let access: ServiceAccess;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    [ours, theirs] = [makeCertificates(folder, 'ours'), makeCertificates(folder, 'theirs')];
    ground = await Servers.start(1, { cores: 2, tls: ours, handshakeTimeoutMs: 500 });
    access = ground.createService();
  });
  afterAll(async () => {
    await ground.close();
    rmSync(folder, { recursive: true, force: true });
  });

  it.each([true, false])('trains two workers, shared memory: %s', async (sharedMemory) => {
    const own = ground.createService();
    const stores = await ground.connect(2, { access: own, tls: ours, sharedMemory });
    const length = 300_000;
    await Promise.all(stores.map((store) => store.init({ key: 'w', value: filled(length, 1) })));
    const values = await Promise.all(
      stores.map(async (store, rank) => {
        const into = filled(length, 0);
        await store.pushpull({ key: 'w', gradient: filled(length, rank + 1), into });
        return [...new Set(into)];
      }),
    );
    expect(values).toEqual([[4], [4]]);
    for (const store of stores) await store.close();
  });

  it('refuses a worker that comes without TLS, though it knows the nonce', async () => {
    const worker = await RawWorker.dial(ground.servers[0]!);
    expect(await worker.introduce(access)).toBe('closed');
    const options = { servers: ground.addresses, access, worker: 0, workers: 1, reconnectTimeoutMs: 500 };
    await expect(RemoteStore.connect(options)).rejects.toMatchObject({ code: 'UNREACHABLE' });
    await worker.close();
  });

  it('refuses a certificate of another authority, though its owner knows the nonce', async () => {
    const options = { servers: ground.addresses, access, worker: 0, workers: 1, reconnectTimeoutMs: 1000 };
    const tls = { ...theirs, ca: ours.ca };
    await expect(RemoteStore.connect({ ...options, tls })).rejects.toMatchObject({ code: 'UNREACHABLE' });
  });

  it('is not fooled by somebody in between with a certificate that both trust', async () => {
    const between = await TlsRelay.listen(ours, ground.servers[0]!.port);
    const servers = [`127.0.0.1:${between.port}`];
    const options = { servers, access, worker: 0, workers: 1, tls: ours, reconnectTimeoutMs: 1000 };
    await expect(RemoteStore.connect(options)).rejects.toMatchObject({ code: 'REFUSED' });
    expect(between.connections).toBeGreaterThan(0);
    await between.close();
  });

  it('refuses a wrong nonce, though the certificate is right', async () => {
    const wrong = { ...access, nonce: '0'.repeat(64) };
    const who = { servers: ground.addresses, access: wrong, worker: 0, workers: 1 };
    const options = { ...who, tls: ours, reconnectTimeoutMs: 1000 };
    await expect(RemoteStore.connect(options)).rejects.toMatchObject({ code: 'REFUSED' });
  });

  it('is not talked to by a worker that trusts another authority', async () => {
    const options = { servers: ground.addresses, access, worker: 0, workers: 1, reconnectTimeoutMs: 1000 };
    const tls = { ...ours, ca: theirs.ca };
    await expect(RemoteStore.connect({ ...options, tls })).rejects.toMatchObject({ code: 'UNREACHABLE' });
    expect(ground.servers[0]!.failure).toBeUndefined();
  });
});
