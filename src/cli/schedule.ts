/** A configured schedule in full: the optimizer's rate and the length of the run fill in what was left out. */
import type { ScheduleSpec } from '../base/index.ts';
import { resolveOptimizerSpec } from '../kernels/index.ts';
import type { ResolvedConfig } from './config.ts';

/** Share of a run that warms up unless the configuration says otherwise. */
const WARMUP_SHARE = 0.05;

/** `stepSamples`: samples of a step, over all who make it. */
export function resolveSchedule(
  config: ResolvedConfig,
  trainSamples: number,
  stepSamples = config.batchSize,
): ScheduleSpec | undefined {
  const { schedule, optimizer, epochs } = config;
  if (!schedule) return undefined;
  // `maxSteps` only cuts a run short: the rate at a step must not depend on it, or a resumed run would differ.
  const totalSteps = Math.ceil(trainSamples / stepSamples) * epochs;
  const baseLr = schedule.baseLr ?? resolveOptimizerSpec(optimizer).lr;
  switch (schedule.name) {
    case 'constant':
    case 'step':
    case 'reduce':
      return { ...schedule, baseLr };
    case 'cosine':
      return { ...schedule, baseLr, tMax: schedule.tMax ?? totalSteps, etaMin: schedule.etaMin ?? 0 };
    case 'warmup_linear':
    case 'warmup_cosine': {
      const warmupSteps = schedule.warmupSteps ?? Math.ceil(WARMUP_SHARE * totalSteps);
      const startFactor = schedule.startFactor ?? 0;
      if (schedule.name === 'warmup_linear') return { ...schedule, baseLr, warmupSteps, startFactor };
      const tMax = schedule.tMax ?? Math.max(1, totalSteps - warmupSteps);
      return { ...schedule, baseLr, warmupSteps, startFactor, tMax, etaMin: schedule.etaMin ?? 0 };
    }
  }
}
