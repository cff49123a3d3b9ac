/**
 * What an exchange with the servers of a run costs, by its length: pushed, held, applied and pulled again, with keys of its own
 * that train nothing. All workers call it together. Invariant: on all workers the same figures, those of the slowest.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { RemoteStore } from '../kvstore/index.ts';
import { tellAll } from './agreement.ts';
import { aggregatesLocally } from './local-aggregation.ts';
import type { MessageCosts } from './message-costs.ts';
import { median, rowCounts, slowest, type TableShape } from './table-costs.ts';

export interface ServerCosts {
  /** By the bytes of the parameter. */
  readonly dense: MessageCosts;
  /** By the bytes of the rows and indices that one worker pushes. */
  readonly rows: MessageCosts;
}

const ELEMENTS = [1024, 65_536, 524_288];
const [WARM_UP, REPEATS] = [1, 5];

export interface ServerCostsOptions {
  readonly thread: CommunicationThread;
  readonly store: RemoteStore;
  /** Of the tables that could go there. */
  readonly table: TableShape;
  /** Whether the workers of a machine add up first; what that costs inside the machine is left out. */
  readonly localAggregation: boolean;
}

export async function measureServers(options: ServerCostsOptions): Promise<ServerCosts> {
  const { thread, store } = options;
  const gradient = store.allocate(Math.max(...ELEMENTS));
  const keys = ELEMENTS.map((elements) => ({
    ...{ key: `measured ${elements}`, value: gradient.slice(0, elements) },
  }));
  await store.init(keys);
  const own: number[] = [];
  for (const { key, value } of keys) {
    own.push(
      await medianMs(async () => {
        await store.push({ key, gradient: value });
        await store.apply();
        await store.pull({ key, into: store.value(key) ?? value });
      }),
    );
  }
  const all = tellAll(thread, own, 'costs of servers');
  const most = own.map((_, i) => Math.max(...all.map((times) => times[i]!)));
  const dense = ELEMENTS.map((elements, i) => ({ bytes: 4 * elements, ms: Math.min(...most.slice(i)) }));
  return { dense, rows: await measureRows(options) };
}

async function measureRows({
  thread,
  store,
  table,
  localAggregation,
}: ServerCostsOptions): Promise<MessageCosts> {
  const { rank, size, hosts } = thread.world;
  const { rowLength, mostRows } = table;
  const here = hosts.filter((host) => host === hosts[rank]).length;
  const isFirst = hosts.indexOf(hosts[rank]!) === rank;
  // Whoever pushes for its machine pushes the rows of all there, the others none.
  const pushers = localAggregation && aggregatesLocally(thread) ? (isFirst ? here : 0) : 1;
  const tableRows = 2 * size * mostRows;
  const values = store.allocate(Math.max(1, pushers) * mostRows * rowLength);
  const first = store.allocate(tableRows * rowLength);
  await store.init([{ key: 'measured rows', value: first, rowLength }]);
  const counts = rowCounts(table);
  const own: number[] = [];
  for (const count of counts) {
    // Spread over the table, as words are, and each worker has its own.
    const indices = Int32Array.from(
      { length: Math.max(1, pushers) * count },
      (_, i) => 2 * (i * size + rank),
    ).map((index) => index % tableRows);
    const [pushed, pulled] = [indices.slice(0, pushers * count), indices.slice(0, count)];
    const [gradient, into] = [values.slice(0, pushed.length * rowLength), values.slice(0, count * rowLength)];
    own.push(
      await medianMs(async () => {
        await store.pushRows('measured rows', pushed, gradient, { samples: pushers });
        await store.apply();
        await store.pullRows('measured rows', pulled, into);
      }),
    );
  }
  return slowest(thread, counts, own, table);
}

async function medianMs(exchange: () => Promise<void>): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < WARM_UP + REPEATS; i++) {
    const startedMs = performance.now();
    await exchange();
    times.push(performance.now() - startedMs);
  }
  return median(times.slice(WARM_UP));
}
