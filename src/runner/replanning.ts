/**
 * Whether the plan of a run still fits: computing, messages, and the rows that a step touches are
 * measured as the run goes, and where they have drifted from the figures of the plan, a new one is
 * made, at the same step on all workers. It has the routes of the old one, and says which others are
 * quicker now. Moves nothing.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { tellAll } from '../exchange/index.ts';
import { hasDrifted, recalibrated, recordOf, type ExchangePlan, type Route } from '../plan/index.ts';
import type { GradientPlace } from '../runtime/index.ts';
import { planned, type PlannedRun } from './plan-run.ts';
import { underWay, type Passage } from './under-way.ts';

/** By how much figures may differ: machines are noisy, and a plan that changes without need costs more than it gains. */
const DRIFT_SHARE = 0.5;
/** By how much more of a step other routes must gain than when the plan was made; less is noise. */
const NOTABLE_GAIN = 0.1;

/** Means over some steps. */
export class StepTimes {
  #steps = 0;
  #computeMs = 0;
  #exchangeMs = 0;
  /** Rows that were touched, of all that a table has, added up. */
  readonly #touched = new Map<string, number>();

  add(computeMs: number, messages: readonly Passage[]): void {
    this.#steps++;
    this.#computeMs += computeMs;
    this.#exchangeMs += underWay(messages).exchangeMs;
  }

  /** The rows of this worker's batch are in their places, and none of others yet. */
  addRows(names: readonly string[], gradients: ReadonlyMap<string, GradientPlace>): void {
    for (const name of names) {
      const place = gradients.get(name)!;
      if (place.kind === 'dense') continue;
      this.#touched.set(name, (this.#touched.get(name) ?? 0) + place.count / place.tableRows);
    }
  }

  /** Since the last call. */
  take(): Means {
    const steps = Math.max(1, this.#steps);
    const sparsity = Object.fromEntries([...this.#touched].map(([name, sum]) => [name, sum / steps]));
    const means = { computeMs: this.#computeMs / steps, exchangeMs: this.#exchangeMs / steps, sparsity };
    this.forget();
    return means;
  }

  /** What was measured belongs to another plan. */
  forget(): void {
    this.#steps = this.#computeMs = this.#exchangeMs = 0;
    this.#touched.clear();
  }
}

interface Means {
  readonly computeMs: number;
  readonly exchangeMs: number;
  /** Of tables, by name. */
  readonly sparsity: Readonly<Record<string, number>>;
}

/** A plan with the routes of the one before. */
export interface Replanned extends PlannedRun {
  /** Routes that are predicted to be quicker now by more than the noise. */
  readonly betterRoutes?: BetterRoutes | undefined;
}

export interface BetterRoutes {
  readonly changes: readonly { readonly name: string; readonly from: Route; readonly to: Route }[];
  readonly iterationMs: number;
}

/** Undefined while the plan fits. All workers call it together. */
export function replan(
  thread: CommunicationThread,
  run: PlannedRun,
  times: StepTimes,
): Replanned | undefined {
  const measured = overAll(thread, run.plan, times.take());
  if (!hasDrifted(run.plan, measured, DRIFT_SHARE)) return undefined;
  const input = recalibrated(run.input, run.plan, measured);
  const next = planned(thread, { ...input, routes: recordOf(run.plan) });
  // A strategy is somebody's choice.
  if ((run.input.strategy ?? 'hybrid') !== 'hybrid') return next;
  const { plan: free } = planned(thread, { ...input, routes: undefined });
  const { plan: freeBefore } = planned(thread, { ...run.input, routes: undefined });
  // What was tried before may have shown that a prediction was too good: only what is new counts.
  const gained = gainOf(free, next.plan) - Math.max(0, gainOf(freeBefore, run.plan));
  return gained > NOTABLE_GAIN ? { ...next, betterRoutes: betterThan(next.plan, free) } : next;
}

/** For people. */
export function betterRoutesText({ changes, iterationMs }: BetterRoutes, plan: ExchangePlan): string {
  const listed = changes.map(({ name, from, to }) => `${name} by ${to} instead of ${from}`).join(', ');
  return `other routes are predicted to be quicker now: ${listed}: ${iterationMs.toPrecision(3)} ms a step instead of ${plan.iterationMs.toPrecision(3)} ms; a run that resumes plans anew`;
}

/** The mean over the workers; a worker without a batch has touched nothing, and tells so. */
function overAll(
  thread: CommunicationThread,
  { parameters }: ExchangePlan,
  { computeMs, exchangeMs, sparsity }: Means,
): Means {
  const tables = parameters.flatMap(({ name, kind }) => (kind === 'sparse' ? [name] : []));
  const own = [computeMs, exchangeMs, ...tables.map((name) => sparsity[name] ?? NaN)];
  const all = tellAll(thread, own, 'times of the plan');
  const mean = (word: number): number => {
    const known = all.map((numbers) => numbers[word]!).filter((one) => !Number.isNaN(one));
    return known.reduce((sum, one) => sum + one, 0) / known.length;
  };
  const measured = tables.map((name, i) => [name, mean(2 + i)] as const);
  return {
    ...{ computeMs: mean(0), exchangeMs: mean(1) },
    sparsity: Object.fromEntries(measured.filter(([, share]) => share > 0)),
  };
}

/** As a share of the step with the routes of `plan`. */
function gainOf(free: ExchangePlan, plan: ExchangePlan): number {
  return 1 - free.iterationMs / plan.iterationMs;
}

function betterThan(plan: ExchangePlan, { parameters, iterationMs }: ExchangePlan): BetterRoutes {
  const before = recordOf(plan);
  const changes = parameters.flatMap(({ name, route }) =>
    before[name] === route ? [] : [{ name, from: before[name]!, to: route }],
  );
  return { changes, iterationMs };
}
