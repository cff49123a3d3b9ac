/**
 * The parts of which programs of training steps are made: what is loaded, fetched, computed, sent,
 * combined, updated and kept, each as operations with what they read and mutate. Which of them a
 * step has, and in what order, is `step-program.ts`. Invariant: gradients that travel in messages of
 * their own are variables of their own, so that none waits for another.
 */
import { operation } from './operation.ts';
import type { Operation } from './operation.ts';
import type { Route } from './routes.ts';
import { namesInShort } from './step-operations.ts';

/** What a program is made of. */
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
  /** Of parameters that workers update. */
  readonly hasAverages: boolean;
  /**
   * What workers do with combined gradients before the update, in order. `number`: which of the
   * model's update operations it is; default: all are here.
   */
  readonly transforms: readonly Pick<Operation, 'kind' | 'name' | 'number'>[];
  /** What servers do around the updates of what they have; see `Operation.around`. */
  readonly aroundUpdates?: readonly string[] | undefined;
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

const BATCH = 'batch';
export const LOSS = 'loss';
export const NEW_STATES = 'new states';
export const STATES = 'states';
export const PARAMETERS = 'parameters';
const FETCHED = 'fetched parameters';
/** With their averages. */
export const ON_SERVERS = 'parameters on servers';
/** Combined gradients that servers keep until they apply them. */
const HELD = 'held gradients';
const ROW_COUNTS = 'row counts';
const SCALE = 'scale';
const AVERAGES = 'averages';
const OPTIMIZER_STATE = 'optimizer state';

export function loading(): Operation[] {
  return [operation('load', 'load batch', 'compute', [], [BATCH])];
}

export function comparing({ compareEverySteps: every = Infinity, routes }: StepFacts): Operation[] {
  if (routes === undefined || every === Infinity) return [];
  return [operation('check', 'check', 'compute', [PARAMETERS, STATES], [], { every })];
}

export function fetching(facts: StepFacts): Operation[] {
  const { fetched = new Set<string>(), tables } = facts;
  const dense = [...fetched].filter((name) => !tables.has(name));
  const rows = [...fetched].filter((name) => tables.has(name));
  return [
    ...(dense.length > 0
      ? [
          operation('pull', `pull ${short(facts, dense)}`, 'servers', [ON_SERVERS], [FETCHED], {
            ...{ form: 'dense', parameters: dense },
          }),
        ]
      : []),
    ...rows.map((name) => {
      const shown = short(facts, [name]);
      const reads = [BATCH, ON_SERVERS];
      return operation('pull rows', `pull rows ${shown}`, 'servers', reads, [`rows of ${shown}`], {
        ...{ form: 'rows', parameters: [name] },
      });
    }),
  ];
}

/** Forward and backward pass, and what leaves with each group. */
export function computing(facts: StepFacts): Operation[] {
  const { groups, routes, hasStates, predicted } = facts;
  const parameters = [...parametersOf(facts), ...fetching(facts).flatMap(({ mutates }) => mutates)];
  const read = [BATCH, ...parameters, ...(hasStates ? [STATES] : [])];
  return [
    operation('forward', 'forward', 'compute', read, [LOSS, ...newStates(facts)], {
      ...timeOf(predicted?.forwardMs),
    }),
    ...groups.flatMap((names, group) => {
      const name = `backward ${short(facts, names)}`.trimEnd();
      const gradients = messagesOf(facts, group).map(({ variable }) => variable);
      return [
        operation('backward', name, 'compute', [BATCH, ...parameters], gradients, {
          ...{ number: group, parameters: names, ...timeOf(predicted?.backwardMs[group]) },
        }),
        ...(routes ? leaving(facts, group) : []),
      ];
    }),
  ];
}

/** Gradients of a group that travel together, or stay together. */
interface GradientMessage {
  readonly variable: string;
  readonly route: Route | undefined;
  readonly isTable: boolean;
  readonly names: readonly string[];
}

/**
 * Dense gradients that lie behind each other are one message; one that goes to servers ends it. What
 * goes to servers dense is one message as well, and each table one of its own.
 */
function messagesOf({ groups, tables, routes }: StepFacts, group: number): GradientMessage[] {
  const names = groups[group]!;
  const runs: string[][] = [[]];
  for (const name of names) {
    if (tables.has(name) && routes) continue;
    if (!routes || routes.get(name) === 'collective') runs.at(-1)!.push(name);
    else runs.push([]);
  }
  const byTable = routes ? names.filter((name) => tables.has(name)) : [];
  const pushed = routes ? names.filter((name) => !tables.has(name) && routes.get(name) !== 'collective') : [];
  const messages: Omit<GradientMessage, 'variable'>[] = [
    ...runs.map((run) => ({ route: routes && ('collective' as const), isTable: false, names: run })),
    ...byTable.map((name) => ({ route: routes!.get(name), isTable: true, names: [name] })),
    { route: 'server dense' as const, isTable: false, names: pushed },
  ].filter((message) => message.names.length > 0);
  return messages.map((message, i) => ({ ...message, variable: gradientsOf(group, i) }));
}

/** What a group sends behind its segment. The first takes the loss along. */
function leaving(facts: StepFacts, group: number): Operation[] {
  const { addsRowsUp = false } = facts;
  const messages = messagesOf(facts, group);
  const withLoss = [LOSS, ...newStates(facts)];
  const dense = messages.filter(({ route, isTable }) => route === 'collective' && !isTable);
  const whole = messages.filter(({ route, isTable }) => route === 'collective' && isTable);
  const pushed = messages.filter(({ route }) => route === 'server dense');
  const rows = messages.filter(({ route }) => route === 'server rows');
  const reduce = (
    name: string,
    form: NonNullable<Operation['form']>,
    names: readonly string[],
    mutates: readonly string[],
  ) =>
    operation('reduce', name, 'communication', [], mutates, {
      ...{ form, parameters: names, number: group },
      ...(form === 'rows of a machine' ? {} : messageTime(facts, names)),
    });
  const first = facts.groups[group]!.find((name) => !facts.tables.has(name));
  const startsWithGradients = group === 0 && first !== undefined && dense[0]?.names[0] === first;
  return [
    ...(group === 0 && !startsWithGradients ? [reduce(`allreduce ${LOSS}`, 'dense', [], withLoss)] : []),
    ...dense.map(({ names, variable }, i) =>
      reduce(`allreduce ${short(facts, names)}`, 'dense', names, [
        ...(startsWithGradients && i === 0 ? withLoss : []),
        variable,
      ]),
    ),
    ...whole.map(({ names, variable }) =>
      reduce(`allreduce ${short(facts, names)}`, 'table', names, [variable]),
    ),
    ...pushed.map((message) => push(facts, message, group)),
    ...rows.flatMap((message) => [
      ...(addsRowsUp
        ? [
            reduce(
              `rows ${short(facts, message.names)} of this machine`,
              'rows of a machine',
              message.names,
              [message.variable],
            ),
          ]
        : []),
      push(facts, message, group),
    ]),
  ];
}

/** What comes behind the backward pass: rows of tables by collectives, and what is left to fetch. */
export function combining(facts: StepFacts): Operation[] {
  const { routes, fetchesHeld = false } = facts;
  if (!routes) return [];
  const all = allMessages(facts);
  const gathered = all.filter(({ route }) => route === 'collective rows');
  const parameters = gathered.flatMap(({ names }) => names);
  const variables = gathered.map(({ variable }) => variable);
  return [
    ...(gathered.length > 0
      ? [
          operation('reduce', 'row counts', 'communication', variables, [ROW_COUNTS], {
            ...{ form: 'row counts', parameters },
          }),
        ]
      : []),
    ...gathered.map(({ names, variable }) =>
      operation('reduce', `rows ${short(facts, names)}`, 'communication', [ROW_COUNTS], [variable], {
        ...{ form: 'rows', parameters: names, ...messageTime(facts, names) },
      }),
    ),
    ...(fetchesHeld
      ? [
          operation(
            'pull',
            'pull combined gradients',
            'servers',
            [HELD],
            all.map(({ variable }) => variable),
            { form: 'held' },
          ),
        ]
      : []),
  ];
}

export function takingStates({ hasStates }: StepFacts): Operation[] {
  return hasStates ? [operation('states', 'states', 'compute', [NEW_STATES], [STATES])] : [];
}

function push(facts: StepFacts, { names, variable, isTable }: GradientMessage, group: number): Operation {
  return operation('push', `push ${short(facts, names)}`, 'servers', [variable], [HELD], {
    ...{ form: isTable ? 'rows' : 'dense', parameters: names, number: group },
    ...messageTime(facts, names),
  });
}

/** What is done here with combined gradients before an update, here or on servers. */
export function transforming(facts: StepFacts): Operation[] {
  const gradients = gradientVariables(facts);
  const held = isOnServers(facts) ? [HELD] : [];
  return facts.transforms.map(({ kind, name, number: known }, i) => {
    const number = known ?? i;
    const more = { form: 'transform', number } as const;
    return kind === 'norm'
      ? operation(kind, name, 'compute', [LOSS, ...held], [SCALE, ...gradients], more)
      : operation(kind, name, 'compute', [LOSS, PARAMETERS], gradients, more);
  });
}

/**
 * A loss that is not a number leaves parameters as they were; so does a push that failed, which is
 * why held gradients are read.
 */
export function updating(facts: StepFacts): Operation[] {
  const gradients = gradientVariables(facts);
  const held = isOnServers(facts) ? [HELD] : [];
  return [
    operation(
      'update',
      'update',
      'compute',
      [LOSS, ...gradients, ...scaled(facts), ...held],
      [PARAMETERS, OPTIMIZER_STATE],
    ),
  ];
}

export function averaging({ hasAverages }: StepFacts): Operation[] {
  return hasAverages ? [operation('average', 'average', 'compute', [PARAMETERS], [AVERAGES])] : [];
}

export function applying(facts: StepFacts): Operation[] {
  if (!isOnServers(facts)) return [];
  const { aroundUpdates: around = [] } = facts;
  const more = around.length > 0 ? { around } : {};
  return [operation('apply', 'apply', 'servers', [LOSS, ...scaled(facts)], [HELD, ON_SERVERS], more)];
}

export function keeping(facts: StepFacts): Operation[] {
  const { checkpointEverySteps, hasStates, hasAverages } = facts;
  const evaluated = [...parametersOf(facts), ...(hasStates ? [STATES] : [])];
  const kept = [...evaluated, ...(hasAverages ? [AVERAGES] : []), OPTIMIZER_STATE];
  const every = checkpointEverySteps === Infinity ? 'epoch' : checkpointEverySteps;
  return [
    operation('evaluate', 'evaluate', 'compute', evaluated, [], { every: 'call' }),
    ...(every === undefined ? [] : [operation('checkpoint', 'checkpoint', 'compute', kept, [], { every })]),
  ];
}

export function gradientVariables(facts: StepFacts): string[] {
  return allMessages(facts).map(({ variable }) => variable);
}

function allMessages(facts: StepFacts): GradientMessage[] {
  return facts.groups.flatMap((_, group) => messagesOf(facts, group));
}

function scaled({ transforms }: StepFacts): string[] {
  return transforms.some(({ kind }) => kind === 'norm') ? [SCALE] : [];
}

function newStates({ hasStates }: StepFacts): string[] {
  return hasStates ? [NEW_STATES] : [];
}

function parametersOf(facts: StepFacts): string[] {
  return [PARAMETERS, ...(isOnServers(facts) ? [ON_SERVERS] : [])];
}

function isOnServers({ routes }: StepFacts): boolean {
  return [...(routes?.values() ?? [])].some((route) => route.startsWith('server'));
}

/** Of the first message of a group, and of further ones. */
function gradientsOf(group: number, message: number): string {
  return message === 0 ? `gradients ${group}` : `gradients ${group}.${message}`;
}

function messageTime(
  { predicted }: StepFacts,
  [first = '']: readonly string[],
): Pick<Operation, 'predictedMs'> {
  return timeOf(predicted?.messageMs.get(first));
}

function timeOf(predictedMs: number | undefined): Pick<Operation, 'predictedMs'> {
  return predictedMs === undefined ? {} : { predictedMs };
}

export function short({ parameters }: Pick<StepFacts, 'parameters'>, names: readonly string[]): string {
  return namesInShort(names, parameters);
}
