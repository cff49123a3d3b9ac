/**
 * How the workers of a tenant agree on an optimizer on one core: all set it, the first one's counts,
 * and the others wait until it has. What setting it means is the tenant's business. Invariant: each
 * call of a worker is answered once, with the call of the first worker of the same number or a later
 * one.
 */
import type { TributaryError } from '../../base/index.ts';
import type { Tenant } from './tenant.ts';

export class OptimizerMeeting {
  readonly #tenant: Tenant;
  /** Calls of the first worker that have taken effect. */
  #set = 0;
  readonly #waiting: { readonly number: number; readonly done: () => void }[] = [];
  /** The optimizer came from a log or a checkpoint. */
  isRecovered = false;

  constructor(tenant: Tenant) {
    this.#tenant = tenant;
  }

  agree(
    worker: number,
    number: number,
    spec: unknown,
    done: () => void,
    fail: (error: TributaryError) => void,
  ): void {
    if (number < this.#set) return done();
    // The first worker does not set it again after a server was started again.
    const isKnown = this.isRecovered && this.#set === 0;
    if (worker !== 0 && (this.#tenant.recovery.isRewinding || isKnown)) return done();
    if (worker !== 0) return void this.#waiting.push({ number, done });
    const isSet = () => {
      this.#set = number + 1;
      done();
      for (const waiting of this.#waiting.splice(0)) {
        if (waiting.number <= number) waiting.done();
        else this.#waiting.push(waiting);
      }
    };
    this.#tenant.setOptimizer(spec, isSet, fail, true);
  }

  /** Nobody waits any more: the optimizer comes back with a checkpoint. */
  letGo(): void {
    for (const { done } of this.#waiting.splice(0)) done();
  }
}
