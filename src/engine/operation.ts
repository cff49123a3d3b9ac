/**
 * One operation: what its caller says of it, and what the engine keeps until it has ended. Knows no scheduling.
 * Invariant: `blockers` counts what has still to happen before the operation may begin; it only falls once the
 * operation is pushed, and every decrement belongs to one entry in some `dependents` or `nextInLane`.
 */
import { UsageError } from '../base/index.ts';

export interface OperationOptions<T> {
  /** What errors call it; need not be unique. */
  readonly name: string;
  /** Variables whose values it uses. Default none. */
  readonly reads?: readonly string[] | undefined;
  /** Variables that it changes. One that is also in `reads` counts as changed, and its old value as used. Default none. */
  readonly mutates?: readonly string[] | undefined;
  /** Among operations that could begin, the higher goes first; equal ones in the order of their pushes. Default 0. */
  readonly priority?: number | undefined;
  /**
   * Name of a lane. Operations of one lane begin in the order of their pushes, whatever their priorities; they may
   * overlap. Default: in no lane.
   */
  readonly inOrder?: string | undefined;
  /** The work. Called once, if at all; it may push operations to the same engine but must not await them. */
  readonly run: () => Promise<T>;
}

/** Something that waits for operations to end. */
export interface Dependent {
  blockers: number;
  /** Called when the last blocker is gone. */
  free(): void;
}

/** What the engine gives a new operation. */
interface OperationPlace {
  readonly sequence: number;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
  /** Takes the operation when nothing is in its way any more. */
  readonly whenFree: (operation: Operation) => void;
}

export class Operation implements Dependent {
  readonly name: string;
  readonly reads: ReadonlySet<string>;
  readonly mutates: ReadonlySet<string>;
  readonly priority: number;
  readonly lane: string | undefined;
  readonly run: () => Promise<unknown>;
  /** Number of its push: the order that conflicts keep. */
  readonly sequence: number;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
  blockers = 0;
  /** Who waits for its end. */
  readonly dependents = new Set<Dependent>();
  /** The one behind it in its lane, which waits for its begin. */
  nextInLane: Operation | undefined = undefined;
  readonly #whenFree: (operation: Operation) => void;

  constructor(options: OperationOptions<unknown>, { sequence, resolve, reject, whenFree }: OperationPlace) {
    this.name = options.name;
    this.reads = new Set(options.reads);
    this.mutates = new Set(options.mutates);
    this.priority = options.priority ?? 0;
    this.lane = options.inOrder;
    this.run = options.run;
    this.sequence = sequence;
    this.resolve = resolve;
    this.reject = reject;
    this.#whenFree = whenFree;
  }

  free(): void {
    this.#whenFree(this);
  }
}

/** For callers whom the compiler did not check: a wrong argument would only show much later, in another operation. */
export function checkOperation(options: OperationOptions<unknown>): void {
  const { name, reads = [], mutates = [], priority = 0, inOrder, run } = options;
  const isVariables = (list: unknown) =>
    Array.isArray(list) && list.every((variable) => typeof variable === 'string');
  const faults = [
    typeof name === 'string' ? '' : `name is ${String(name)}, expected a text`,
    isVariables(reads) ? '' : 'reads is not a list of names of variables',
    isVariables(mutates) ? '' : 'mutates is not a list of names of variables',
    // Not a number would break the order of all others.
    typeof priority === 'number' && !Number.isNaN(priority)
      ? ''
      : `priority is ${priority}, expected a number`,
    inOrder === undefined || typeof inOrder === 'string' ? '' : 'inOrder is not the name of a lane',
    typeof run === 'function' ? '' : 'run is not a function',
  ].filter((fault) => fault !== '');
  if (faults.length === 0) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `operation '${String(name)}' was not pushed: ${faults.join('; ')}; correct the call`,
    { operation: name, faults },
  );
}
