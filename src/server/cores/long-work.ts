/**
 * What one tenant of a core asked for that touches all its pieces: done in parts, in the tenant's turns, so that its
 * neighbours are served in between. What is done, and when it is a turn, is the business of others. Invariants: works
 * follow each other; while one is under way nothing else is done for the tenant, so that nobody sees half of it; one
 * of `done` and `fail` is called for each, once, unless the tenant or who asked for it ends before.
 */
import { asTributaryError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';

interface Work {
  /** Each step is short; what it returns is of no account. */
  readonly steps: Iterator<unknown, void>;
  readonly done: () => void;
  readonly fail: (error: TributaryError) => void;
  /** Whose it is; undefined: the tenant's. */
  readonly owner: object | undefined;
}

export class LongWork {
  readonly #isTurnOver: () => boolean;
  readonly #queue: Work[] = [];

  constructor(isTurnOver: () => boolean) {
    this.#isTurnOver = isTurnOver;
  }

  /** Whether something is under way that nobody may see half of. */
  get isBusy(): boolean {
    return this.#queue.length > 0;
  }

  /** Begins at once, and ends at once if the turn is long enough. `owner`: for whom it is dropped; default nobody. */
  run(
    steps: Iterator<unknown, void>,
    done: () => void,
    fail: (error: TributaryError) => void,
    owner?: object,
  ): void {
    this.#queue.push({ steps, done, fail, owner });
    if (this.#queue.length === 1) this.goOn();
  }

  /** Does more of it, a step at least. */
  goOn(): void {
    do {
      const first = this.#queue[0];
      if (first === undefined) return;
      try {
        if (!first.steps.next().done) continue;
      } catch (error) {
        this.#queue.shift();
        first.fail(asTributaryError(error));
        continue;
      }
      this.#queue.shift();
      first.done();
    } while (!this.#isTurnOver());
  }

  /** Nobody waits for works of this owner any more. */
  drop(owner: object): void {
    const all = this.#queue.splice(0);
    this.#queue.push(...all.filter((one) => one.owner !== owner));
    for (const { steps } of all.filter((one) => one.owner === owner)) steps.return?.();
  }

  /** What is under way gives back what it has taken. */
  close(): void {
    for (const { steps } of this.#queue.splice(0)) steps.return?.();
  }
}
