/**
 * The program of a training step: the body of a loop as plain frozen data, a list of operations, each
 * with what it reads and mutates, its lane, and how often it runs. Made from routes, groups, and
 * facts about the model; it runs nothing. Invariants: the same facts give the same program on every
 * worker; on a lane, operations start in the order of the list.
 */
import { asProgram, operation } from './operation.ts';
import type { Operation, StepProgram } from './operation.ts';
import * as parts from './step-parts.ts';
import { LOSS, NEW_STATES, ON_SERVERS, PARAMETERS, STATES, type StepFacts } from './step-parts.ts';

export function stepProgram(facts: StepFacts): StepProgram {
  return asProgram([
    ...parts.loading(),
    ...parts.comparing(facts),
    ...parts.fetching(facts),
    ...parts.computing(facts),
    ...parts.combining(facts),
    ...parts.takingStates(facts),
    ...parts.transforming(facts),
    ...parts.updating(facts),
    ...parts.averaging(facts),
    ...parts.applying(facts),
    ...parts.keeping(facts),
  ]);
}

/** Of a worker whose client deals with servers (MXNET-MPI, section 5). */
export interface ClientFacts extends Omit<
  StepFacts,
  'groups' | 'routes' | 'fetched' | 'addsRowsUp' | 'fetchesHeld' | 'predicted'
> {
  /**
   * What servers have of the model: sums of gradients, parameters that they update, or the centre
   * of the weights of all clients.
   */
  readonly servers: 'sums' | 'updates' | 'centre';
  /** Parameters with a gradient, in the order of the backward pass. */
  readonly trained: readonly string[];
  /** Whether some client has several workers. */
  readonly hasSeveral: boolean;
  /** Between two averages with the centre. */
  readonly averageEverySteps?: number | undefined;
}

export function clientProgram({
  servers,
  trained,
  hasSeveral,
  averageEverySteps,
  ...rest
}: ClientFacts): StepProgram {
  const { tables } = rest;
  const inside = new Map(
    trained.map((name) => [name, tables.has(name) ? ('collective rows' as const) : ('collective' as const)]),
  );
  // The loss and the states travel with gradients.
  const facts: StepFacts = { ...rest, groups: [trained], routes: hasSeveral ? inside : undefined };
  const gradients = parts.gradientVariables(facts);
  const computed = [
    ...(servers === 'updates' ? parts.fetching({ ...facts, fetched: tables }) : []),
    ...parts.computing({ ...facts, ...(servers === 'updates' ? { fetched: tables } : {}) }),
    ...parts.combining(facts),
  ];
  const update = [...parts.transforming(facts), ...parts.updating(facts)];
  const sums = [LOSS, ...(rest.hasStates ? [NEW_STATES] : []), ...gradients];
  const dense = trained.filter((name) => !tables.has(name));
  const body = {
    sums: [
      ...parts.comparing({ ...facts, routes: inside }),
      ...computed,
      ...exchanging(facts, trained, sums, sums, hasSeveral),
      ...parts.takingStates(facts),
      ...update,
    ],
    updates: [
      ...computed,
      ...parts.takingStates(facts),
      ...parts.transforming(facts),
      ...exchanging(facts, dense, [LOSS, ...gradients], [PARAMETERS], hasSeveral),
    ],
    centre: [...computed, ...parts.takingStates(facts), ...update],
  }[servers];
  const weights = [PARAMETERS, STATES, ON_SERVERS];
  return asProgram([
    ...parts.loading(),
    ...body,
    ...parts.averaging(facts),
    ...(averageEverySteps === undefined
      ? []
      : [
          operation('elastic exchange', 'elastic exchange', 'servers', [], weights, {
            every: averageEverySteps,
          }),
        ]),
    ...parts.keeping(facts),
  ]);
}

/** The first worker of a client pushes and pulls, the others get what came of it. */
function exchanging(
  facts: StepFacts,
  pulled: readonly string[],
  pushes: readonly string[],
  pulls: readonly string[],
  hasSeveral: boolean,
): Operation[] {
  const trained = facts.groups[0]!;
  const [shownPush, shownPull] = [trained, pulled].map((names) => parts.short(facts, names));
  return [
    operation('push', `push ${shownPush}`.trimEnd(), 'servers', pushes, [ON_SERVERS], {
      parameters: trained,
    }),
    operation('pull', `pull ${shownPull}`.trimEnd(), 'servers', [ON_SERVERS], pulls, { parameters: pulled }),
    ...(hasSeveral
      ? [
          operation('broadcast', `broadcast ${shownPull}`.trimEnd(), 'communication', [], pulls, {
            parameters: pulled,
          }),
        ]
      : []),
  ];
}
