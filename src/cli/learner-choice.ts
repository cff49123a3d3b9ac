/**
 * How many learners train: as many as were asked for, or, by a short trial, as many as are faster than one. Says why in one
 * line where there is something to say. Measures nothing itself.
 * Invariants: by itself it never takes more than one unless that was measured to be faster; there is no trial where it
 * could not matter.
 */
import type { ResolvedConfig } from './config.ts';
import { thousands } from './format.ts';
import type { Measured } from './learner-trial.ts';
import type { ResumePoint } from './resume-point.ts';

export interface LearnerChoice {
  readonly learners: number;
  /** For people: why. */
  readonly note?: string | undefined;
  /** Samples a second of one learner, where that was measured. */
  readonly singleSamplesPerSec?: number | undefined;
  /** Speed of the choice as a multiple of one, where that was measured. */
  readonly trialSpeedup?: number | undefined;
}

export interface ChoiceFacts {
  readonly config: ResolvedConfig;
  /** In an epoch. */
  readonly samples: number;
  /** Processors this process may use. */
  readonly cores: number;
  /** Whether memory can be shared between processes here. */
  readonly isShared: boolean;
  /** Where a resumed run goes on. */
  readonly from?: ResumePoint | undefined;
}

export type Measure = (learners: number) => Promise<Measured | undefined>;

/** A trial costs about as much time as two learners save in a run of this length. */
const SHORTEST_RUN_SEC = 3;
const SHORTEST_EPOCH_SEC = 1;
const FEWEST_STEPS = 64;
const LEAST_GAIN = 1.05;
/** Every learner loads the data; whoever wants more says so. */
const MOST_BY_ITSELF = 8;

export async function chooseLearners(facts: ChoiceFacts, measure: Measure): Promise<LearnerChoice> {
  const { config } = facts;
  const isAsked = config.learners !== 'auto';
  if (config.learners === 1) return { learners: 1 };
  const obstacle = obstacleOf(config);
  if (obstacle !== undefined) {
    const isWorthALine = isAsked || 'build' in config.model;
    return { learners: 1, ...(isWorthALine ? { note: `1 learner: ${obstacle}.` } : {}) };
  }
  if (config.learners !== 'auto') return { learners: config.learners };
  return canMatter(facts) ? tryOut(facts, measure) : { learners: 1 };
}

/** Why several learners cannot train this, whatever was asked for. */
function obstacleOf({ model, maxSteps }: ResolvedConfig): string | undefined {
  if ('build' in model) return 'the model is a function, which other processes cannot build';
  if (maxSteps !== undefined) return 'a run that stops after so many steps counts them in one process';
  return undefined;
}

function canMatter(facts: ChoiceFacts): boolean {
  const { config, cores, isShared, from } = facts;
  const { provider = 'cpu', threads = 1 } = config;
  const isPlain = provider === 'cpu' && threads === 1 && from?.midEpoch !== 'fit';
  return isPlain && isShared && cores > 1 && stepsLeft(facts) >= FEWEST_STEPS;
}

function stepsLeft({ config, samples, from }: ChoiceFacts): number {
  return Math.ceil(samples / config.batchSize) * config.epochs - (from?.step ?? 0);
}

async function tryOut(facts: ChoiceFacts, measure: Measure): Promise<LearnerChoice> {
  const { config, samples, cores } = facts;
  const one = await attempt(measure, 1);
  // What fails here fails again in the run, which tells it properly.
  if (typeof one === 'string' || !one) return { learners: 1 };
  const singleSamplesPerSec = one.samplesPerSec;
  const runSec = (stepsLeft(facts) * config.batchSize) / singleSamplesPerSec;
  if (samples / singleSamplesPerSec < SHORTEST_EPOCH_SEC || runSec < SHORTEST_RUN_SEC) return { learners: 1 };
  let best: { readonly learners: number; readonly measured: Measured } | undefined;
  let failure = 'they did not start in time';
  for (const learners of candidates(cores)) {
    const measured = await attempt(measure, learners);
    if (typeof measured === 'string') failure = measured;
    else if (measured && measured.samplesPerSec > (best?.measured.samplesPerSec ?? 0)) {
      best = { learners, measured };
    }
  }
  if (!best)
    return { learners: 1, note: `1 learner: more could not be tried, ${failure}`, singleSamplesPerSec };
  const { learners, measured } = best;
  const speedup = measured.samplesPerSec / singleSamplesPerSec;
  const rates = `${thousands(measured.samplesPerSec)} against ${thousands(singleSamplesPerSec)} samples/s`;
  if (speedup < LEAST_GAIN) {
    const note = `1 learner: ${learners} are ${speedup.toFixed(2)}x as fast (${rates}).`;
    return { learners: 1, note, singleSamplesPerSec };
  }
  const staleness = measured.meanStaleness.toFixed(1);
  const note = `${learners} learners, ${speedup.toFixed(1)}x one (${rates}), mean staleness ${staleness}`;
  return { learners, note, singleSamplesPerSec, trialSpeedup: speedup };
}

/** All processors, and where there are many, half of them: two of them may share one core. */
function candidates(cores: number): number[] {
  const most = Math.min(cores, MOST_BY_ITSELF);
  return most < 4 ? [most] : [Math.floor(most / 2), most];
}

/** The reason, if it failed. */
async function attempt(measure: Measure, learners: number): Promise<Measured | string | undefined> {
  try {
    return await measure(learners);
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
