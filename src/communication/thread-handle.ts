/**
 * What the caller holds of an operation in the communication thread: await it, block on it, look at it, cancel it. The
 * outcome itself comes through `OpenOperations`. Invariant: it settles once, and then knows how.
 */
import type { TributaryError } from '../base/index.ts';
import type { Handle } from '../progress/index.ts';
import type { OperationTimes } from './shared-words.ts';

export interface HandleHost {
  /** Settles the handle if its operation has ended. */
  look(handle: ThreadHandle): void;
  /** Blocks until the handle has settled. */
  block(handle: ThreadHandle): void;
  /** Settles the handle from the event loop once its operation has ended, and keeps the process alive until then. */
  follow(handle: ThreadHandle): void;
  cancel(handle: ThreadHandle): void;
}

/** A handle that knows when its operation ran. */
export interface TimedHandle extends Handle {
  readonly times: OperationTimes | undefined;
}

export class ThreadHandle implements TimedHandle {
  readonly slot: number;
  /** For messages: 'allReduce'. */
  readonly what: string;
  /** When the thread must have ended the operation, its own deadline included. */
  readonly deadlineMs: number;
  /** Called once when the caller has learnt how the operation ended. */
  onSettled: (() => void) | undefined;
  readonly #host: HandleHost;
  #settled = false;
  #error: TributaryError | undefined;
  #times: OperationTimes | undefined;
  #promise: Promise<void> | undefined;
  #resolve: (() => void) | undefined;

  constructor(host: HandleHost, slot: number, what: string, deadlineMs: number) {
    this.#host = host;
    this.slot = slot;
    this.what = what;
    this.deadlineMs = deadlineMs;
  }

  get settled(): boolean {
    if (!this.#settled) this.#host.look(this);
    return this.#settled;
  }

  wait(): void {
    if (!this.settled) this.#host.block(this);
    if (this.#error) throw this.#error;
  }

  cancel(): void {
    if (!this.settled) this.#host.cancel(this);
  }

  then<A = void, B = never>(
    onDone?: ((value: void) => A | PromiseLike<A>) | null,
    onFailed?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.#promise ??= new Promise<void>((resolve, reject) => {
      this.#resolve = () => (this.#error ? reject(this.#error) : resolve());
      if (this.settled) this.#resolve();
      else this.#host.follow(this);
    });
    return this.#promise.then(onDone, onFailed);
  }

  /** When the operation began and ended in the thread; undefined until it has settled. */
  get times(): OperationTimes | undefined {
    return this.#times;
  }

  /** For the host only. */
  settle(error?: TributaryError, times?: OperationTimes): void {
    if (this.#settled) return;
    this.#settled = true;
    this.#error = error;
    this.#times = times;
    this.onSettled?.();
    this.#resolve?.();
  }
}
