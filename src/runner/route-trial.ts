/**
 * The last candidates of a plan in real steps: where predictions lie too close together to tell
 * which routes are quickest, each takes a few steps with all its messages, by turns, and what they
 * took decides. Trains nothing: servers work on keys of their own, and nothing comes back to the
 * model. All workers call it together. Invariants: on all workers the same choice; parameters,
 * states and optimizer state stay as they were.
 */
import type { CommunicationThread } from '../communication/index.ts';
import {
  aggregatesLocally,
  agree,
  CollectiveExchange,
  tellAll,
  TrialServers,
  type RunServers,
} from '../exchange/index.ts';
import {
  finalists,
  recordOf,
  stepProgram,
  type Finalist,
  type Operation,
  type TriedRoutes,
} from '../plan/index.ts';
import { replicaOperations, StepContext, StepWalk, type Replica } from '../runtime/index.ts';
import { groupsOf, planned, routesOf, type PlannedRun } from './plan-run.ts';

export interface RouteTrialOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly openTrial: NonNullable<RunServers['openTrial']>;
  readonly localAggregation: boolean;
  readonly hasExactRows: boolean;
}

/** What a prediction may be wrong by, and how many candidates are tried. */
const [PREDICTION_NOISE, MOST_CANDIDATES] = [0.3, 3];
/** The trial takes about this long, but for steps so slow that the fewest take longer. */
const BUDGET_MS = 2000;
const PASSES = 2;
/** Timed steps of a candidate in a pass, behind one that compiles and fills connections. */
const [FEWEST, MOST] = [2, 8];
/** What trains nothing, and the update, which does nothing here: what it waits for in a run it waits for here. */
const TRIED: ReadonlySet<Operation['kind']> = new Set([
  ...(['pull', 'pull rows', 'forward', 'backward', 'reduce', 'push', 'update', 'apply'] as const),
]);

/** The run with the quickest routes. `samples` of the batch in the replica's inputs may be empty on some workers. */
export async function withTriedRoutes(
  options: RouteTrialOptions,
  run: PlannedRun,
  samples: ArrayLike<number>,
): Promise<PlannedRun> {
  const { thread } = options;
  const limits = { within: PREDICTION_NOISE, most: MOST_CANDIDATES };
  const candidates = agree(thread, thread.world.rank === 0 ? finalists(run.input, run.plan, limits) : []);
  if (candidates.length < 2) return run;
  const tried = await tryCandidates(options, candidates, samples);
  const { input, plan } = planned(thread, { ...run.input, routes: quickestOf(tried).routes });
  const shown = tried.map(({ name, measuredMs }) => `${name} ${measuredMs.toPrecision(3)} ms`).join(', ');
  const reason = `${plan.reason}; tried in real steps: ${shown}`;
  return { input, plan: Object.freeze({ ...plan, tried: Object.freeze(tried), reason }) };
}

/**
 * What is predicted to be the quickest, unless another one was quicker in every pass: machines have
 * better and worse seconds.
 */
export function quickestOf([own, ...others]: readonly TriedRoutes[]): TriedRoutes {
  const quicker = others.filter(({ passesMs }) => passesMs.every((ms, pass) => ms < own!.passesMs[pass]!));
  return quicker.reduce((best, one) => (one.measuredMs < best.measuredMs ? one : best), own!);
}

async function tryCandidates(
  options: RouteTrialOptions,
  candidates: readonly Finalist[],
  samples: ArrayLike<number>,
): Promise<TriedRoutes[]> {
  const { thread, replica, openTrial, localAggregation, hasExactRows } = options;
  const { memory, kernels } = replica;
  const step = new StepContext();
  step.begin(samples, undefined);
  const { store, close } = await openTrial();
  try {
    const onServers = candidates.map(({ plan }) => keysOnServers(plan, replica));
    const trial = await TrialServers.open(
      { thread, store, memory, kernels, step, hasExactRows, localAggregation },
      new Set(onServers.flatMap((names) => [...names])),
    );
    const predictedMs = candidates.reduce((sum, { plan }) => sum + plan.iterationMs, 0);
    const steps = Math.max(FEWEST, Math.min(MOST, Math.floor(BUDGET_MS / PASSES / predictedMs) - 1));
    const ownMs: number[][] = candidates.map(() => []);
    const order = candidates.map((_, i) => i);
    for (let pass = 0; pass < PASSES; pass++) {
      // There and back: whoever came first comes last.
      for (const i of pass % 2 === 0 ? order : [...order].reverse()) {
        const fetched = await trial.use(onServers[i]!);
        const { plan } = candidates[i]!;
        const operations = triedOperations(options, plan, onServers[i]!, fetched);
        ownMs[i]!.push(median(await timeSteps(options, plan, { operations, trial, step, count: steps })));
      }
    }
    await trial.close();
    await close();
    const all = tellAll(thread, ownMs.flat(), 'times of tried routes');
    return candidates.map(({ name, plan }, i): TriedRoutes => {
      const passesMs = ownMs[i]!.map((_, pass) => mean(all.map((ms) => ms[PASSES * i + pass]!)));
      const facts = { name, routes: recordOf(plan), predictedMs: plan.iterationMs };
      return { ...facts, measuredMs: mean(passesMs), passesMs, steps: PASSES * steps };
    });
  } catch (error) {
    // Who waits for others that failed as well, waits long.
    await store.close();
    throw error;
  }
}

/** Of the program that a run would have. */
function triedOperations(
  { thread, replica: { memory }, localAggregation }: RouteTrialOptions,
  plan: Finalist['plan'],
  names: ReadonlySet<string>,
  fetched: ReadonlySet<string>,
): Operation[] {
  const tables = [...memory.gradients].flatMap(([name, { kind }]) => (kind === 'sparse' ? [name] : []));
  const { operations } = stepProgram({
    ...{ parameters: [...memory.parameters.keys()], groups: groupsOf(plan), routes: routesOf(plan) },
    ...{ tables: new Set(tables), fetched, transforms: [], hasAverages: false },
    ...{ hasStates: memory.nextStates.size > 0, addsRowsUp: localAggregation && aggregatesLocally(thread) },
  });
  return operations.filter(({ kind, parameters = [] }) => {
    if (kind === 'apply') return names.size > 0;
    const isElsewhere = kind !== 'backward' && parameters.some((name) => memory.rowBuffers.has(name));
    return TRIED.has(kind) && !isElsewhere;
  });
}

interface TimedSteps {
  readonly operations: readonly Operation[];
  readonly trial: TrialServers;
  readonly step: StepContext;
  readonly count: number;
}

/** Milliseconds of whole steps, but for loading a batch and what workers update themselves. */
async function timeSteps(
  { thread, replica }: RouteTrialOptions,
  plan: Finalist['plan'],
  { operations, trial, step, count }: TimedSteps,
): Promise<number[]> {
  const { memory, kernels } = replica;
  replica.setGroups(groupsOf(plan));
  const collective = new CollectiveExchange({ thread, memory, kernels, step, routes: routesOf(plan) });
  const walk = StepWalk.bind(
    { operations },
    {
      parts: [
        ({ kind }) => (kind === 'update' ? () => undefined : undefined),
        replicaOperations({
          ...{ replica, step, checkLoss: () => undefined },
          onGradients: (names) => trial.noteRows(names),
        }),
        (operation) => collective.handlerOf(operation),
        (operation) => trial.handlerOf(operation),
      ],
      finishedSteps: () => replica.step,
    },
  );
  const times: number[] = [];
  let lastMs = 0;
  for (let i = 0; i <= count; i++) {
    const walked = walk.step();
    if (walked) await walked;
    const nowMs = performance.now();
    if (i > 0) times.push(nowMs - lastMs);
    lastMs = nowMs;
  }
  await walk.settle();
  await collective.close();
  return times;
}

/** Tables that are nowhere else have one route by all candidates, and too many rows to be there twice. */
function keysOnServers(plan: Finalist['plan'], { memory }: Replica): ReadonlySet<string> {
  const names = [...routesOf(plan)].flatMap(([name, route]) => (route.startsWith('server') ? [name] : []));
  return new Set(names.filter((name) => !memory.rowBuffers.has(name)));
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, one) => sum + one, 0) / values.length;
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  return (sorted[Math.ceil(middle) - 1]! + sorted[Math.floor(middle)]!) / 2;
}
