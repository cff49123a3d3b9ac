/**
 * An operation of a training step as plain data, what it waits for, and a list of them as a program.
 * It runs nothing; `runtime/step-walk.ts` does. Terms: a variable is anything that an operation may
 * have to wait for, such as `gradients 1`, those of the second group. Invariant: a list that is
 * carried out one after the other and one whose lanes wait for what `dependenciesOf` names come to
 * the same values.
 */
import { createHash } from 'node:crypto';
import type { StepOperation } from './step-operations.ts';

/**
 * Where an operation runs: in the thread that computes, in that of collectives, or on connections
 * to servers.
 */
export type OperationLane = 'compute' | 'communication' | 'servers';

/**
 * What kind of values it is about, where its kind alone leaves that open: dense parameters as one
 * message, a whole table, rows of a table, how many rows every worker has, rows of the workers of
 * one machine, gradients that servers hold; or something that is done to gradients first.
 */
export type OperationForm =
  'dense' | 'table' | 'rows' | 'row counts' | 'rows of a machine' | 'held' | 'transform';

export interface Operation {
  readonly kind: StepOperation;
  /** As the trace shows it. */
  readonly name: string;
  readonly lane: OperationLane;
  readonly reads: readonly string[];
  /** It may read these, too. */
  readonly mutates: readonly string[];
  readonly form?: OperationForm;
  /** Of which it moves gradients or values. */
  readonly parameters?: readonly string[];
  /**
   * What servers do around the updates, besides their rule, by the names that these operations have
   * on one device: clip, decay, follow by averages.
   */
  readonly around?: readonly string[];
  /** The group of gradients that it computes or sends, or which update operation it is. */
  readonly number?: number;
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

/** For the end of an operation of another lane, by its number in the list. */
export interface Wait {
  readonly at: number;
  /** 1: in the step before. */
  readonly stepsBefore: 0 | 1;
}

export function operation(
  kind: StepOperation,
  name: string,
  lane: OperationLane,
  reads: readonly string[],
  mutates: readonly string[],
  more: Pick<Operation, 'every' | 'predictedMs' | 'form' | 'parameters' | 'around' | 'number'> = {},
): Operation {
  const frozen = {
    ...(more.parameters && { parameters: Object.freeze([...more.parameters]) }),
    ...(more.around && { around: Object.freeze([...more.around]) }),
  };
  return Object.freeze({
    ...{ kind, name, lane, reads: Object.freeze(reads), mutates: Object.freeze(mutates) },
    ...{ ...more, ...frozen },
  });
}

export function asProgram(all: readonly Operation[]): StepProgram {
  const operations = Object.freeze([...all]);
  const text = JSON.stringify(operations, (key, value: unknown) =>
    key === 'predictedMs' ? undefined : value,
  );
  return Object.freeze({ operations, hash: createHash('sha256').update(text).digest('hex') });
}

/**
 * An operation waits for those that have mutated what it reads or mutates, and for those that have
 * read since then what it mutates; of its own lane for none, since a lane goes by the list. One that
 * is not due in every step hides nothing: those behind it also wait for what was before it, and need
 * not know whether it was due.
 */
export function dependenciesOf(operations: readonly Operation[]): readonly (readonly Wait[])[] {
  const count = operations.length;
  const mutators = new Map<string, number[]>();
  const readers = new Map<string, number[]>();
  const waits: Wait[][] = [];
  const of = (known: Map<string, number[]>, variable: string) => known.get(variable) ?? [];
  // Two steps: what the second one waits for in the first is the step before.
  for (let at = 0; at < 2 * count; at++) {
    const { lane, reads, mutates, every } = operations[at % count]!;
    const awaited = [
      ...[...reads, ...mutates].flatMap((variable) => of(mutators, variable)),
      ...mutates.flatMap((variable) => of(readers, variable)),
    ];
    for (const variable of mutates) {
      mutators.set(variable, every === undefined ? [at] : [...of(mutators, variable), at]);
      if (every === undefined) readers.set(variable, []);
    }
    for (const variable of reads) {
      if (!mutates.includes(variable)) readers.set(variable, [...of(readers, variable), at]);
    }
    const others = awaited.filter((one) => operations[one % count]!.lane !== lane);
    if (at < count) continue;
    const inOrder = [...new Set(others)].sort((a, b) => a - b);
    waits.push(inOrder.map((one) => ({ at: one % count, stepsBefore: one < count ? 1 : 0 })));
  }
  return waits;
}

/**
 * The last on each lane: enough for whoever waits for what comes before on that lane, too, as a lane
 * goes by the list.
 */
export function lastOfLanes(operations: readonly Operation[], waits: readonly Wait[]): Wait[] {
  return [...new Map(waits.map((wait) => [operations[wait.at]!.lane, wait])).values()];
}
