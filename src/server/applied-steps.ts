/**
 * Which held steps a core has applied, and how: all workers ask for each of them, the first one's word is done and the others
 * are compared with it. It knows no keys. Invariants: steps are applied in order, each once; whoever asks for a step that
 * was applied otherwise is told by whom and how.
 */
import { UsageError } from '../base/index.ts';

/** A worker's word to apply what is held. */
export interface ApplyStep {
  readonly worker: number;
  /** Number of the call, from 1, the same on all workers. */
  readonly step: number;
  /** Factor of the combined gradient. */
  readonly scale: number;
  /** Learning rate of this step. Default that of the rule. */
  readonly lr?: number | undefined;
}

/** Steps that are compared; workers are one apart, or more where nobody pushes. */
const REMEMBERED = 64;

export class AppliedSteps {
  #last = 0;
  readonly #known = new Map<number, ApplyStep>();
  /** Steps that were not applied as a whole, and why. */
  readonly #failed = new Map<number, unknown>();
  readonly #before = new Map<number, number>();

  /** A newcomer goes on from here. */
  admit(worker: number): void {
    this.#before.set(worker, this.#last);
  }

  release(worker: number): void {
    this.#before.delete(worker);
  }

  /** Steps that were applied before the worker came. */
  before(worker: number): number {
    return this.#before.get(worker) ?? 0;
  }

  /** Everybody counts from 1 again. */
  restart(): void {
    this.#last = 0;
    this.#known.clear();
    this.#failed.clear();
    for (const worker of this.#before.keys()) this.#before.set(worker, 0);
  }

  /** True if the step is to be applied now, false if it has been. */
  isNext(asked: ApplyStep): boolean {
    const { worker, step } = asked;
    if (!(Number.isInteger(step) && step > 0 && step <= this.#last + 1)) {
      const expected = this.#last + 1;
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} asked to apply step ${step}, expected step ${expected}; call apply once for each step on all workers`,
        { worker, expected, actual: step },
      );
    }
    if (step > this.#last) return true;
    if (this.#failed.has(step)) throw this.#failed.get(step);
    const done = this.#known.get(step);
    if (done && (done.scale !== asked.scale || done.lr !== asked.lr)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} asked to apply step ${step} with ${said(asked)}, worker ${done.worker} with ${said(done)}; compute both from the same numbers on all workers`,
        { worker, other: done.worker, step, expected: said(done), actual: said(asked) },
      );
    }
    return false;
  }

  note(asked: ApplyStep): void {
    this.#last = asked.step;
    this.#known.set(asked.step, asked);
    this.#known.delete(asked.step - REMEMBERED);
    this.#failed.delete(asked.step - REMEMBERED);
  }

  /** All who ask for the step are told. */
  fail({ step }: ApplyStep, error: unknown): void {
    this.#failed.set(step, error);
  }
}

function said({ scale, lr }: ApplyStep): string {
  return `scale ${scale} and ${lr === undefined ? 'the learning rate of the rule' : `learning rate ${lr}`}`;
}
