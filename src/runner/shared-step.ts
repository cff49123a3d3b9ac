/**
 * The gradients of a batch that all workers compute together: this worker's share, cut where the plan says, and the exchange, which
 * goes on meanwhile. Makes the plan when the first batch is there, and says after a hundred steps how it goes.
 * Invariants: all workers do the same at the same step; after `compute` all hold the same loss and gradients.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { tellAll, type Exchange } from '../exchange/index.ts';
import type { ExchangePlan } from '../plan/index.ts';
import type { Replica } from '../runtime/index.ts';
import { groupsOf } from './plan-run.ts';
import { compareReplicas } from './replica-check.ts';
import { runReport } from './run-report.ts';

export interface SharedStepOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly exchange: Exchange;
  readonly makePlan: (samples: ArrayLike<number>) => ExchangePlan;
  /** Takes lines for people, on the first worker. */
  readonly log: (line: string) => void;
  /** Between two comparisons of the replicas. */
  readonly compareEverySteps: number;
}

const REPORT_AFTER_STEPS = 100;
/** The first ones are slower. */
const WARM_UP_STEPS = 10;

export class SharedStep {
  readonly #options: SharedStepOptions;
  #plan: ExchangePlan | undefined;
  #steps = 0;
  readonly #sums = { computeMs: 0, waitMs: 0 };
  #countedSinceMs = 0;

  constructor(options: SharedStepOptions) {
    this.#options = options;
  }

  /** From the first step on. */
  get plan(): ExchangePlan | undefined {
    return this.#plan;
  }

  /** The loss of the whole batch; `samples` are those of this worker's share, which lie in the replica's inputs. */
  compute(samples: ArrayLike<number>): number {
    const { thread, replica, exchange, compareEverySteps } = this.#options;
    if (replica.step > 0 && replica.step % compareEverySteps === 0) compareReplicas(thread, replica);
    this.#plan ??= this.#prepare(samples);
    if (this.#steps === WARM_UP_STEPS) this.#countedSinceMs = performance.now();
    if (this.#steps === REPORT_AFTER_STEPS) this.#report(this.#plan);
    const startedMs = performance.now();
    exchange.begin(samples.length);
    if (samples.length > 0) replica.computeGradients(samples, (group) => exchange.start(group));
    else {
      replica.clearGradients();
      exchange.groups.forEach((_, group) => exchange.start(group));
    }
    const computedMs = performance.now();
    exchange.finish();
    if (this.#steps++ >= WARM_UP_STEPS) {
      this.#sums.computeMs += computedMs - startedMs;
      this.#sums.waitMs += performance.now() - computedMs;
    }
    return replica.memory.loss.view[0]!;
  }

  #prepare(samples: ArrayLike<number>): ExchangePlan {
    const { replica, exchange, makePlan } = this.#options;
    const plan = makePlan(samples);
    exchange.setGroups(groupsOf(plan));
    replica.setGroups(exchange.groups);
    return plan;
  }

  #report(plan: ExchangePlan): void {
    const { thread, log } = this.#options;
    const steps = REPORT_AFTER_STEPS - WARM_UP_STEPS;
    const { computeMs, waitMs } = this.#sums;
    const own = [performance.now() - this.#countedSinceMs, computeMs, waitMs].map((ms) => ms / steps);
    const paces = tellAll(thread, own, 'how fast each worker is').map((numbers) => {
      const [stepMs, ownComputeMs, ownWaitMs] = numbers as [number, number, number];
      return { stepMs, computeMs: ownComputeMs, waitMs: ownWaitMs };
    });
    if (thread.world.rank === 0) for (const line of runReport(plan, steps, paces)) log(line);
  }
}
