/**
 * One operation under way: a generator that yields what it waits for, and the handle its caller holds. It decides
 * nothing about failures (progress.ts does) and knows no algorithm. Terms: a strand is one line of execution of the
 * operation; it may split into children that advance independently and goes on when all of them have ended.
 * Invariant: a strand only resumes when the transfer it yielded is done, so arrival order never shows in results.
 */
import type { TributaryError } from '../base/index.ts';
import type { DType, Region } from '../memory/index.ts';
import type { Envelope, OperationKey, Receiving, Transfer, Transport } from '../transport/index.ts';
import type { Scratch } from './scratch.ts';

/** What an algorithm is: yields a transfer to wait for it, or several algorithms to run them side by side. */
export type Steps = Generator<Transfer | readonly Steps[], void, void>;

/** The members of a group as an operation sees them. */
export interface Members {
  readonly id: number;
  /** Member numbers of the cluster in rank order. */
  readonly members: readonly number[];
  /** This process's place in `members`. */
  readonly rank: number;
  readonly size: number;
  /** The host of each rank; ranks of one host can share memory. */
  readonly hosts: readonly string[];
  /** For messages: 'rank 2 (process 4711 on host-a)'. */
  title(rank: number): string;
}

/** What a caller holds: await it, or block the thread with `wait`. */
export interface Handle extends PromiseLike<void> {
  readonly settled: boolean;
  /** Blocks this thread until the operation has ended; throws if it failed. */
  wait(): void;
  /** Leaves the operation; the other ranks get an error that names this one. */
  cancel(): void;
}

/** The handle of what was done before its call returned. */
export const FINISHED: Handle = {
  settled: true,
  wait: () => undefined,
  cancel: () => undefined,
  then: (onDone, onFailed) => Promise.resolve().then(onDone, onFailed),
};

/** A call in words and as numbers that must agree on all ranks. */
export interface Call {
  readonly tag: number;
  readonly signature: number;
  /** 'allreduce "fc1" (sum of 1,024 float32, ring)'; only built when a message needs it. */
  describe(): string;
  /** The call as plain data, from which a rank that has joined can take part in it. */
  readonly spec: Readonly<Record<string, unknown>>;
}

/** What the engine gives its operations. */
export interface OperationHost {
  readonly transport: Transport;
  readonly scratch: Scratch;
  wait(operation: Operation): void;
  cancel(operation: Operation): void;
  /** Done after the engine has looked at the transport once more, so that what peers have said by now is heard. */
  pause(): Transfer;
  /** Keeps the engine going from the event loop until the operation has settled. */
  pump(): void;
}

export class Operation implements Handle {
  readonly group: Members;
  readonly call: Call;
  readonly sequence: number;
  readonly startedMs: number;
  readonly deadlineMs: number;
  /** When the others are to be asked next; Infinity while answers are awaited. */
  reportMs: number;
  readonly #host: OperationHost;
  #strand: Strand | undefined;
  #scratch: Region[] | undefined;
  #settled = false;
  #error: TributaryError | undefined;
  #promise: Promise<void> | undefined;
  #settle: (() => void) | undefined;
  /** Called once when the operation ends, however it ends. */
  onSettled: (() => void) | undefined;

  constructor(
    host: OperationHost,
    group: Members,
    call: Call,
    sequence: number,
    times: { startedMs: number; deadlineMs: number; reportMs: number },
  ) {
    this.#host = host;
    this.group = group;
    this.call = call;
    this.sequence = sequence;
    this.startedMs = times.startedMs;
    this.deadlineMs = times.deadlineMs;
    this.reportMs = times.reportMs;
  }

  get tag(): number {
    return this.call.tag;
  }

  get settled(): boolean {
    return this.#settled;
  }

  get error(): TributaryError | undefined {
    return this.#error;
  }

  begin(steps: Steps): void {
    this.#strand = new Strand(steps);
  }

  /** Runs as far as it can; true when the algorithm has ended. */
  advance(): boolean {
    return this.#strand!.advance();
  }

  /** Ranks it waits for at the moment. */
  waitsFor(): number[] {
    const members = new Set<number>();
    this.#strand?.waitsFor(members);
    return [...members].map((member) => this.group.members.indexOf(member)).sort((a, b) => a - b);
  }

  send(rank: number, step: number, region: Region, weight = 1): Transfer {
    return this.#host.transport.send(this.group.members[rank]!, this.envelope(step, weight), region);
  }

  receive(rank: number, step: number, into: Region): Receiving {
    return this.#host.transport.receive(this.group.members[rank]!, this.envelope(step, 0), into);
  }

  /** Done after the engine has looked once more; if the operation has failed meanwhile, it never resumes. */
  pause(): Transfer {
    return this.#host.pause();
  }

  get transport(): Transport {
    return this.#host.transport;
  }

  envelope(step: number, weight: number): Envelope {
    const { tag, signature } = this.call;
    return { group: this.group.id, tag, sequence: this.sequence, step, signature, weight };
  }

  /** Memory that is given back when the operation ends. */
  scratch<T extends DType>(dtype: T, length: number): Region<T> {
    const region = this.#host.scratch.take(dtype, length);
    (this.#scratch ??= []).push(region);
    return region;
  }

  /** For the engine only: the algorithm runs no further; its memory is still its own. */
  stop(): void {
    this.#strand?.stop();
  }

  /** For the engine only. */
  settle(error?: TributaryError): void {
    if (this.#settled) return;
    this.#settled = true;
    this.#error = error;
    this.#strand = undefined;
    for (const region of this.#scratch ?? []) this.#host.scratch.giveBack(region);
    this.#scratch = undefined;
    this.onSettled?.();
    this.#settle?.();
  }

  wait(): void {
    if (!this.#settled) this.#host.wait(this);
    if (this.#error) throw this.#error;
  }

  cancel(): void {
    if (!this.#settled) this.#host.cancel(this);
  }

  then<A = void, B = never>(
    onDone?: ((value: void) => A | PromiseLike<A>) | null,
    onFailed?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.#promise ??= new Promise<void>((resolve, reject) => {
      this.#settle = () => (this.#error ? reject(this.#error) : resolve());
      if (this.#settled) this.#settle();
      else this.#host.pump();
    });
    return this.#promise.then(onDone, onFailed);
  }
}

export function keyOf({ group, tag, sequence }: Operation): OperationKey {
  return { group: group.id, tag, sequence };
}

/** The key as text, for tables. */
export function nameOf({ group, tag, sequence }: OperationKey): string {
  return `${group}/${tag}/${sequence}`;
}

class Strand {
  readonly #steps: Steps;
  #waiting: Transfer | undefined;
  #children: Strand[] | undefined;
  #ended = false;

  constructor(steps: Steps) {
    this.#steps = steps;
  }

  advance(): boolean {
    while (!this.#ended) {
      if (this.#waiting && !this.#waiting.done) return false;
      if (this.#children) {
        let running = 0;
        for (const child of this.#children) if (!child.advance()) running++;
        if (running > 0) return false;
        this.#children = undefined;
      }
      const { value, done } = this.#steps.next();
      this.#waiting = undefined;
      if (done) this.#ended = true;
      else if (isTransfer(value)) this.#waiting = value;
      else this.#children = value.map((steps) => new Strand(steps));
    }
    return true;
  }

  waitsFor(members: Set<number>): void {
    if (this.#waiting && !this.#waiting.done) members.add(this.#waiting.peer);
    for (const child of this.#children ?? []) child.waitsFor(members);
  }

  /** Lets algorithms run their `finally` blocks. */
  stop(): void {
    for (const child of this.#children ?? []) child.stop();
    if (!this.#ended) this.#steps.return();
    this.#ended = true;
  }
}

function isTransfer(value: Transfer | readonly Steps[]): value is Transfer {
  return 'done' in value;
}
