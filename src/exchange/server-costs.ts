/**
 * What an exchange with the servers of a run costs, by its length: pushed, held, applied and pulled again, with keys of its own
 * that train nothing. All workers call it together. Invariant: on all workers the same figures, those of the slowest.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { RemoteStore } from '../kvstore/index.ts';
import { tellAll } from './agreement.ts';
import type { MessageCosts } from './message-costs.ts';

export interface ServerCosts {
  /** By the bytes of the parameter. */
  readonly dense: MessageCosts;
  /** By the bytes of the rows and indices that one worker pushes. */
  readonly rows: MessageCosts;
}

const [ROW_LENGTH, TABLE_ROWS] = [64, 8192];
const ROWS = [16, 512, TABLE_ROWS / 2];
const ELEMENTS = [1024, 65_536, 524_288];
const REPEATS = 5;

export async function measureServers(thread: CommunicationThread, store: RemoteStore): Promise<ServerCosts> {
  const table = store.allocate(TABLE_ROWS * ROW_LENGTH);
  const gradient = store.allocate(Math.max(...ELEMENTS));
  const keys = ELEMENTS.map((elements) => ({
    key: `measured ${elements}`,
    value: gradient.slice(0, elements),
  }));
  await store.init([{ key: 'measured rows', value: table, rowLength: ROW_LENGTH }, ...keys]);
  const dense: number[] = [];
  for (const { key, value } of keys) {
    dense.push(
      await medianMs(async () => {
        await store.push({ key, gradient: value });
        await store.apply();
        await store.pull({ key, into: store.value(key) ?? value });
      }),
    );
  }
  const rows: number[] = [];
  for (const count of ROWS) {
    // Spread over the table, as words are.
    const indices = Int32Array.from({ length: count }, (_, i) => Math.floor((i * TABLE_ROWS) / count));
    const values = table.slice(0, count * ROW_LENGTH);
    rows.push(
      await medianMs(async () => {
        await store.pushRows('measured rows', indices, values);
        await store.apply();
        await store.pullRows('measured rows', indices, values);
      }),
    );
  }
  const all = tellAll(thread, [...dense, ...rows], 'costs of servers');
  const slowest = dense.concat(rows).map((_, i) => Math.max(...all.map((times) => times[i]!)));
  const points = (lengths: readonly number[], times: readonly number[]): MessageCosts =>
    // A shorter one that took longer was disturbed.
    lengths.map((bytes, i) => ({ bytes, ms: Math.min(...times.slice(i)) }));
  return {
    dense: points(
      ELEMENTS.map((elements) => 4 * elements),
      slowest.slice(0, dense.length),
    ),
    rows: points(
      ROWS.map((count) => count * 4 * (ROW_LENGTH + 1)),
      slowest.slice(dense.length),
    ),
  };
}

async function medianMs(exchange: () => Promise<void>): Promise<number> {
  await exchange();
  const times: number[] = [];
  for (let i = 0; i < REPEATS; i++) {
    const startedMs = performance.now();
    await exchange();
    times.push(performance.now() - startedMs);
  }
  return times.sort((a, b) => a - b)[Math.floor(REPEATS / 2)]!;
}
