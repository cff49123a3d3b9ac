/**
 * A worker of `bench merge`: trains in rounds, in each of them some steps by every merging, and the first worker prints what a step
 * took as one line of JSON. The script of `getRunner`, started by merge.ts and never imported. Decides nothing.
 */
import type { Merging } from '../../plan/index.ts';
import { getRunner, shard, type Resources } from '../../runner/index.ts';
import { mergeModels, mergeSamples, type MergeModel } from './merge-models.ts';

export interface MergeOrder {
  readonly model: MergeModel;
  readonly resources: Resources;
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
  /** Forward, backward and exchange of every counted step. */
  readonly stepsMs: readonly number[];
}

const order = JSON.parse(process.argv[2]!) as MergeOrder;
const { model, resources, batchSize, mergings, rounds, steps, warmupSteps } = order;
const described = mergeModels[model];
const runner = await getRunner(described.build(), resources, {
  ...{ optimizer: { name: 'sgd', lr: 1e-4 }, batchSize, merging: mergings[0], strategy: 'collectives' },
  log: () => undefined,
});
const times = new Map<Merging, MergeTimes & { stepsMs: number[] }>();
const turnSteps = warmupSteps + steps;
const turns = Array.from({ length: rounds }, () => mergings).flat();
const maxSteps = turns.length * turnSteps;
for await (const { step, computeMs, waitMs } of runner.run(shard(mergeSamples(described)), {
  epochs: Infinity,
  maxSteps,
})) {
  const [turn, inTurn] = [Math.floor((step - 1) / turnSteps), (step - 1) % turnSteps];
  const merging = turns[turn]!;
  const plan = runner.plan!;
  const own = times.get(merging) ?? {
    ...{ merging, groups: plan.groups.length, predictedMs: plan.iterationMs },
    ...{ computeMs: plan.computeMs, exchangeMs: plan.exchangeMs, stepsMs: [] },
  };
  times.set(merging, own);
  if (inTurn >= warmupSteps) own.stepsMs.push(computeMs + waitMs);
  if (inTurn === turnSteps - 1 && turn + 1 < turns.length) runner.regroup(turns[turn + 1]!);
}
await runner.close();
process.stdout.write(`${JSON.stringify([...times.values()])}\n`);
