/** Opening connections to several servers: all of them are there, or none is left. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { LinePump } from '../../src/kvstore/remote/line-pump.ts';
import type { Pumped } from '../../src/kvstore/remote/line-pump.ts';
import { ServerLines } from '../../src/kvstore/remote/server-lines.ts';
import { settingsOf } from '../../src/kvstore/remote/store-options.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { StreamResources } from '../../src/server/index.ts';
import { systemHost } from '../../src/sockets/index.ts';
import { Servers } from './servers.ts';

class WatchedPump extends LinePump {
  readonly lines = new Set<Pumped>();

  override add(line: Pumped): void {
    this.lines.add(line);
    super.add(line);
  }

  override remove(line: Pumped): void {
    this.lines.delete(line);
    super.remove(line);
  }
}

describe.skipIf(!hasSharedMemory())('connections to several servers', () => {
  let ground: Servers;
  beforeEach(async () => {
    ground = await Servers.start(2, { cores: 2 });
  });
  afterEach(async () => {
    await ground.closeStores();
    await ground.close();
  });

  it('are all closed when one server refuses while the name of another is looked up', async () => {
    const access = ground.createService();
    // Only the first server knows already how the service is trained, and refuses whoever trains it otherwise.
    await ground.connect(1, { access, servers: ground.addresses.slice(0, 1) });
    const pump = new WatchedPump(systemHost);
    const resources = new StreamResources(SharedSpace.create(), systemHost.libc);
    let find: (address: string) => void = () => undefined;
    const found = new Promise<string>((resolve) => (find = resolve));
    const servers = [ground.addresses[0]!, `late.test:${ground.servers[1]!.port}`];
    const opening = ServerLines.open(
      servers,
      {
        ...{ host: systemHost, pump, access, worker: 0, resources, incarnation: 'ab'.repeat(32) },
        settings: settingsOf({ servers, access, worker: 0, workers: 2, updater: 'accumulate' }),
        ...{ reconnectTimeoutMs: 30_000, requestTimeoutMs: 30_000, log: () => undefined },
        onRestart: () => Promise.resolve(),
        resolve: (host) => (host === 'late.test' ? found : Promise.resolve(host)),
      },
      undefined,
      () => false,
    );
    await expect(opening).rejects.toThrow(/workers is 2 here/);
    expect(pump.lines.size).toBe(0);
    find('127.0.0.1');
    await new Promise(setImmediate);
    const left = pump.lines.size;
    for (const line of pump.lines) pump.remove(line);
    expect(left).toBe(0);
    resources.close();
  });
});
