/**
 * A rank of the tests on several hosts: joins, runs each allreduce of its plan a few times, checks every element and
 * prints one line of JSON for each. Also runs by hand, anywhere: the plan is the only argument. With no scheduler in the
 * plan the rank belongs to the job that mpirun started. Invariant: a time is from a barrier to the end on this rank.
 */
import { allReduce, availableAlgorithms, barrier, costsOf, printCosts } from '../../src/collectives/index.ts';
import type { AllReduceAlgorithm } from '../../src/collectives/index.ts';
import type { Cluster } from '../../src/cluster/index.ts';
import { joinCluster, joinMpiJob } from '../../src/launcher/index.ts';
import type { JoinClusterOptions } from '../../src/launcher/index.ts';
import type { Region } from '../../src/memory/index.ts';

export interface RankPlan {
  /** How to join; undefined under mpirun. */
  readonly join?: JoinClusterOptions;
  /** What to run; 'every' stands for all algorithms that the group can run. */
  readonly algorithms: readonly (AllReduceAlgorithm | 'auto' | 'every')[];
  /** Length of the vector. */
  readonly bytes: number;
  readonly repeats: number;
  /** Whether 'auto' goes by measured costs. */
  readonly measure: boolean;
}

/** One algorithm on one rank. */
export interface RankTimes {
  readonly rank: number;
  readonly algorithm: string;
  readonly seconds: readonly number[];
  /** Elements that were not exactly the sum. */
  readonly wrong: number;
}

/** What a rank prints: times, the costs it goes by, or the error that ended it. */
export type RankLine =
  | { readonly times: RankTimes }
  | { readonly costs: string; readonly hosts: number }
  | { readonly error: { readonly code: string; readonly message: string } };

const PERIOD = 1021;
const say = (line: RankLine) => console.log(JSON.stringify(line));

try {
  await main(JSON.parse(process.argv[2]!) as RankPlan);
} catch (error) {
  const { code, message, stack } = error as Error & { code?: string };
  say({ error: { code: code ?? 'none', message } });
  console.error(stack);
  process.exit(1);
}

async function main(plan: RankPlan): Promise<void> {
  const { measure } = plan;
  const cluster = plan.join ? await joinCluster({ ...plan.join, measure }) : await joinMpiJob({ measure });
  const { world } = cluster;
  const costs = costsOf(world);
  if (costs && world.rank === 0) say({ costs: printCosts(costs), hosts: costs.hosts });
  const vector = cluster.allocate('float32', plan.bytes / 4);
  for (const wanted of plan.algorithms) {
    for (const algorithm of wanted === 'every' ? availableAlgorithms(world) : [wanted]) {
      say({ times: await time(cluster, vector, algorithm, plan.repeats) });
    }
  }
  await cluster.close();
}

async function time(
  { world }: Cluster,
  vector: Region<'float32'>,
  algorithm: AllReduceAlgorithm | 'auto',
  repeats: number,
): Promise<RankTimes> {
  const seconds: number[] = [];
  let wrong = 0;
  for (let i = 0; i < repeats; i++) {
    // Twice the value on each further rank: a rank that is left out or counted twice shows in every element.
    fill(vector.view, 2 ** world.rank);
    await barrier(world);
    const start = performance.now();
    const handle = allReduce(world, vector, { algorithm });
    // Both ways of waiting.
    if (i % 2 === 0) handle.wait();
    else await handle;
    seconds.push((performance.now() - start) / 1000);
    wrong += countWrong(vector.view, 2 ** world.size - 1);
  }
  return { rank: world.rank, algorithm, seconds, wrong };
}

function fill(view: Float32Array, factor: number): void {
  for (let i = 0, value = 1; i < view.length; i++) {
    view[i] = value * factor;
    value = value === PERIOD ? 1 : value + 1;
  }
}

function countWrong(view: Float32Array, factor: number): number {
  let wrong = 0;
  for (let i = 0, value = 1; i < view.length; i++) {
    if (view[i] !== value * factor) wrong++;
    value = value === PERIOD ? 1 : value + 1;
  }
  return wrong;
}
