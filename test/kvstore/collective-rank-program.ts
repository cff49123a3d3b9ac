/** A rank as a process: trains two small keys and a table through a client over a store of its own, and without servers. */
import { enterCluster, leaveCluster, say, settings } from '../collectives/rank-program-start.ts';
import { createClientStore } from '../../src/kvstore/client-store.ts';
import { createCollectiveStore } from '../../src/kvstore/collective-store.ts';
import { createLocalStores } from '../../src/kvstore/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';

const cluster = await enterCluster();
const { world: group, space } = cluster;
const LONG = 50_000;

async function train(store: KVStore): Promise<unknown> {
  const { rank } = store;
  await store.init([
    { key: 'long', value: new Float32Array(LONG) },
    { key: 'short', value: new Float32Array(3) },
    { key: 'table', value: new Float32Array(12), rowLength: 3 },
  ]);
  const long = cluster.allocate('float32', LONG);
  const short = new Float32Array(3);
  const row = new Float32Array(3);
  const gradient = cluster.allocate('float32', LONG);
  gradient.view.fill(rank + 1);
  for (let step = 0; step < 10; step++) {
    const exchanges = [
      () => store.pushpull({ key: 'long', gradient, into: long }),
      () => store.pushpull({ key: 'short', gradient: Float32Array.of(1, 2, rank), into: short }),
      () => store.pushRows('table', Int32Array.of(rank % 2, 3), new Float32Array(6).fill(1)),
    ];
    // Every rank in an order of its own.
    await Promise.all(exchanges.map((_, i) => exchanges[(i + rank) % exchanges.length]!()));
  }
  await store.pullRows('table', Int32Array.of(3), row);
  await store.barrier();
  const answer = { first: long.view[0], last: long.view[LONG - 1], short: [...short], row: [...row] };
  await store.close();
  return answer;
}

const behind = group.rank === 0 ? createLocalStores({ space, updater: 'accumulate' })[0] : undefined;
const client = createClientStore({ group, store: behind, worker: group.rank, workers: group.size });
say('trained', { rank: group.rank, store: 'client', answer: await train(client) });
const collective = createCollectiveStore({ group, firstTag: 1000, updater: 'accumulate' });
say('trained', { rank: group.rank, store: 'collective', answer: await train(collective) });
if (settings.size !== group.size) say('wrong');
await leaveCluster(cluster);
