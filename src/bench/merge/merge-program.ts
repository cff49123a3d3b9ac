/**
 * A worker of `bench merge`: trains in rounds, in each of them some steps by every merging, and the first worker prints what a step
 * took as one line of JSON. The script of `getRunner`, started by merge.ts and never imported. Decides nothing.
 */
import type { Merging } from '../../plan/index.ts';
import { getRunner, shard, type Workers } from '../../runner/index.ts';
import { mergeModels, mergeSamples, type MergeModel } from './merge-models.ts';

export interface MergeOrder {
  readonly model: MergeModel;
  readonly on: Workers;
  /** Over all workers. */
  readonly batchSize: number;
  readonly mergings: readonly Merging[];
  readonly rounds: number;
  /** Of each merging in a round, those before them left out. */
  readonly steps: number;
  readonly warmupSteps: number;
}

export interface MergeTimes {
  readonly merging: Merging;
  readonly groups: number;
  readonly predictedMs: number;
  /** What the plan was made from: forward and backward pass, and all messages. */
  readonly computeMs: number;
  readonly exchangeMs: number;
  /** The layers of each message; mergings that have the same here are one and the same. */
  readonly cut: string;
  /** Forward, backward and exchange of every counted step by these messages, whichever merging chose them. */
  readonly stepsMs: readonly number[];
}

const order = JSON.parse(process.argv[2]!) as MergeOrder;
const { model, on, batchSize, mergings, rounds, warmupSteps } = order;
const described = mergeModels[model];
const runner = await getRunner(described.build(), {
  on: { ...on, merging: mergings[0], strategy: 'collectives' },
  ...{ optimizer: { name: 'sgd', lr: 1e-4 }, batchSize },
  log: () => undefined,
});
const times = new Map<Merging, Omit<MergeTimes, 'stepsMs'>>();
const stepsByCut = new Map<string, number[]>();
const turnSteps = warmupSteps + order.steps;
const turns = Array.from({ length: rounds }, () => mergings).flat();
const maxSteps = turns.length * turnSteps;
for await (const { step, computeMs, waitMs } of runner.run(shard(mergeSamples(described)), {
  epochs: Infinity,
  maxSteps,
})) {
  const [turn, inTurn] = [Math.floor((step - 1) / turnSteps), (step - 1) % turnSteps];
  const merging = turns[turn]!;
  const plan = runner.plan!;
  const cut = JSON.stringify(plan.groups.map(({ layers }) => layers));
  if (!times.has(merging)) {
    times.set(merging, {
      ...{ merging, cut, groups: plan.groups.length, predictedMs: plan.iterationMs },
      ...{ computeMs: plan.computeMs, exchangeMs: plan.exchangeMs },
    });
  }
  const steps = stepsByCut.get(cut) ?? [];
  stepsByCut.set(cut, steps);
  if (inTurn >= warmupSteps) steps.push(computeMs + waitMs);
  if (inTurn === turnSteps - 1 && turn + 1 < turns.length) runner.regroup(turns[turn + 1]!);
}
await runner.close();
const result = [...times.values()].map((own): MergeTimes => ({ ...own, stepsMs: stepsByCut.get(own.cut)! }));
process.stdout.write(`${JSON.stringify(result)}\n`);
