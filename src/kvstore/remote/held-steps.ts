/**
 * The step under way of a worker whose updates are held: which keys it has pushed since the last apply, whose answers are
 * awaited, and the number of the next apply. It sends nothing. Invariants: a key is pushed at most once in a step; the
 * numbers are the same on all workers, because each of them calls apply once for each step.
 */
import { keyText, PeerError, UsageError } from '../../base/index.ts';
import type { RowsMode } from '../../server/index.ts';
import type { KeyStatus } from '../kv-store.ts';
import type { KeyTable, KnownKey } from './key-table.ts';

/** What comes of a key, with what is known only where updates are held. */
export interface RemoteKeyStatus extends KeyStatus {
  /**
   * Of a push that is held: the sum of the squares of the combined gradient of the whole key, the same number on all workers
   * to the bit; NaN if it is not finite.
   */
  readonly sumOfSquares?: number | undefined;
}

export interface ApplyOptions {
  /** Factor of the combined gradients, as from clipping. Default 1. */
  readonly scale?: number | undefined;
  /** Learning rate of this step. Default that of the optimizer. */
  readonly lr?: number | undefined;
}

export class HeldSteps {
  readonly #worker: number;
  readonly #keys: KeyTable;
  readonly #rows: RowsMode;
  readonly #pushed = new Set<KnownKey>();
  /** Keys whose push was refused; some cores may hold it. */
  readonly #refused = new Set<KnownKey>();
  /** Pushes. */
  readonly #unanswered = new Set<Promise<unknown>>();
  /** Pulls of what is held. */
  readonly #looks = new Set<Promise<unknown>>();
  #applied: number | undefined;

  constructor(worker: number, keys: KeyTable, rows: RowsMode) {
    this.#worker = worker;
    this.#keys = keys;
    this.#rows = rows;
  }

  /** Throws if one of the keys is pushed already. */
  check(keys: readonly KnownKey[]): void {
    const again = keys.find((key) => this.#pushed.has(key));
    if (again === undefined) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} pushed key ${keyText(again.key)} twice in a step whose updates are held; call apply on all workers before the next push`,
      { worker: this.#worker, key: again.key, step: again.step },
    );
  }

  pushed(keys: readonly KnownKey[], answer: Promise<unknown>): void {
    for (const key of keys) {
      this.#pushed.add(key);
      this.#refused.delete(key);
    }
    const refused = (error: unknown): void => {
      if (error instanceof PeerError) return;
      for (const key of keys) {
        this.#pushed.delete(key);
        this.#refused.add(key);
      }
    };
    note(this.#unanswered, answer.catch(refused));
  }

  /** Cores that hold a push and cores that have refused it must not apply the step: pieces of the key would drift apart. */
  checkNoneRefused(): void {
    const [key] = this.#refused;
    if (key === undefined) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} asked to apply, but its push of key ${keyText(key.key)} was refused and some cores may hold it; push it again, or go back by resume()`,
      { worker: this.#worker, key: key.key, step: key.step + 1 },
    );
  }

  /** Done when all workers have pushed the keys, or this one's push has failed. Throws if it has not pushed one of them. */
  async combined(keys: readonly KnownKey[]): Promise<void> {
    const missing = keys.find((key) => !this.#pushed.has(key));
    if (missing === undefined) return void (await Promise.all(this.#unanswered));
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} asked for the combined gradient of key ${keyText(missing.key)}, which it has not pushed since its last apply; push it on all workers, and ask before apply`,
      { worker: this.#worker, key: missing.key, step: missing.step },
    );
  }

  /** What is held is on its way here. */
  looked(answer: Promise<unknown>): void {
    note(this.#looks, answer);
  }

  /**
   * Whoever applies must know that all pushes are combined, since it may be the first to say so; and that what it looks at
   * is here, since the next push goes to the same room.
   */
  async answered(): Promise<void> {
    await Promise.all([...this.#unanswered, ...this.#looks]);
  }

  /**
   * The number of the apply that is being sent; from then on the next step is under way. `settle`
   * takes that back if servers refuse it because pushes are missing: those that had all take the
   * same number again for what they have done already. Otherwise other workers have applied it.
   */
  next(): { readonly step: number; readonly settle: <T>(answers: Promise<T>) => Promise<T> } {
    const counted: [key: KnownKey, before: number][] = [];
    // Servers count an update of every table whose rows are exact, or that averages follow, pushed or
    // not, as dense updates would.
    for (const key of this.#keys.all()) {
      const isCounted = this.#rows === 'exact' || (key.operations?.averages.length ?? 0) > 0;
      if (isCounted && key.rowLength !== undefined && !this.#pushed.has(key)) counted.push([key, key.step++]);
    }
    const pushed = [...this.#pushed];
    this.#pushed.clear();
    const step = (this.#applied = (this.#applied ?? this.#keys.appliedBefore ?? 0) + 1);
    const takeBack = (): void => {
      // Training has gone back since.
      if (this.#applied! < step) return;
      this.#applied = step - 1;
      for (const key of pushed) this.#pushed.add(key);
      for (const [key, before] of counted) key.step = Math.min(key.step, before);
    };
    return {
      step,
      settle: (answers) =>
        answers.catch((error: unknown) => {
          if (error instanceof UsageError && 'missing' in error.facts) takeBack();
          throw error;
        }),
    };
  }

  /** All workers have gone back to a checkpoint, and count from 1 again. */
  restart(): void {
    this.#pushed.clear();
    this.#refused.clear();
    this.#applied = 0;
  }
}

/** Sums of squares of pieces in the order of the pieces, so that all workers get the same bits; null is not finite. */
export function sumInOrder(squares: readonly (number | null)[]): number {
  return squares.reduce<number>((sum, one) => sum + (one ?? NaN), 0);
}

/** Until it is settled. */
function note(open: Set<Promise<unknown>>, answer: Promise<unknown>): void {
  const settled = answer.then(ignore, ignore);
  open.add(settled);
  void settled.then(() => open.delete(settled));
}

const ignore = () => undefined;
