/**
 * A worker of `bench hybrid`: a runner for every strategy, which take turns in these processes, and the first worker prints what steps
 * took as one line of JSON. The script of `getRunner`, started by hybrid.ts and never imported. Decides nothing.
 * Invariant: all workers take turns in the same order.
 */
import { Random } from '../../base/index.ts';
import type { ExchangePlan } from '../../plan/index.ts';
import { getRunner, shard, type Workers, type Runner, type StepReport } from '../../runner/index.ts';
import { hybridModels, type HybridModel } from './hybrid-models.ts';
import type { HybridStrategy, StrategyOptions } from './strategies.ts';

export interface HybridOrder {
  readonly model: HybridModel;
  readonly on: Workers;
  /** Over all workers. */
  readonly batchSize: number;
  readonly strategies: readonly HybridStrategy[];
  readonly rounds: number;
  /** Of each strategy in a round, those before them left out. */
  readonly steps: number;
  readonly warmupSteps: number;
  /** Before the first round, whose losses are handed back; the first of them makes the plan. */
  readonly checkedSteps: number;
}

export interface HybridTimes {
  readonly strategy: string;
  /** Of the checked steps. */
  readonly losses: readonly number[];
  /** From step to step, with all that belongs to one, of every counted step by this plan, whichever strategy chose it. */
  readonly stepsMs: readonly number[];
  /** Strategies of the same turns that came to the very same plan. */
  readonly samePlanAs: readonly string[];
  /** Of forward, backward and exchange. */
  readonly predictedMs: number;
  /** How many parameters take which route. */
  readonly routes: Readonly<Record<string, number>>;
  /** Bytes of tables that one worker hands over in a step. */
  readonly rowBytes: number;
}

interface Contestant {
  readonly name: string;
  readonly runner: Runner;
  readonly reports: AsyncGenerator<StepReport>;
  readonly losses: number[];
  readonly stepsMs: number[];
}

const SEED = 1;
const LEARNING_RATE = 0.05;

const order = JSON.parse(process.argv[2]!) as HybridOrder;
const { model, on, batchSize, strategies, rounds, steps, warmupSteps, checkedSteps } = order;
const described = hybridModels[model];
const samples = shard(described.samples());
const contestants: Contestant[] = [];
for (const { name, options } of strategies) {
  const { strategy, ...switches } = options;
  const runner = await getRunner(described.build(), {
    on: { ...on, strategy },
    ...{ optimizer: { name: 'sgd', lr: LEARNING_RATE }, batchSize, seed: SEED, ...switches },
    log: () => undefined,
  });
  const reports = runner.run(samples, { epochs: Infinity });
  contestants.push({ name, runner, reports, losses: [], stepsMs: [] });
}
for (const { reports, losses } of contestants) {
  for (let i = 0; i < checkedSteps; i++) losses.push((await nextReport(reports)).loss);
}
const random = new Random(SEED);
for (let round = 0; round < rounds; round++) {
  const turns = contestants.map((_, i) => i);
  random.shuffle(turns);
  for (const turn of turns) await takeTurn(contestants[turn]!);
}
const keys = contestants.map(({ runner }, i) => planKey(runner.plan!, strategies[i]!.options));
const result = contestants.map(({ name, runner, losses }, i): HybridTimes => {
  const alike = contestants.filter((_, other) => keys[other] === keys[i]);
  return {
    ...{ strategy: name, losses, stepsMs: alike.flatMap(({ stepsMs }) => stepsMs) },
    samePlanAs: alike.map((one) => one.name).filter((other) => other !== name),
    ...planFacts(runner.plan!),
  };
});
// Further workers end with their last runner.
for (const { reports, runner } of contestants) {
  await reports.return(undefined);
  await runner.close();
}
process.stdout.write(`${JSON.stringify(result)}\n`);

async function takeTurn({ reports, stepsMs }: Contestant): Promise<void> {
  for (let i = 0; i < warmupSteps; i++) await nextReport(reports);
  let lastMs = performance.now();
  for (let i = 0; i < steps; i++) {
    await nextReport(reports);
    const nowMs = performance.now();
    stepsMs.push(nowMs - lastMs);
    lastMs = nowMs;
  }
}

async function nextReport(reports: AsyncGenerator<StepReport>): Promise<StepReport> {
  // It has no end: epochs are without number.
  return (await reports.next()).value as StepReport;
}

function planFacts({
  parameters,
  iterationMs,
}: ExchangePlan): Pick<HybridTimes, 'predictedMs' | 'routes' | 'rowBytes'> {
  const routes: Record<string, number> = {};
  for (const { route } of parameters) routes[route] = (routes[route] ?? 0) + 1;
  const tables = parameters.filter(({ kind }) => kind === 'sparse');
  const rowBytes = tables.reduce((sum, { bytes }) => sum + bytes, 0);
  return { predictedMs: iterationMs, routes, rowBytes };
}

/** The same for what sends the same messages the same way. */
function planKey(
  { parameters, groups }: ExchangePlan,
  { strategy: _, ...switches }: StrategyOptions,
): string {
  const routes = parameters.map(({ name, route }) => [name, route]);
  return JSON.stringify([switches, routes, groups.map(({ layers }) => layers)]);
}
