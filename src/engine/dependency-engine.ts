/**
 * The dependency engine (MXNET-MPI, sections 3.1 and 4.2): operations say which variables they read and which they
 * mutate, and begin as soon as every earlier-pushed operation that conflicts with them has ended. Two conflict if one
 * mutates what the other reads or mutates. It runs nothing in parallel by itself: operations are asynchronous functions
 * of this thread. Invariant: each operation sees the values that it would see if all ran one after the other in push order.
 *
 * Why it cannot deadlock: an operation waits only for operations pushed before it, in conflicts and in lanes alike. So
 * the earliest one that has not ended waits for nobody, and one that is under way waits for nothing in the engine, unless
 * its `run` awaits a later operation, which is forbidden. With limited concurrency the places are held by operations
 * under way only, so they become free.
 *
 * Between ranks: an operation that needs the other ranks (a collective) ends only if they begin theirs. Ranks that push
 * the same collectives in the same order, all in one lane (`inOrder`), cannot block each other: the first in the lane that
 * has not ended everywhere is held up by local operations only, never by a later collective. With unlimited
 * concurrency several lanes are safe too; with limited concurrency two lanes are not, as one rank may give its last
 * place to the one and another rank to the other. "Begin" is the call of `run`: what must happen in order has to stand
 * before its first `await`.
 */
import { UsageError } from '../base/index.ts';
import { closedAlready, closedBefore, stillWaiting, unreadable } from './operation-errors.ts';
import { checkOperation, Operation } from './operation.ts';
import type { Dependent, OperationOptions } from './operation.ts';
import { ReadyQueue } from './ready-queue.ts';
import { VariableTable } from './variable-table.ts';
import type { Damage } from './variable-table.ts';
import { waitUntil } from './wait.ts';
import type { WaitOptions } from './wait.ts';

export interface DependencyEngineOptions {
  /** Most operations under way at once. Default: no limit. */
  readonly concurrency?: number | undefined;
}

export class DependencyEngine {
  readonly #concurrency: number;
  readonly #variables = new VariableTable();
  readonly #ready = new ReadyQueue();
  /** Pushed and not begun, in the order of the pushes. */
  readonly #waiting = new Set<Operation>();
  readonly #underWay = new Set<Operation>();
  /** The last operation of each lane, if it has not begun. */
  readonly #lanes = new Map<string, Operation>();
  readonly #idleWaits = new Set<() => void>();
  /** One function for all operations. */
  readonly #whenFree = (operation: Operation): void => {
    if (!this.#isClosed) this.#ready.add(operation);
  };
  #pushes = 0;
  #isStarting = false;
  #isClosed = false;

  constructor({ concurrency = Infinity }: DependencyEngineOptions = {}) {
    if (!(concurrency >= 1 && (Number.isInteger(concurrency) || concurrency === Infinity))) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `concurrency is ${concurrency}; give a whole number of operations from 1, or leave it out`,
        { concurrency },
      );
    }
    this.#concurrency = concurrency;
  }

  /**
   * What the engine remembers: operations that have not ended, lanes with one that has not begun, and variables that are
   * used or were left without a valid value. 0 when idle and nothing failed.
   */
  get size(): number {
    return this.#waiting.size + this.#underWay.size + this.#lanes.size + this.#variables.size;
  }

  /**
   * Hands over an operation; it begins at once, within this call, if nothing is in its way. So an exchange starts even
   * if its caller goes on computing without a pause. The promise is that of its result.
   *
   * If `run` fails, the promise rejects with its error, and the variables it mutates have no valid value. Later operations
   * that read one of them do not run: they reject with an error that names culprit and variable, and leave their own
   * variables invalid in turn. An operation that mutates the variable without reading it runs as usual, and if it
   * succeeds the variable is valid again.
   *
   * Every promise must be awaited (or given a `catch`), also those of operations whose result nobody wants: the engine
   * hides no failure, so a dropped promise that rejects is an unhandled rejection of the process. Awaiting the last of a
   * chain is not enough. Gather the promises where they are made, `await Promise.all([push(a), push(b)])`: awaiting
   * one after the other leaves those behind alone while the first still runs.
   */
  push<T>(options: OperationOptions<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      checkOperation(options);
      if (this.#isClosed) throw closedAlready(options.name);
      const operation = new Operation(options, {
        sequence: this.#pushes++,
        // The value is the one that this operation's own `run` gave.
        resolve: resolve as (value: unknown) => void,
        reject,
        whenFree: this.#whenFree,
      });
      this.#waiting.add(operation);
      for (const earlier of this.#variables.enter(operation)) blockUntilEnd(operation, earlier);
      this.#enterLane(operation);
      if (operation.blockers === 0) operation.free();
      this.#startReady();
    });
  }

  /**
   * Done when all operations pushed so far that read or mutate one of the variables have ended, well or not: their
   * memory is then nobody's. It holds no later operation back and says nothing of the values; to use a value, push an
   * operation that reads it.
   */
  waitFor(variables: readonly string[], options: WaitOptions = {}): Promise<void> {
    const users = this.#variables.lastUsers(variables);
    return this.#wait(`the wait for ${variables.map((name) => `'${name}'`).join(', ')}`, options, (done) => {
      const wait: Dependent = { blockers: 0, free: done };
      for (const user of users) blockUntilEnd(wait, user);
      if (users.size === 0) done();
      return () => {
        for (const user of users) user.dependents.delete(wait);
      };
    });
  }

  /** Done when no operation is left, those pushed meanwhile included. How they ended, their own promises say. */
  idle(options: WaitOptions = {}): Promise<void> {
    return this.#waitUntilIdle('the wait for all operations', options);
  }

  /**
   * Stops: operations that have not begun are rejected (CANCELLED) and nothing can be pushed any more. Done when those
   * under way have ended. May be called again, for instance after a TIMEOUT.
   */
  close(options: WaitOptions = {}): Promise<void> {
    this.#isClosed = true;
    for (const operation of this.#waiting) {
      const error = closedBefore(operation.name);
      operation.reject(error);
      this.#leaveWaiting(operation);
      this.#end(operation, { writer: operation.name, culprit: operation.name, error });
    }
    this.#ready.clear();
    return this.#waitUntilIdle('the close', options);
  }

  #enterLane(operation: Operation): void {
    const { lane } = operation;
    if (lane === undefined) return;
    const ahead = this.#lanes.get(lane);
    if (ahead) {
      ahead.nextInLane = operation;
      operation.blockers++;
    }
    this.#lanes.set(lane, operation);
  }

  /** Begins operations while there are ready ones and free places. */
  #startReady(): void {
    // A `run` that pushes gets here again; the loop below it goes on with what it pushed, in the right order.
    if (this.#isStarting) return;
    this.#isStarting = true;
    while (!this.#isClosed && this.#underWay.size < this.#concurrency) {
      const operation = this.#ready.take();
      if (!operation) break;
      this.#begin(operation);
    }
    this.#isStarting = false;
  }

  #begin(operation: Operation): void {
    const unread = this.#variables.damageBefore(operation);
    if (unread) {
      const { variable, damage } = unread;
      operation.reject(unreadable(operation.name, variable, damage));
      this.#leaveWaiting(operation);
      this.#end(operation, { ...damage, writer: operation.name });
      return;
    }
    this.#underWay.add(operation);
    this.#leaveWaiting(operation);
    // Inside a promise, so that a `run` that throws at once fails like one that throws later.
    new Promise((resolve) => resolve(operation.run())).then(
      (value) => {
        operation.resolve(value);
        this.#underWay.delete(operation);
        this.#end(operation);
        this.#startReady();
      },
      (error: unknown) => {
        operation.reject(error);
        this.#underWay.delete(operation);
        this.#end(operation, { writer: operation.name, culprit: operation.name, error });
        this.#startReady();
      },
    );
  }

  /** The operation begins, or never will: the next in its lane need not wait for it any more. */
  #leaveWaiting(operation: Operation): void {
    this.#waiting.delete(operation);
    const { lane, nextInLane } = operation;
    if (lane !== undefined && this.#lanes.get(lane) === operation) this.#lanes.delete(lane);
    if (nextInLane) unblock(nextInLane);
  }

  #end(operation: Operation, damage?: Damage): void {
    this.#variables.leave(operation, damage);
    for (const dependent of operation.dependents) unblock(dependent);
    this.#endIdleWaits();
  }

  #endIdleWaits(): void {
    if (this.#waiting.size + this.#underWay.size > 0) return;
    for (const done of this.#idleWaits) {
      this.#idleWaits.delete(done);
      done();
    }
  }

  #waitUntilIdle(what: string, options: WaitOptions): Promise<void> {
    return this.#wait(what, options, (done) => {
      this.#idleWaits.add(done);
      this.#endIdleWaits();
      return () => this.#idleWaits.delete(done);
    });
  }

  #wait(what: string, options: WaitOptions, whenDone: (done: () => void) => () => void): Promise<void> {
    const late = (timeoutMs: number) => {
      const underWay = [...this.#underWay].map(({ name }) => name);
      return stillWaiting(what, timeoutMs, underWay, this.#waiting.size);
    };
    return waitUntil(whenDone, what, late, options);
  }
}

function blockUntilEnd(dependent: Dependent, operation: Operation): void {
  operation.dependents.add(dependent);
  dependent.blockers++;
}

function unblock(dependent: Dependent): void {
  dependent.blockers--;
  if (dependent.blockers === 0) dependent.free();
}
