/**
 * The step program of a run: what its model, options and plan make of a training step. It decides
 * and runs nothing; the list itself is written in `plan/step-program.ts`. Invariant: all workers
 * have the same program, which `compareProgram` holds.
 */
import { InternalError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { aggregatesLocally, agree, tellAllTexts } from '../exchange/index.ts';
import type { UpdateOperation } from '../graph/index.ts';
import { stepProgram, type ExchangePlan, type StepFacts, type StepProgram } from '../plan/index.ts';
import { partOf, type Replica } from '../runtime/index.ts';
import { groupsOf, routesOf, type PlannedRun } from './plan-run.ts';
import type { RunnerConfig } from './runner.ts';

/** Of one device if there is no plan. */
export function programOf(
  { model: { graph }, memory }: Replica,
  config: RunnerConfig,
  joint?: { readonly run: PlannedRun; readonly thread: CommunicationThread },
): StepProgram {
  const { checkpointDirectory, checkpointEverySteps = Infinity } = config;
  const places = [...memory.gradients];
  const tables = new Set(places.flatMap(([name, { kind }]) => (kind === 'sparse' ? [name] : [])));
  return stepProgram({
    ...{ parameters: [...memory.parameters.keys()], groups: [places.map(([name]) => name)], tables },
    ...{ hasStates: graph.stateUpdates.length > 0, hasAverages: graph.movingAverages.length > 0 },
    transforms: graph.updateOperations.map((operation) => {
      const [kind, name] = partOf(operation);
      return { kind, name };
    }),
    checkpointEverySteps: checkpointDirectory === undefined ? undefined : checkpointEverySteps,
    ...(joint
      ? jointFacts(config, { tables, rowBuffers: memory.rowBuffers }, joint, graph.updateOperations)
      : {}),
  });
}

/** All workers call it together. */
export function compareProgram(thread: CommunicationThread, own: StepProgram): void {
  const hashes = tellAllTexts(thread, own.hash, 'hashes of step programs');
  const other = hashes.findIndex((hash) => hash !== hashes[0]);
  if (other < 0) return;
  const first = agree(thread, own.operations);
  const at = first.findIndex((one, i) => JSON.stringify(one) !== JSON.stringify(own.operations[i]));
  const [theirs, mine] = [first[at]?.name ?? 'nothing', own.operations[at]?.name ?? 'nothing'];
  throw new InternalError(
    'BROKEN_INVARIANT',
    `worker ${other} does other things in a step than worker 0; seen from worker ${thread.world.rank} they differ at operation ${at}: '${theirs}' on worker 0, '${mine}' here. Give all workers the same model and options`,
    { worker: other, operation: at },
  );
}

interface Tables {
  readonly tables: ReadonlySet<string>;
  /** Of those that are on servers only. */
  readonly rowBuffers: { has(table: string): boolean };
}

function jointFacts(
  config: RunnerConfig,
  { tables, rowBuffers }: Tables,
  { run: { plan, input }, thread }: { readonly run: PlannedRun; readonly thread: CommunicationThread },
  updates: readonly UpdateOperation[],
): Partial<StepFacts> {
  const { boundaryAmongServers = true, localAggregation = true, sparseUpdates = 'exact' } = config;
  const routes = routesOf(plan);
  const onServers = [...routes].flatMap(([name, route]) => (route.startsWith('server') ? [name] : []));
  // On one host all values are read where the servers have them, but for tables that no worker
  // maps; rows that nobody touched may have updates to catch up with.
  const isOneHost = new Set(thread.world.hosts).size === 1;
  const fetched = onServers.filter(
    (name) => !isOneHost || rowBuffers.has(name) || (tables.has(name) && sparseUpdates === 'exact'),
  );
  const clips = updates.some(({ kind }) => kind === 'clip_global_norm');
  return {
    ...{ routes, groups: groupsOf(plan), fetched: new Set(fetched) },
    compareEverySteps: config.compareEverySteps ?? 1000,
    addsRowsUp: localAggregation && aggregatesLocally(thread),
    fetchesHeld: clips && !boundaryAmongServers && onServers.length > 0,
    predicted: {
      forwardMs: input.forwardMs,
      backwardMs: backwardMsOf(plan, input.layers),
      messageMs: new Map(
        plan.groups.flatMap(({ messages }) =>
          messages.map(({ parameters, predictedMs }) => [parameters[0]!, predictedMs] as const),
        ),
      ),
    },
  };
}

function backwardMsOf({ groups }: ExchangePlan, layers: PlannedRun['input']['layers']): number[] {
  const ms = new Map(layers.map(({ name, backwardMs }) => [name, backwardMs]));
  return groups.map((group) => group.layers.reduce((sum, name) => sum + ms.get(name)!, 0));
}
