/**
 * What an exchange with the servers of a run costs, by its length: pushed, held, applied and pulled again, in a store of
 * its own that trains nothing. All workers call it together. Invariants: on all workers the same figures, those of the slowest;
 * nothing of it stays on the servers.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { tellAll } from './agreement.ts';
import { aggregatesLocally } from './local-aggregation.ts';
import type { MessageCosts } from './message-costs.ts';
import type { RunServers } from './run-servers.ts';
import type { ThreadStore } from './thread-store.ts';
import { median, rowCounts, slowest, type TableShape } from './table-costs.ts';

export interface ServerCosts {
  /** By the bytes of the parameter. */
  readonly dense: MessageCosts;
  /** By the bytes of the rows and indices that one worker pushes. */
  readonly rows: MessageCosts;
  /** Share of an exchange that is the push; update and pull are the rest. Of the longest ones. */
  readonly pushShare: number;
}

const ELEMENTS = [1024, 65_536, 524_288];
const [WARM_UP, REPEATS] = [1, 5];

export interface ServerCostsOptions {
  readonly thread: CommunicationThread;
  readonly openTrial: NonNullable<RunServers['openTrial']>;
  /** Of the tables that could go there. */
  readonly table: TableShape;
  /** Whether the workers of a machine add up first; what that costs inside the machine is left out. */
  readonly localAggregation: boolean;
}

/**
 * Of servers of others, whose service is not measured, as it keeps what it is given: as much as
 * collectives.
 */
export function assumedServerCosts(messages: MessageCosts, gather: MessageCosts = messages): ServerCosts {
  return { dense: messages, rows: gather, pushShare: 0.5 };
}

export async function measureServers(options: ServerCostsOptions): Promise<ServerCosts> {
  const { store, close } = await options.openTrial();
  try {
    const dense = await measureDense(options.thread, store);
    const rows = await measureRows(options, store);
    await close();
    const shares = tellAll(options.thread, [dense.pushShare, rows.pushShare], 'shares of pushes').flatMap(
      (both) => [...both],
    );
    const pushShare = shares.reduce((sum, one) => sum + one, 0) / shares.length;
    return { dense: dense.costs, rows: rows.costs, pushShare };
  } catch (error) {
    // Who waits for others that failed as well, waits long.
    await store.close();
    throw error;
  }
}

/** On all workers the same but for the share, which is that of this one. */
interface MeasuredExchanges {
  readonly costs: MessageCosts;
  readonly pushShare: number;
}

async function measureDense(thread: CommunicationThread, store: ThreadStore): Promise<MeasuredExchanges> {
  const gradient = store.allocate(Math.max(...ELEMENTS));
  const keys = ELEMENTS.map((elements) => ({
    ...{ key: `measured ${elements}`, value: gradient.slice(0, elements) },
  }));
  await store.init(keys);
  const own: Timed[] = [];
  for (const { key, value } of keys) {
    own.push(
      await timed(
        store,
        () => store.push({ key, gradient: value }),
        () => [store.apply(), store.pull({ key, into: store.value(key) ?? value })],
      ),
    );
  }
  const all = tellAll(
    thread,
    own.map(({ ms }) => ms),
    'costs of servers',
  );
  const most = own.map((_, i) => Math.max(...all.map((times) => times[i]!)));
  const costs = ELEMENTS.map((elements, i) => ({ bytes: 4 * elements, ms: Math.min(...most.slice(i)) }));
  return { costs, pushShare: own.at(-1)!.pushShare };
}

async function measureRows(
  { thread, table, localAggregation }: ServerCostsOptions,
  store: ThreadStore,
): Promise<MeasuredExchanges> {
  const { rank, size, hosts } = thread.world;
  const { rowLength, mostRows } = table;
  const here = hosts.flatMap((host, other) => (host === hosts[rank] ? [other] : []));
  // Whoever pushes for its machine pushes the rows of all there, the others none.
  const pushers = localAggregation && aggregatesLocally(thread) ? (here[0] === rank ? here : []) : [rank];
  const values = store.allocate(Math.max(1, pushers.length) * mostRows * rowLength);
  const first = store.allocate(measuredRows(size, mostRows) * rowLength);
  await store.init([{ key: 'measured rows', value: first, rowLength }]);
  const counts = rowCounts(table);
  const own: Timed[] = [];
  for (const count of counts) {
    const [pushed, pulled] = [rowsOf(pushers, size, count), rowsOf([rank], size, count)];
    const [gradient, into] = [values.slice(0, pushed.length * rowLength), values.slice(0, count * rowLength)];
    own.push(
      await timed(
        store,
        () => store.pushRows('measured rows', pushed, gradient, { samples: pushers.length }),
        () => [store.apply(), store.pullRows('measured rows', pulled, into)],
      ),
    );
  }
  const costs = slowest(
    thread,
    counts,
    own.map(({ ms }) => ms),
    table,
  );
  return { costs, pushShare: own.at(-1)!.pushShare };
}

/** Rows of a table in which so many workers have so many rows each. */
export function measuredRows(workers: number, count: number): number {
  return 2 * workers * count;
}

/** `count` rows of each of the ranks, ascending: spread over the table, as words are, and each worker has its own. */
export function rowsOf(ranks: readonly number[], workers: number, count: number): Int32Array {
  const { length } = ranks;
  return Int32Array.from(
    { length: length * count },
    (_, i) => 2 * (Math.floor(i / length) * workers + ranks[i % length]!),
  );
}

/** Of whole exchanges, medians. */
interface Timed {
  readonly ms: number;
  readonly pushShare: number;
}

/** As a step does it: the pull is asked for before the update is answered. */
async function timed(
  store: ThreadStore,
  push: () => Promise<unknown>,
  rest: () => Promise<unknown>[],
): Promise<Timed> {
  const [wholeMs, pushMs]: [number[], number[]] = [[], []];
  for (let i = 0; i < WARM_UP + REPEATS; i++) {
    const startedMs = performance.now();
    const pushed = push();
    store.settle();
    await pushed;
    const pushedMs = performance.now();
    const applied = rest();
    store.settle();
    await Promise.all(applied);
    wholeMs.push(performance.now() - startedMs);
    pushMs.push(pushedMs - startedMs);
  }
  const ms = median(wholeMs.slice(WARM_UP));
  return { ms, pushShare: Math.min(1, median(pushMs.slice(WARM_UP)) / ms) };
}
