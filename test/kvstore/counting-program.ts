/**
 * A worker process for tests that kill it: pushes ones, asynchronously, so that the value of a key is the number of pushes that
 * were applied, and says each that was acknowledged. At the end it says what it finds on the servers.
 */
import { RemoteStore } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import { Limit, listen, readAssignment, say } from './kill-program.ts';

export interface CountingAssignment {
  readonly store: RemoteStoreOptions;
  /** Pushes of this process; when one more is allowed, it counts. */
  readonly pushes: number;
  /** The last push that may be done until a line says another one. */
  readonly upTo: number;
  /** Pushes between two checkpoints, of which the first is taken at once; undefined: others take them. */
  readonly checkpointEvery?: number | undefined;
  /** Whether it takes a first checkpoint before anything is pushed. */
  readonly isBeginning: boolean;
}

const LENGTH = 601;
const [ROWS, ROW_LENGTH] = [64, 3];

const { store: options, pushes, upTo, checkpointEvery, isBeginning } = readAssignment<CountingAssignment>();
say('loaded');
const limit = new Limit(upTo);
const stopListening = listen((line) => limit.raise(Number(line)));
const store = await RemoteStore.connect({ ...options, updater: 'accumulate' });
await store.init([
  { key: 'dense', value: new Float32Array(LENGTH) },
  { key: 'rows', value: new Float32Array(ROWS * ROW_LENGTH), rowLength: ROW_LENGTH },
]);
if (isBeginning) await store.checkpoint(0, { isDurable: true });
say('ready');
const dense = store.allocate(LENGTH);
dense.view.fill(1);
const indices = Int32Array.from({ length: ROWS }, (_, i) => i);
const rows = new Float32Array(ROWS * ROW_LENGTH).fill(1);
for (let push = 1; push <= pushes; push++) {
  await limit.reached(push);
  const [[status]] = await Promise.all([
    store.push({ key: 'dense', gradient: dense }),
    store.pushRows('rows', indices, rows),
  ]);
  say('acknowledged', { push });
  // Versions grow, also if this is not the first process of the worker.
  if (checkpointEvery !== undefined && push % checkpointEvery === 0) await store.checkpoint(status!.version);
}
say('pushed');
await limit.reached(pushes + 1);
await store.pull({ key: 'dense', into: dense });
await store.pullRows('rows', indices, rows);
say('counted', { dense: rangeOf(dense.view), rows: rangeOf(rows) });
await store.close();
stopListening();

function rangeOf(values: Float32Array): readonly [least: number, most: number] {
  return [Math.min(...values), Math.max(...values)];
}
