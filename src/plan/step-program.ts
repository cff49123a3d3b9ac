/**
 * The program of a training step: the body of a loop as plain frozen data, a list of operations,
 * each with what it reads and mutates, its lane, and how often it runs. Made from routes, groups,
 * and facts about the model; it runs nothing. Terms: a variable is anything that an operation may
 * have to wait for, such as `gradients 1`, those of the second group. Invariants: the same facts
 * give the same program on every worker; on a lane, operations run in the order of the list.
 */
import { createHash } from 'node:crypto';
import type { Route } from './routes.ts';
import { namesInShort, type StepOperation } from './step-operations.ts';

/**
 * Where an operation runs: in the thread that computes, in that of collectives, or on connections
 * to servers.
 */
export type OperationLane = 'compute' | 'communication' | 'servers';

export interface Operation {
  readonly kind: StepOperation;
  /** As the trace shows it. */
  readonly name: string;
  readonly lane: OperationLane;
  readonly reads: readonly string[];
  /** It may read these, too. */
  readonly mutates: readonly string[];
  /**
   * In steps. 'epoch': behind the last one of each. 'call': when it is asked for. Default: every
   * step.
   */
  readonly every?: number | 'epoch' | 'call';
  /** Milliseconds of it alone, where a plan knows them. */
  readonly predictedMs?: number;
}

export interface StepProgram {
  readonly operations: readonly Operation[];
  /** Equal on two workers that do the same in each step. Predicted times do not count. */
  readonly hash: string;
}

export interface StepFacts {
  /**
   * All parameters, in the order of the model; those without a gradient are never fetched or
   * updated.
   */
  readonly parameters: readonly string[];
  /** What each segment of the backward pass computes. */
  readonly groups: readonly (readonly string[])[];
  /** Tables among the parameters. */
  readonly tables: ReadonlySet<string>;
  /** How gradients travel; absent on one device. */
  readonly routes?: ReadonlyMap<string, Route> | undefined;
  /** Parameters on servers that no worker reads where the servers have them. */
  readonly fetched?: ReadonlySet<string> | undefined;
  /** Whether workers of a machine add up rows before one of them pushes them. */
  readonly addsRowsUp?: boolean | undefined;
  /** Whether combined gradients come back from servers, for their norm. */
  readonly fetchesHeld?: boolean | undefined;
  readonly hasStates: boolean;
  readonly hasAverages: boolean;
  /** What is done with combined gradients before the update, in order. */
  readonly transforms: readonly Pick<Operation, 'kind' | 'name'>[];
  /** Between two comparisons of the replicas of all workers. */
  readonly compareEverySteps?: number | undefined;
  /** Between two checkpoints, besides one behind each epoch; absent without any. */
  readonly checkpointEverySteps?: number | undefined;
  readonly predicted?: PredictedTimes | undefined;
}

/** In milliseconds. */
export interface PredictedTimes {
  readonly forwardMs: number;
  /** Of each group. */
  readonly backwardMs: readonly number[];
  /** Of the message that starts with a parameter. */
  readonly messageMs: ReadonlyMap<string, number>;
}

/** Numbers of operations, for each operation. */
export interface Dependencies {
  /** Those of the same step that have to end before it starts. */
  readonly sameStep: readonly (readonly number[])[];
  /** The same of the step before. */
  readonly stepBefore: readonly (readonly number[])[];
}

const BATCH = 'batch';
const LOSS = 'loss';
const NEW_STATES = 'new states';
const STATES = 'states';
const PARAMETERS = 'parameters';
const FETCHED = 'fetched parameters';
const ON_SERVERS = 'parameters on servers';
/** Combined gradients that servers keep until they apply them. */
const HELD = 'held gradients';
const ROW_COUNTS = 'row counts';
const SCALE = 'scale';
const AVERAGES = 'averages';
const OPTIMIZER_STATE = 'optimizer state';

export function stepProgram(facts: StepFacts): StepProgram {
  const all = [
    operation('load', 'load batch', 'compute', [], [BATCH]),
    ...comparing(facts),
    ...fetching(facts),
    ...computing(facts),
    ...combining(facts),
    ...updating(facts),
    ...keeping(facts),
  ];
  const operations = Object.freeze(all.map((one) => Object.freeze(one)));
  const text = JSON.stringify(operations, (key, value: unknown) =>
    key === 'predictedMs' ? undefined : value,
  );
  return Object.freeze({ operations, hash: createHash('sha256').update(text).digest('hex') });
}

/**
 * An operation waits for the last one that mutated what it reads or mutates, and for all that have
 * read since then what it mutates. As a lane runs one after the other, the last one of each other
 * lane says it all. One that is not due waits as well, and then counts as ended: those behind it
 * rely on that.
 */
export function dependenciesOf(operations: readonly Operation[]): Dependencies {
  const count = operations.length;
  const lastMutator = new Map<string, number>();
  const readers = new Map<string, number[]>();
  const waits: number[][] = [];
  const laneOf = (at: number) => operations[at % count]!.lane;
  // Two steps: what the second one waits for in the first is the step before.
  for (let at = 0; at < 2 * count; at++) {
    const { lane, reads, mutates } = operations[at % count]!;
    const last = [...reads, ...mutates].flatMap((variable) => lastMutator.get(variable) ?? []);
    const awaited = new Set([...last, ...mutates.flatMap((variable) => readers.get(variable) ?? [])]);
    for (const variable of mutates) {
      lastMutator.set(variable, at);
      readers.set(variable, []);
    }
    for (const variable of reads) {
      if (!mutates.includes(variable)) readers.set(variable, [...(readers.get(variable) ?? []), at]);
    }
    const lastOfLane = new Map([...awaited].sort((a, b) => a - b).map((one) => [laneOf(one), one]));
    lastOfLane.delete(lane);
    if (at >= count) waits.push([...lastOfLane.values()].sort((a, b) => a - b));
  }
  return {
    sameStep: waits.map((all) => all.filter((at) => at >= count).map((at) => at - count)),
    stepBefore: waits.map((all) => all.filter((at) => at < count)),
  };
}

function operation(
  kind: StepOperation,
  name: string,
  lane: OperationLane,
  reads: readonly string[],
  mutates: readonly string[],
  more: Pick<Operation, 'every' | 'predictedMs'> = {},
): Operation {
  return { kind, name, lane, reads: Object.freeze(reads), mutates: Object.freeze(mutates), ...more };
}

function comparing({ compareEverySteps: every = Infinity, routes }: StepFacts): Operation[] {
  if (routes === undefined || every === Infinity) return [];
  return [operation('check', 'check', 'compute', [PARAMETERS, STATES], [], { every })];
}

function fetching(facts: StepFacts): Operation[] {
  const { fetched = new Set<string>(), tables } = facts;
  const dense = [...fetched].filter((name) => !tables.has(name));
  const rows = [...fetched].filter((name) => tables.has(name));
  return [
    ...(dense.length > 0
      ? [operation('pull', `pull ${short(facts, dense)}`, 'servers', [ON_SERVERS], [FETCHED])]
      : []),
    ...rows.map((name) => {
      const shown = short(facts, [name]);
      return operation(
        'pull rows',
        `pull rows ${shown}`,
        'servers',
        [BATCH, ON_SERVERS],
        [`rows of ${shown}`],
      );
    }),
  ];
}

/** Forward and backward pass, and what leaves with each group. */
function computing(facts: StepFacts): Operation[] {
  const { groups, routes, hasStates, predicted } = facts;
  const parameters = [...parametersOf(facts), ...fetching(facts).flatMap(({ mutates }) => mutates)];
  const read = [BATCH, ...parameters, ...(hasStates ? [STATES] : [])];
  return [
    operation('forward', 'forward', 'compute', read, [LOSS, ...(hasStates ? [NEW_STATES] : [])], {
      ...timeOf(predicted?.forwardMs),
    }),
    ...groups.flatMap((names, group) => {
      const name = `backward ${short(facts, names)}`.trimEnd();
      const time = timeOf(predicted?.backwardMs[group]);
      return [
        operation('backward', name, 'compute', [BATCH, ...parameters], [gradientsOf(group)], time),
        ...(routes ? leaving(facts, routes, group) : []),
      ];
    }),
  ];
}

/**
 * Dense gradients that lie behind each other are one message; one that goes to servers ends it. The
 * first takes the loss along.
 */
function leaving(facts: StepFacts, routes: ReadonlyMap<string, Route>, group: number): Operation[] {
  const { groups, tables, hasStates, addsRowsUp = false, predicted } = facts;
  const runs: string[][] = [[]];
  const [whole, rows, pushed]: [string[], string[], string[]] = [[], [], []];
  for (const name of groups[group]!) {
    const route = routes.get(name);
    if (tables.has(name)) {
      if (route === 'collective') whole.push(name);
      if (route === 'server rows') rows.push(name);
    } else if (route === 'collective') {
      runs.at(-1)!.push(name);
    } else {
      pushed.push(name);
      runs.push([]);
    }
  }
  const withLoss = [LOSS, ...(hasStates ? [NEW_STATES] : [])];
  const reduced = runs.flatMap((names, run) => {
    const takesLoss = group === 0 && run === 0;
    if (names.length === 0 && !takesLoss) return [];
    const name = `allreduce ${names.length > 0 ? short(facts, names) : LOSS}`;
    const mutates = [...(names.length > 0 ? [gradientsOf(group)] : []), ...(takesLoss ? withLoss : [])];
    const time = timeOf(predicted?.messageMs.get(names[0] ?? ''));
    return [operation('reduce', name, 'communication', [], mutates, time)];
  });
  return [
    ...reduced,
    ...whole.map((name) =>
      operation('reduce', `allreduce ${short(facts, [name])}`, 'communication', [], [gradientsOf(group)], {
        ...timeOf(predicted?.messageMs.get(name)),
      }),
    ),
    ...(pushed.length > 0 ? [push(facts, pushed, group)] : []),
    ...rows.flatMap((name) => [
      ...(addsRowsUp
        ? [
            operation(
              'reduce',
              `rows ${short(facts, [name])} of this machine`,
              'communication',
              [],
              [gradientsOf(group)],
            ),
          ]
        : []),
      push(facts, [name], group),
    ]),
  ];
}

/**
 * What comes behind the backward pass: rows of tables by collectives, and what is left to fetch.
 */
function combining(facts: StepFacts): Operation[] {
  const { groups, routes, hasStates, fetchesHeld = false, predicted } = facts;
  if (!routes) return hasStates ? [operation('states', 'states', 'compute', [NEW_STATES], [STATES])] : [];
  const tables = groups.flatMap((names, group) =>
    names.filter((name) => facts.tables.has(name)).map((name) => ({ name, group, route: routes.get(name)! })),
  );
  const gathered = tables.filter(({ route }) => route === 'collective rows');
  const counts = operation(
    'reduce',
    ROW_COUNTS,
    'communication',
    gathered.map(({ group }) => gradientsOf(group)),
    [ROW_COUNTS],
  );
  return [
    ...(gathered.length > 0 ? [counts] : []),
    ...gathered.map(({ name, group }) =>
      operation(
        'reduce',
        `rows ${short(facts, [name])}`,
        'communication',
        [ROW_COUNTS],
        [gradientsOf(group)],
        timeOf(predicted?.messageMs.get(name)),
      ),
    ),
    ...(fetchesHeld
      ? [
          operation(
            'pull',
            'pull combined gradients',
            'servers',
            [HELD],
            groups.map((_, at) => gradientsOf(at)),
          ),
        ]
      : []),
    ...(hasStates ? [operation('states', 'states', 'compute', [NEW_STATES], [STATES])] : []),
  ];
}

function push(facts: StepFacts, names: readonly string[], group: number): Operation {
  const time = timeOf(facts.predicted?.messageMs.get(names[0]!));
  return operation('push', `push ${short(facts, names)}`, 'servers', [gradientsOf(group)], [HELD], time);
}

/** A loss that is not a number leaves parameters as they were. */
function updating(facts: StepFacts): Operation[] {
  const { groups, transforms, hasAverages } = facts;
  const gradients = groups.map((_, group) => gradientsOf(group));
  const onServers = isOnServers(facts);
  const norms = transforms.some(({ kind }) => kind === 'norm');
  const scaled = norms ? [SCALE] : [];
  return [
    ...transforms.map(({ kind, name }) =>
      kind === 'norm'
        ? operation(kind, name, 'compute', [LOSS, ...(onServers ? [HELD] : [])], [SCALE, ...gradients])
        : operation(kind, name, 'compute', [LOSS, PARAMETERS], gradients),
    ),
    operation('update', 'update', 'compute', [LOSS, ...gradients, ...scaled], [PARAMETERS, OPTIMIZER_STATE]),
    ...(hasAverages ? [operation('average', 'average', 'compute', [PARAMETERS], [AVERAGES])] : []),
    ...(onServers ? [operation('apply', 'apply', 'servers', [LOSS, ...scaled], [HELD, ON_SERVERS])] : []),
  ];
}

function keeping(facts: StepFacts): Operation[] {
  const { checkpointEverySteps, hasStates, hasAverages } = facts;
  const evaluated = [...parametersOf(facts), ...(hasStates ? [STATES] : [])];
  const kept = [...evaluated, ...(hasAverages ? [AVERAGES] : []), OPTIMIZER_STATE];
  const every = checkpointEverySteps === Infinity ? 'epoch' : checkpointEverySteps;
  return [
    operation('evaluate', 'evaluate', 'compute', evaluated, [], { every: 'call' }),
    ...(every === undefined ? [] : [operation('checkpoint', 'checkpoint', 'compute', kept, [], { every })]),
  ];
}

function parametersOf(facts: StepFacts): string[] {
  return [PARAMETERS, ...(isOnServers(facts) ? [ON_SERVERS] : [])];
}

function isOnServers({ routes }: StepFacts): boolean {
  return [...(routes?.values() ?? [])].some((route) => route.startsWith('server'));
}

function gradientsOf(group: number): string {
  return `gradients ${group}`;
}

function short({ parameters }: StepFacts, names: readonly string[]): string {
  return namesInShort(names, parameters);
}

function timeOf(predictedMs: number | undefined): Pick<Operation, 'predictedMs'> {
  return predictedMs === undefined ? {} : { predictedMs };
}
