/** Stores of a cluster that was joined with TLS: nothing that they open or dial is without it. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Scheduler } from '../../src/cluster/index.ts';
import type { Cluster } from '../../src/cluster/index.ts';
import { createStore } from '../../src/kvstore/index.ts';
import type { CreateStoreOptions, KVStore } from '../../src/kvstore/index.ts';
import { joinCluster } from '../../src/launcher/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { TlsOptions } from '../../src/sockets/index.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { listeningPorts, speaksTls } from '../support/listening-ports.ts';
import { SECRET } from '../support/secrets.ts';
import { Servers } from './servers.ts';

const LENGTH = 16;
/** Between racks there is so little that they pay. */
const NARROW = { boxBytesPerSecond: 4e9, workerBytesPerSecond: 4e9, coreBytesPerSecond: 125e6 };

describe.skipIf(!hasSharedMemory() || !hasOpenssl)('in a cluster with TLS', () => {
  let folder = '';
  let tls: TlsOptions;
  let scheduler: Scheduler;
  let clusters: Cluster[] = [];
  let stores: KVStore[] = [];

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    tls = makeCertificates(folder, 'ours');
  });
  afterEach(async () => {
    await Promise.all(stores.map((store) => store.close()));
    await Promise.all(clusters.map((cluster) => cluster.close()));
    await scheduler.close();
    stores = [];
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  const joinAll = async (size: number): Promise<void> => {
    scheduler = await Scheduler.start({ size, secret: SECRET, tls });
    const { address } = scheduler;
    clusters = await Promise.all(
      Array.from({ length: size }, (_, wantedRank) =>
        joinCluster({
          scheduler: address,
          secret: SECRET,
          transport: 'tcp',
          wantedRank,
          measure: false,
          tls,
        }),
      ),
    );
  };
  const open = async (options: Partial<CreateStoreOptions>): Promise<void> => {
    stores = await Promise.all(
      clusters.map((cluster) => createStore('dist-sgd', { cluster, secret: SECRET, ...options })),
    );
  };

  it.each<[string, number, Partial<CreateStoreOptions>]>([
    ['servers in workers', 2, { servers: 2, sharedMemory: false }],
    ['racks', 4, { racks: [0, 0, 1, 1], bandwidths: NARROW, betweenRacks: 'shards', sharedMemory: false }],
  ])('a store with %s listens with TLS only, and works', async (_what, size, options) => {
    await joinAll(size);
    await open(options);
    const ports = listeningPorts();
    // The scheduler, a transport for each worker, two servers.
    expect(ports).toHaveLength(1 + size + 2);
    expect(await Promise.all(ports.map(speaksTls))).toEqual(ports.map(() => true));
    await Promise.all(stores.map((store) => store.init({ key: 'w', value: new Float32Array(LENGTH) })));
    const gradient = new Float32Array(LENGTH).fill(1);
    await Promise.all(stores.map((store) => store.push({ key: 'w', gradient })));
    const into = new Float32Array(LENGTH);
    await Promise.all(stores.map((store) => store.pull({ key: 'w', into })));
    expect([...new Set(into)]).toEqual([size]);
  });

  it('a store on servers of their own does not talk to those without TLS', async () => {
    const plain = await Servers.start(1);
    await joinAll(2);
    const access = plain.createService();
    const opening = open({ servers: plain.addresses, access, reconnectTimeoutMs: 300 });
    await expect(opening).rejects.toMatchObject({ code: 'UNREACHABLE' });
    await plain.close();
  });
});
