/**
 * When a push takes effect and when its worker hears of it: synchronous (all together), asynchronous (at once), bounded
 * staleness (at once, but nobody gets more than some steps ahead), elastic (weights are pulled together; MXNET-MPI,
 * section 2.2). Pure: it counts steps and knows no bytes. Invariant: a worker's clock only moves forward.
 */
import { UsageError } from '../base/index.ts';

export type Consistency =
  | { readonly kind: 'synchronous' }
  | { readonly kind: 'asynchronous' }
  /** A worker may be at most `staleness` steps ahead of the slowest. */
  | { readonly kind: 'bounded'; readonly staleness: number }
  /** The share of the distance by which centre and worker move towards each other, above 0 and at most 1. */
  | { readonly kind: 'elastic'; readonly alpha: number };

export function checkConsistency(consistency: Consistency): void {
  if (consistency.kind === 'bounded') {
    const { staleness } = consistency;
    if (Number.isInteger(staleness) && staleness >= 0) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `staleness is ${staleness}; give a whole number of steps, 0 or more`,
      {
        staleness,
      },
    );
  }
  if (consistency.kind === 'elastic') {
    const { alpha } = consistency;
    if (isElasticShare(alpha)) return;
    throw new UsageError('INVALID_ARGUMENT', `alpha is ${alpha}; give a number above 0 and at most 1`, {
      alpha,
    });
  }
}

/** With 1 the two change places. */
export function isElasticShare(alpha: number): boolean {
  return alpha > 0 && alpha <= 1;
}

export function checkCanHold({ kind }: Consistency): void {
  if (kind === 'synchronous') return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `updates are to be held in ${kind} training, where pushes do not wait for each other; hold them in synchronous training`,
    { consistency: kind },
  );
}

/** Answers that wait for slower workers, over all keys of a core. */
export interface WaitingAnswers {
  count: number;
}

/**
 * The steps of the workers of one key, for bounded staleness: who waits until the slowest has come nearer. Invariant:
 * at most one answer waits for each step of a worker.
 */
export class Clocks {
  readonly #staleness: number;
  readonly #answers: WaitingAnswers;
  readonly #steps = new Map<number, number>();
  /** By worker and step. */
  readonly #waiting = new Map<number, Map<number, () => void>>();
  /** The step of the slowest, and how many are there: looking through all of them for each push takes too long. */
  #slowest: { readonly step: number; count: number } | undefined;

  /** Infinity: nobody ever waits. */
  constructor(staleness: number, answers: WaitingAnswers) {
    this.#staleness = staleness;
    this.#answers = answers;
  }

  /**
   * A newcomer starts where the slowest is: it holds nobody back for what it missed. One that comes back with more steps
   * behind it (`step`) has them: it may never push again.
   */
  admit(worker: number, step = 0): void {
    if (!this.#steps.has(worker)) this.#set(worker, Math.max(step, this.#least()?.step ?? 0));
  }

  release(worker: number): void {
    this.#leave(worker);
    this.#steps.delete(worker);
    this.#answers.count -= this.#waiting.get(worker)?.size ?? 0;
    this.#waiting.delete(worker);
    this.#open();
  }

  /** Steps are what they were at an earlier time; whoever waits may go on. */
  restart(steps: ReadonlyMap<number, number>): void {
    for (const worker of this.#steps.keys()) this.#steps.set(worker, steps.get(worker) ?? 0);
    this.#slowest = undefined;
    const waiting = [...this.#waiting.values()].flatMap((steps) => [...steps.values()]);
    this.#waiting.clear();
    this.#answers.count -= waiting.length;
    for (const go of waiting) go();
  }

  /**
   * The worker has done the step, just now or before it lost its connection; `go` is called when it may begin the next.
   * Asked again about the same step, whoever asked before is answered at once: its connection is gone.
   */
  done(worker: number, step: number, go: () => void): void {
    if (this.#staleness === Infinity) return go();
    if (step > (this.#steps.get(worker) ?? -1)) {
      this.#leave(worker);
      this.#set(worker, step);
    }
    const steps = this.#waiting.get(worker) ?? new Map<number, () => void>();
    const earlier = steps.get(step);
    this.#waiting.set(worker, steps.set(step, go));
    if (earlier) earlier();
    else this.#answers.count++;
    this.#open();
  }

  #open(): void {
    const limit = (this.#least()?.step ?? Infinity) + this.#staleness;
    for (const [worker, steps] of this.#waiting) {
      for (const [step, go] of steps) {
        if (step > limit) continue;
        steps.delete(step);
        this.#answers.count--;
        go();
      }
      if (steps.size === 0) this.#waiting.delete(worker);
    }
  }

  #set(worker: number, step: number): void {
    this.#steps.set(worker, step);
    const slowest = this.#slowest;
    if (slowest && step < slowest.step) this.#slowest = undefined;
    else if (slowest?.step === step) slowest.count++;
  }

  /** Before its step changes. */
  #leave(worker: number): void {
    const slowest = this.#slowest;
    if (slowest && this.#steps.get(worker) === slowest.step && --slowest.count === 0)
      this.#slowest = undefined;
  }

  #least(): { readonly step: number } | undefined {
    if (this.#slowest || this.#steps.size === 0) return this.#slowest;
    const slowest = { step: Infinity, count: 0 };
    for (const step of this.#steps.values()) {
      if (step < slowest.step) [slowest.step, slowest.count] = [step, 0];
      if (step === slowest.step) slowest.count++;
    }
    return (this.#slowest = slowest);
  }
}
