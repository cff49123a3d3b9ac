/**
 * The step program of a run: what its model, options and plan make of a training step. It decides
 * and runs nothing; the list itself is written in `plan/step-program.ts`. Invariant: all workers
 * have the same program, which `compareProgram` holds.
 */
import { InternalError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { aggregatesLocally, agree, tellAllTexts } from '../exchange/index.ts';
import {
  clientProgram,
  stepProgram,
  type ClientFacts,
  type ExchangePlan,
  type StepFacts,
  type StepProgram,
} from '../plan/index.ts';
import { operationsElsewhere, partOf, type Replica } from '../runtime/index.ts';
import { groupsOf, routesOf, type PlannedRun } from './plan-run.ts';
import type { Clients } from './on.ts';
import type { RunnerConfig } from './runner.ts';

/** A plan, and what some worker has to fetch because it cannot read it where servers have it. */
export interface OpenRun extends PlannedRun {
  readonly fetched: readonly string[];
}

export interface JointProgram {
  readonly run: OpenRun;
  readonly thread: CommunicationThread;
}

/** Of one device if there is no plan. */
export function programOf(replica: Replica, config: RunnerConfig, joint?: JointProgram): StepProgram {
  const facts = modelFacts(replica, config);
  const groups = [[...replica.memory.gradients.keys()]];
  return stepProgram({ ...facts, groups, ...(joint ? jointFacts(replica, config, joint) : {}) });
}

/** Of a worker whose client deals with servers. */
export function programOfClient(
  replica: Replica,
  config: RunnerConfig,
  { consistency, clients }: Clients,
  servers: ClientFacts['servers'],
  workers: number,
): StepProgram {
  return clientProgram({
    ...{ ...modelFacts(replica, config), servers, trained: [...replica.memory.gradients.keys()] },
    hasSeveral: workers > clients,
    compareEverySteps: config.compareEverySteps ?? 1000,
    averageEverySteps: consistency.kind === 'elastic' ? consistency.everySteps : undefined,
  });
}

function modelFacts({ model: { graph }, memory }: Replica, config: RunnerConfig): Omit<StepFacts, 'groups'> {
  const { checkpointDirectory, checkpointEverySteps = Infinity } = config;
  const places = [...memory.gradients];
  const tables = new Set(places.flatMap(([name, { kind }]) => (kind === 'sparse' ? [name] : [])));
  return {
    ...{ parameters: [...memory.parameters.keys()], tables },
    ...{ hasStates: graph.stateUpdates.length > 0, hasAverages: graph.movingAverages.length > 0 },
    transforms: graph.updateOperations.map((operation, number) => {
      const [kind, name] = partOf(operation);
      return { kind, name, number };
    }),
    checkpointEverySteps: checkpointDirectory === undefined ? undefined : checkpointEverySteps,
  };
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

function jointFacts(
  replica: Replica,
  config: RunnerConfig,
  { run: { plan, input, fetched }, thread }: JointProgram,
): Partial<StepFacts> {
  const { boundaryAmongServers = true, localAggregation = true } = config;
  const routes = routesOf(plan);
  const onServers = new Set(
    [...routes].flatMap(([name, route]) => (route.startsWith('server') ? [name] : [])),
  );
  const isOnServers = onServers.size > 0;
  const clips = replica.model.graph.updateOperations.some(({ kind }) => kind === 'clip_global_norm');
  return {
    ...{ routes, groups: groupsOf(plan), fetched: new Set(fetched) },
    ...sharedOut(replica, onServers),
    compareEverySteps: config.compareEverySteps ?? 1000,
    addsRowsUp: localAggregation && aggregatesLocally(thread),
    fetchesHeld: clips && !boundaryAmongServers && isOnServers,
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

/** Which operations around updates workers have, and which servers. */
function sharedOut(
  { model: { graph }, memory }: Replica,
  onServers: ReadonlySet<string>,
): Pick<StepFacts, 'transforms' | 'hasAverages' | 'aroundUpdates'> {
  const parameters = [...memory.gradients].map(([, { gradient }]) => gradient.parameter);
  const isElsewhere = ({ name }: { readonly name: string }) => onServers.has(name);
  const there = parameters.filter(isElsewhere);
  const here = parameters.filter((one) => !isElsewhere(one));
  const transforms = graph.updateOperations.flatMap((operation, number) => {
    const [kind, name] = partOf(operation);
    const applies = operation.kind === 'weight_decay' ? operation.applies : () => true;
    // Servers are given the factor of a norm; all that they have, they clip and decay themselves.
    const isHere = kind === 'norm' || here.some(applies) || !there.some(applies);
    return isHere ? [{ kind, name, number }] : [];
  });
  const around = there.flatMap((parameter) => {
    const operations = operationsElsewhere(graph, parameter);
    if (typeof operations === 'string') return [];
    return [
      ...operations.gradient.flatMap(({ kind }) => (kind === 'scale' ? [] : [SHOWN[kind]])),
      ...operations.averages.map(({ name }) => `average ${name}`),
    ];
  });
  const followed = [...memory.averages.values()].flatMap((regions) => [...regions.keys()]);
  return {
    ...{ transforms, aroundUpdates: [...new Set(around)] },
    hasAverages: followed.some((name) => !onServers.has(name)),
  };
}

/** As on one device. */
const SHOWN = { clip: 'clip', decay: 'weight decay' } as const;

function backwardMsOf({ groups }: ExchangePlan, layers: PlannedRun['input']['layers']): number[] {
  const ms = new Map(layers.map(({ name, backwardMs }) => [name, backwardMs]));
  return groups.map((group) => group.layers.reduce((sum, name) => sum + ms.get(name)!, 0));
}
