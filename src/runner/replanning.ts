/**
 * Whether the plan of a run still fits: computing and messages are timed as the run goes, and where they have drifted from the
 * figures of the plan, a new one is made, at the same step on all workers. Routes stay: parameters do not move in mid-run.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { tellAll } from '../exchange/index.ts';
import { hasDrifted, recalibrated } from '../plan/index.ts';
import { planned, routesOf, type PlannedRun } from './plan-run.ts';
import { underWay, type Passage } from './under-way.ts';

/** By how much figures may differ: machines are noisy, and a plan that changes without need costs more than it gains. */
const DRIFT_SHARE = 0.5;

/** Means over some steps. */
export class StepTimes {
  #steps = 0;
  #computeMs = 0;
  #exchangeMs = 0;

  add(computeMs: number, messages: readonly Passage[]): void {
    this.#steps++;
    this.#computeMs += computeMs;
    this.#exchangeMs += underWay(messages).exchangeMs;
  }

  /** Since the last call. */
  take(): { readonly computeMs: number; readonly exchangeMs: number } {
    const steps = Math.max(1, this.#steps);
    const means = { computeMs: this.#computeMs / steps, exchangeMs: this.#exchangeMs / steps };
    this.forget();
    return means;
  }

  /** What was timed belongs to another plan. */
  forget(): void {
    this.#steps = this.#computeMs = this.#exchangeMs = 0;
  }
}

/** Undefined while the plan fits. All workers call it together. */
export function replan(
  thread: CommunicationThread,
  run: PlannedRun,
  times: StepTimes,
): PlannedRun | undefined {
  const { computeMs, exchangeMs } = times.take();
  const all = tellAll(thread, [computeMs, exchangeMs], 'times of the plan');
  const mean = (word: number) => all.reduce((sum, numbers) => sum + numbers[word]!, 0) / all.length;
  const measured = { computeMs: mean(0), exchangeMs: mean(1) };
  if (!hasDrifted(run.plan, measured, DRIFT_SHARE)) return undefined;
  const next = planned(thread, recalibrated(run.input, run.plan, measured));
  const [before, after] = [routesOf(run.plan), routesOf(next.plan)];
  return [...before].every(([name, route]) => after.get(name) === route) ? next : undefined;
}
