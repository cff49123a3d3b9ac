/**
 * A worker as a process on a host that is a rack: pushes once, and prints the plan and what it pulled. Arguments: the
 * scheduler's address, the secret, its rank, the address of its host.
 */
import { createStore } from '../../src/kvstore/index.ts';
import { joinCluster } from '../../src/launcher/index.ts';
import type { ReductionChoice } from '../../src/plan/index.ts';

export interface RackLine {
  readonly plan: ReductionChoice;
  readonly value: number;
}

const LENGTH = 10_000;
/** Of a link that makes racks pay: measured on a busy machine, the answer would depend on the day. */
const BANDWIDTHS = { boxBytesPerSecond: 4e9, workerBytesPerSecond: 4e9, coreBytesPerSecond: 125e6 };
const [scheduler, secret, rank, address] = process.argv.slice(2) as [string, string, string, string];
const cluster = await joinCluster({ scheduler, secret, wantedRank: Number(rank), measure: false });
let plan: ReductionChoice | undefined;
const store = await createStore('dist-sgd', {
  ...{ cluster, secret, address, racks: 'hosts', bandwidths: BANDWIDTHS },
  onPlan: (choice) => (plan = choice),
});
const [gradient, into] = [new Float32Array(LENGTH).fill(Number(rank) + 1), new Float32Array(LENGTH)];
await store.init({ key: 'w', value: new Float32Array(LENGTH) });
await store.pushpull({ key: 'w', gradient, into });
console.log(JSON.stringify({ plan: plan!, value: into[LENGTH - 1]! } satisfies RackLine));
await store.close();
await cluster.close();
