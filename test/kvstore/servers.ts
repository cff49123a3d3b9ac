/** Real servers on this host for the tests of stores, and stores on them. */
import { randomBytes } from 'node:crypto';
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import type { ParameterServerOptions, ServiceAccess, ServiceOptions } from '../../src/server/index.ts';

/** What all workers do at once. */
export const each = <T>(
  stores: readonly RemoteStore[],
  call: (store: RemoteStore, i: number) => Promise<T>,
) => Promise.all(stores.map(call));

export class Servers {
  readonly servers: readonly ParameterServer[];
  readonly #stores: RemoteStore[] = [];
  #services = 0;

  private constructor(servers: readonly ParameterServer[]) {
    this.servers = servers;
  }

  static async start(count: number, options: ParameterServerOptions = {}): Promise<Servers> {
    const all = Array.from({ length: count }, () => ParameterServer.start(options));
    return new Servers(await Promise.all(all));
  }

  get addresses(): string[] {
    return this.servers.map(({ address, port }) => `${address}:${port}`);
  }

  /** The same service on all servers. */
  createService(options: Partial<ServiceOptions> = {}): ServiceAccess {
    const access = { namespace: `service-${this.#services++}`, nonce: randomBytes(32).toString('hex') };
    for (const server of this.servers) server.createService({ ...access, ...options });
    return access;
  }

  /** The stores of all workers of a service, which add pushes up unless `updater` says otherwise. */
  async connect(
    workers: number,
    options: Partial<RemoteStoreOptions> & { readonly access: ServiceAccess },
  ): Promise<RemoteStore[]> {
    const servers = this.addresses;
    const stores = await Promise.all(
      Array.from({ length: workers }, (_, worker) =>
        RemoteStore.connect({ servers, worker, workers, updater: 'accumulate', ...options }),
      ),
    );
    this.#stores.push(...stores);
    return stores;
  }

  /** Closes all stores that were connected, those that are closed already too. */
  async closeStores(): Promise<void> {
    await Promise.all(this.#stores.splice(0).map((store) => store.close()));
  }

  async close(): Promise<void> {
    await Promise.all(this.servers.map((server) => server.close()));
  }
}
