/**
 * How fast so many learners in a mode train this model on this data here: a short run from the first weights, thrown away
 * afterwards. One learner is `fit` in this process, as it would train. Chooses nothing.
 * Invariant: leaves no process, no file and no weights behind, and ends by its deadline.
 */
import type { UpdateMode } from '../learners/index.ts';
import type { Model } from '../graph/index.ts';
import { fit, type FitEvent } from '../runner/index.ts';
import type { ResolvedConfig } from './config.ts';
import { resolveSchedule } from './schedule.ts';
import type { Task } from './task.ts';
import { updateOf } from './who-trains.ts';

/** Who trains. */
export interface Team {
  readonly learners: number;
  /** Who applies their gradients; means nothing for one. Default 'direct lock-free'. */
  readonly mode?: UpdateMode | undefined;
}

export interface Measured {
  readonly samplesPerSec: number;
  /** Updates by others between reading the weights and applying a gradient. */
  readonly meanStaleness: number;
}

export interface TrialOptions {
  readonly config: ResolvedConfig;
  readonly model: Model;
  readonly train: Task['train'];
  readonly signal: AbortSignal;
  /** Processes that have not all begun by then are not waited for. Default 8,000 milliseconds. */
  readonly startMs?: number | undefined;
}

/** From the first step of all learners on: long enough to be past the first slow steps, and for a few dozen of them. */
const LEAST_MS = 700;
const MOST_MS = 2000;
const LEAST_STEPS = 24;
const WINDOW_MS = 400;

/** Undefined if nothing could be measured in time, or if the signal came. */
export async function measureLearners(
  { learners, mode }: Team,
  { config, model, train, signal, startMs = 8000 }: TrialOptions,
): Promise<Measured | undefined> {
  const meter = new StepMeter();
  const enough = new AbortController();
  const timer = setTimeout(() => enough.abort(), startMs + MOST_MS);
  let staleness = 0;
  const onEvent = (event: FitEvent) => {
    if (event.type !== 'progress') return;
    const { step, ready = learners, meanStaleness = 0 } = event;
    if (ready < learners) return;
    meter.add(step, performance.now());
    staleness = meanStaleness;
    if (meter.hasEnough()) enough.abort();
  };
  try {
    const result = await fit(model, {
      ...{ train, optimizer: config.optimizer, schedule: resolveSchedule(config, train.length) },
      ...{ batchSize: config.batchSize, seed: config.seed, sparseUpdates: config.sparseUpdates },
      session: { threads: config.threads ?? 1, provider: config.provider ?? 'cpu' },
      on:
        learners === 1
          ? undefined
          : { learners, ...updateOf(mode ?? 'auto'), maxReplacements: 0, maxRestarts: 0 },
      ...{ epochs: Infinity, signal: AbortSignal.any([signal, enough.signal]) },
      ...{ onEvent, progressIntervalMs: 50 },
    });
    await result.close();
  } finally {
    clearTimeout(timer);
  }
  const stepsPerSec = meter.stepsPerSec();
  if (signal.aborted || stepsPerSec === undefined) return undefined;
  return {
    samplesPerSec: stepsPerSec * Math.min(config.batchSize, train.length),
    meanStaleness: staleness,
  };
}

/** Steps by time; the best stretch counts, as first steps are slow. */
export class StepMeter {
  readonly #seen: { readonly step: number; readonly atMs: number }[] = [];

  add(step: number, atMs: number): void {
    if (step > 0) this.#seen.push({ step, atMs });
  }

  hasEnough(): boolean {
    const ms = this.#elapsedMs();
    if (ms >= MOST_MS) return true;
    return ms >= LEAST_MS && this.#seen.at(-1)!.step - this.#seen[0]!.step >= LEAST_STEPS;
  }

  stepsPerSec(): number | undefined {
    const windowMs = Math.max(WINDOW_MS, this.#elapsedMs() / 2);
    const rates = this.#seen.flatMap((start, i) => {
      const end = this.#seen.slice(i + 1).find(({ atMs }) => atMs - start.atMs >= windowMs);
      return end ? [((end.step - start.step) / (end.atMs - start.atMs)) * 1000] : [];
    });
    return rates.length === 0 ? undefined : Math.max(...rates);
  }

  #elapsedMs(): number {
    const [first, last] = [this.#seen[0], this.#seen.at(-1)];
    return first && last ? last.atMs - first.atMs : 0;
  }
}
