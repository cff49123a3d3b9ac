/**
 * Carries out the program of a training step: one walk through the list for each step, in the thread
 * that computes. Operations of its own lane run where they stand; those of other lanes are started
 * as soon as what they wait for in other lanes has ended, and are waited for where an operation that
 * computes needs them. Who does what is bound once for a program (`bind`), and what waits for what is
 * compiled then, so that a step counts steps in arrays of integers and makes no promise unless an
 * operation does. It knows nothing of models. Invariants: the values are those of the list one after
 * the other; the operations of a lane start in the order of the list; whoever waits for one waits for
 * those before it on its lane, too, as lanes may end in another order.
 */
import { InternalError } from '../base/index.ts';
import {
  dependenciesOf,
  lastOfLanes,
  type Operation,
  type OperationLane,
  type StepProgram,
} from '../plan/index.ts';

/** Carries out an operation of the thread that computes. */
export type ComputeHandler = () => void | Promise<void>;

/** Has an operation carried out by another thread. */
export interface LaneHandler {
  start(): void;
  /** Takes it as far as it can without waiting. Throws what went wrong. */
  hasEnded(): boolean;
  /** Blocks until it has ended, or returns a promise of that. Throws what went wrong. */
  wait(): void | Promise<unknown>;
  /** What it moved and when, once it has ended; undefined if nothing. */
  readonly message?: MovedMessage | undefined;
}

/** Times are milliseconds since 1970; bytes are those that this worker gives or gets. */
export interface MovedMessage {
  readonly startedMs: number;
  readonly endedMs: number;
  readonly bytes?: number | undefined;
}

export type Handler = ComputeHandler | LaneHandler;

/** A part of a worker: what it can do, by the operation; undefined: not this one. */
export type HandlerOf = (operation: Operation) => Handler | undefined;

export interface StepWalkOptions {
  /** The first that can do an operation does it. */
  readonly parts: readonly HandlerOf[];
  /** Finished steps, which say what is due that is not due in every step. */
  readonly finishedSteps: () => number;
  /** Called behind each operation of the thread that computes. Default: nobody. */
  readonly onComputed?: ((operation: Operation) => void) | undefined;
  /** The same behind waiting for operations of other lanes, with the last one of them. */
  readonly onWaited?: ((operation: Operation) => void) | undefined;
  /** Called when it is known here that an operation of another lane has ended. */
  readonly onMessage?: ((operation: Operation, message: MovedMessage) => void) | undefined;
}

const LANES: readonly OperationLane[] = ['compute', 'communication', 'servers'];
/** Other numbers are steps. */
const ALWAYS = 0;

export class StepWalk {
  readonly #options: StepWalkOptions;
  readonly #operations: readonly Operation[];
  readonly #handlers: readonly Handler[];
  readonly #every: Int32Array;
  readonly #bodyEnd: number;
  /** Of each operation, those it waits for: the numbers, and how many steps before. */
  readonly #waits: readonly Int32Array[];
  readonly #stepsBefore: readonly Int32Array[];
  readonly #lanes: readonly Lane[];
  readonly #laneOf: readonly Lane[];
  /** Of each operation in its lane. */
  readonly #places: Int32Array;
  readonly #isComputed: readonly boolean[];
  /** The last step in which each operation was started, has ended and was due. */
  readonly #started: Int32Array;
  readonly #ended: Int32Array;
  readonly #due: Int32Array;
  #step = -1;
  /** The last operation that was waited for since something was computed. */
  #waitedFor: Operation | undefined;

  /** Fails by the name of an operation that no part can do. */
  static bind({ operations }: Pick<StepProgram, 'operations'>, options: StepWalkOptions): StepWalk {
    const bodyEnd = bodyEndOf(operations);
    const handlers = operations.map((operation, at): Handler => {
      // Whoever asks for it brings the work along.
      if (at >= bodyEnd) return nothing;
      for (const part of options.parts) {
        const handler = part(operation);
        if (handler) return handler;
      }
      throw new InternalError(
        'BROKEN_INVARIANT',
        `no part of this worker can do '${operation.name}' (${operation.kind}, lane ${operation.lane}), which is in the program of a step; please report it`,
        { operation: operation.name, kind: operation.kind, lane: operation.lane },
      );
    });
    return new StepWalk(operations, handlers, options);
  }

  private constructor(
    operations: readonly Operation[],
    handlers: readonly Handler[],
    options: StepWalkOptions,
  ) {
    this.#options = options;
    this.#operations = operations;
    this.#handlers = handlers;
    const count = operations.length;
    this.#every = Int32Array.from(operations, ({ every = ALWAYS }) =>
      typeof every === 'number' ? every : ALWAYS,
    );
    this.#bodyEnd = bodyEndOf(operations);
    const waits = dependenciesOf(operations).map((all, at) => {
      // The thread that computes goes by the list itself: whoever comes behind it need not wait.
      const others = all.filter((wait) => operations[wait.at]!.lane !== 'compute');
      // It waits for what came before on the same lane, too.
      return operations[at]!.lane === 'compute' ? lastOfLanes(operations, others) : others;
    });
    this.#waits = waits.map((all) => Int32Array.from(all, (wait) => wait.at));
    this.#stepsBefore = waits.map((all) => Int32Array.from(all, ({ stepsBefore }) => stepsBefore));
    const lanes = LANES.map(
      (lane) => new Lane(operations.flatMap((one, at) => (one.lane === lane ? [at] : []))),
    );
    this.#laneOf = operations.map(({ lane }) => lanes[LANES.indexOf(lane)]!);
    this.#places = Int32Array.from(operations, (_, at) => this.#laneOf[at]!.operations.indexOf(at));
    this.#isComputed = operations.map(({ lane }) => lane === 'compute');
    this.#lanes = lanes.filter((_, i) => LANES[i] !== 'compute');
    this.#started = new Int32Array(count).fill(-1);
    this.#ended = new Int32Array(count).fill(-1);
    this.#due = new Int32Array(count).fill(-1);
  }

  /** All that is due in a step, up to what has to be asked for. Without a promise where none is needed. */
  step(): void | Promise<void> {
    this.#step++;
    try {
      for (let at = 0; at < this.#bodyEnd; at++) {
        const pending = this.#ready(at);
        if (pending) return this.#later(at, pending);
        const running = this.#run(at);
        if (running) return this.#later(at + 1, running, at);
      }
      return undefined;
    } catch (error) {
      this.#giveUpStep();
      throw error;
    }
  }

  /** Whether an operation that has to be asked for is due: by its number of steps, or as an epoch ends. */
  isDue(kind: Operation['kind'], isEpochEnd: boolean): boolean {
    const at = this.#onCall(kind);
    if (at < 0) return false;
    const { every } = this.#operations[at]!;
    return isEpochEnd || (typeof every === 'number' && this.#options.finishedSteps() % every === 0);
  }

  /** Does the work of an operation that has to be asked for, when what it waits for has ended. */
  async call<T>(kind: Operation['kind'], work: () => T | Promise<T>): Promise<T> {
    const at = this.#onCall(kind);
    if (at < 0) return work();
    for (let pending = this.#ready(at); pending; pending = this.#ready(at)) await pending;
    // Waiting is part of it.
    this.#waitedFor = undefined;
    const result = await work();
    this.#options.onComputed?.(this.#operations[at]!);
    return result;
  }

  /** Waits for all that was started. Returns whether there was something. */
  async settle(): Promise<boolean> {
    let hasWaited = false;
    for (const lane of this.#lanes) {
      for (;;) {
        const pending = this.#waitInLane(lane, lane.reached);
        if (!pending) break;
        hasWaited = true;
        await pending;
      }
    }
    return hasWaited;
  }

  #onCall(kind: Operation['kind']): number {
    return this.#operations.findIndex((one, at) => at >= this.#bodyEnd && one.kind === kind);
  }

  /** From an operation on, once what is awaited has come. `running`: the one that is still running. */
  async #later(from: number, first: Promise<unknown>, running?: number): Promise<void> {
    try {
      await first;
      if (running !== undefined) this.#computed(running);
      for (let at = from; at < this.#bodyEnd; at++) {
        for (let pending = this.#ready(at); pending; pending = this.#ready(at)) await pending;
        const more = this.#run(at);
        if (!more) continue;
        await more;
        this.#computed(at);
      }
    } catch (error) {
      this.#giveUpStep();
      throw error;
    }
  }

  /** What must have ended before the walk comes to an operation; asked again until it is nothing. */
  #ready(at: number): Promise<unknown> | undefined {
    const step = this.#step;
    // The same operation of the step before: its handler is one.
    if (!this.#isComputed[at]) return this.#wait(at, step - 1);
    for (let i = 0; i < this.#lanes.length; i++) this.#start(this.#lanes[i]!);
    if (!this.#isDue(at)) return undefined;
    const [waits, before] = [this.#waits[at]!, this.#stepsBefore[at]!];
    for (let i = 0; i < waits.length; i++) {
      const awaited = waits[i]!;
      const lane = this.#laneOf[awaited]!;
      const count = (step - before[i]!) * lane.operations.length + this.#places[awaited]! + 1;
      if (lane.ended >= count) continue;
      this.#waitedFor = this.#operations[awaited];
      const pending = this.#waitInLane(lane, count);
      if (pending) return pending;
    }
    return undefined;
  }

  /** Runs an operation of the thread that computes; of another lane, has it started when that can be. */
  #run(at: number): Promise<void> | undefined {
    const lane = this.#laneOf[at]!;
    const isDue = this.#isDue(at);
    if (!this.#isComputed[at]) {
      if (isDue) this.#due[at] = this.#step;
      lane.reached++;
      this.#start(lane);
      return undefined;
    }
    if (!isDue) return undefined;
    this.#waited();
    const running = (this.#handlers[at] as ComputeHandler)();
    if (running) return running;
    this.#computed(at);
    return undefined;
  }

  #computed(at: number): void {
    this.#options.onComputed?.(this.#operations[at]!);
  }

  #waited(): void {
    if (this.#waitedFor) this.#options.onWaited?.(this.#waitedFor);
    this.#waitedFor = undefined;
  }

  #isDue(at: number): boolean {
    const every = this.#every[at]!;
    if (every === ALWAYS || at >= this.#bodyEnd) return true;
    const finished = this.#options.finishedSteps();
    return finished > 0 && finished % every === 0;
  }

  /** Starts what was reached in a lane, in order, as far as what it waits for in other lanes has ended. */
  #start(lane: Lane): void {
    while (lane.hasLeft) {
      const { at, step } = lane.next;
      const [waits, before] = [this.#waits[at]!, this.#stepsBefore[at]!];
      for (let i = 0; i < waits.length; i++) {
        if (!this.#hasEnded(waits[i]!, step - before[i]!)) return;
      }
      this.#startNext(lane);
    }
  }

  #startNext(lane: Lane): void {
    const { at, step } = lane.next;
    lane.begun++;
    this.#started[at] = step;
    if (this.#due[at] === step) (this.#handlers[at] as LaneHandler).start();
    else this.#ended[at] = step;
  }

  #hasEnded(at: number, step: number): boolean {
    if (this.#ended[at]! >= step) return true;
    if (this.#started[at]! < step || !(this.#handlers[at] as LaneHandler).hasEnded()) return false;
    this.#end(at);
    return true;
  }

  /** The first so many of a lane. */
  #waitInLane(lane: Lane, count: number): Promise<unknown> | undefined {
    for (; lane.ended < count; lane.ended++) {
      const { at, step } = lane.operationOf(lane.ended);
      const pending = this.#wait(at, step);
      if (pending) return pending;
    }
    return undefined;
  }

  /** Blocks until an operation of another lane has ended that was reached in this step. */
  #wait(at: number, step: number): Promise<unknown> | undefined {
    if (this.#ended[at]! >= step) return undefined;
    const lane = this.#laneOf[at]!;
    while (this.#started[at]! < step) {
      const next = lane.next;
      const [waits, before] = [this.#waits[next.at]!, this.#stepsBefore[next.at]!];
      for (let i = 0; i < waits.length; i++) {
        const pending = this.#wait(waits[i]!, next.step - before[i]!);
        if (pending) return pending;
      }
      this.#startNext(lane);
    }
    if (this.#ended[at]! >= step) return undefined;
    const pending = (this.#handlers[at] as LaneHandler).wait();
    if (!pending) return void this.#end(at);
    return pending.then(() => {
      if (this.#ended[at]! < step) this.#end(at);
    });
  }

  #end(at: number): void {
    this.#ended[at] = this.#started[at]!;
    const { message } = this.#handlers[at] as LaneHandler;
    if (message) this.#options.onMessage?.(this.#operations[at]!, message);
  }

  /** A step that failed goes no further; another one may follow. */
  #giveUpStep(): void {
    this.#waitedFor = undefined;
    for (const lane of this.#lanes) {
      for (const at of lane.operations) {
        if (this.#started[at]! < this.#step) this.#started[at] = this.#ended[at] = this.#step;
      }
      lane.reached = lane.begun = (this.#step + 1) * lane.operations.length;
    }
  }
}

/** The operations of a lane, and how many of them were reached, started and awaited in all steps. */
class Lane {
  readonly operations: readonly number[];
  reached = 0;
  begun = 0;
  /** So many have ended, from the first one on. */
  ended = 0;

  constructor(operations: readonly number[]) {
    this.operations = operations;
  }

  get hasLeft(): boolean {
    return this.begun < this.reached;
  }

  /** The next to start. */
  get next(): PlannedOperation {
    return this.operationOf(this.begun);
  }

  operationOf(number: number): PlannedOperation {
    const { length } = this.operations;
    return { at: this.operations[number % length]!, step: Math.floor(number / length) };
  }
}

interface PlannedOperation {
  readonly at: number;
  readonly step: number;
}

const nothing: ComputeHandler = () => undefined;

/** Those of a step come before the first that has to be asked for. */
function bodyEndOf(operations: readonly Operation[]): number {
  const first = operations.findIndex(({ every }) => every === 'call' || every === 'epoch');
  return first < 0 ? operations.length : first;
}
