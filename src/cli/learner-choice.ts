/**
 * How many learners train, and who applies their gradients: as was asked for, or, by a short trial, what is faster
 * than one. Says why in one line where there is something to say. Measures nothing itself. Invariants: by itself it
 * never takes more than one unless that was measured to be faster; there is no trial where it could not matter;
 * locked modes, which are for comparing, are never chosen unasked.
 */
import type { UpdateMode } from '../learners/index.ts';
import type { OnLearners } from '../runner/index.ts';
import type { ResolvedConfig } from './config.ts';
import { thousands } from './format.ts';
import type { Measured, Team } from './learner-trial.ts';
import type { ResumePoint } from './resume-point.ts';
import { updateModeOf } from './who-trains.ts';

export interface LearnerChoice {
  readonly learners: number;
  /** Who applies their gradients; of several learners. */
  readonly mode?: UpdateMode | undefined;
  /** For people: why. */
  readonly note?: string | undefined;
  /** Samples a second of one learner, where that was measured. */
  readonly singleSamplesPerSec?: number | undefined;
  /** Speed of the choice as a multiple of one, where that was measured. */
  readonly trialSpeedup?: number | undefined;
}

export interface ChoiceFacts {
  readonly config: ResolvedConfig;
  /** What was asked for. */
  readonly on: OnLearners;
  /** In an epoch. */
  readonly samples: number;
  /** Processors this process may use. */
  readonly cores: number;
  /** Whether memory can be shared between processes here. */
  readonly isShared: boolean;
  /** Where a resumed run goes on. */
  readonly from?: ResumePoint | undefined;
}

export type Measure = (team: Team) => Promise<Measured | undefined>;

/** A team with what it was measured to do. */
type Trial = Team & Measured;

const DIRECT = 'direct lock-free';
const SERVER = 'server lock-free';
/** A trial costs about as much time as two learners save in a run of this length. */
const SHORTEST_RUN_SEC = 3;
const SHORTEST_EPOCH_SEC = 1;
const FEWEST_STEPS = 64;
const LEAST_GAIN = 1.05;
const LEAST_GAIN_PERCENT = Math.round(100 * (LEAST_GAIN - 1));
/** Every learner loads the data; whoever wants more says so. */
const MOST_BY_ITSELF = 8;
/** With less than this of a whole learner each, learners are in each other's way: their updates are a large part. */
const GOOD_EFFICIENCY = 0.8;

export async function chooseLearners(facts: ChoiceFacts, measure: Measure): Promise<LearnerChoice> {
  const { on } = facts;
  const { learners } = on;
  const mode = updateModeOf(on);
  if (learners === 1) return alone(on);
  if (learners !== 'auto') return { learners, mode: mode === 'auto' ? DIRECT : mode };
  return canMatter(facts) ? tryOut(facts, measure) : alone(on);
}

/** One, without a trial that found so: a word only to whoever asked for a mode, which one learner does not have. */
function alone(on: OnLearners): LearnerChoice {
  const mode = updateModeOf(on);
  if (mode === 'auto') return { learners: 1 };
  const next =
    on.learners === 1 ? 'ask for more by --learners' : 'more would not pay here, --learners 2 has them';
  return { learners: 1, note: `1 learner: the mode ${mode} is one of several; ${next}.` };
}

function canMatter(facts: ChoiceFacts): boolean {
  const { config, cores, isShared } = facts;
  const { provider = 'cpu', threads = 1 } = config;
  const isPlain = provider === 'cpu' && threads === 1;
  return isPlain && isShared && cores > 1 && stepsLeft(facts) >= FEWEST_STEPS;
}

function stepsLeft({ config, samples, from }: ChoiceFacts): number {
  const { batchSize, epochs, maxSteps = Infinity } = config;
  return Math.min(Math.ceil(samples / batchSize) * epochs, maxSteps) - (from?.step ?? 0);
}

async function tryOut(facts: ChoiceFacts, measure: Measure): Promise<LearnerChoice> {
  const { config, on, samples, cores } = facts;
  const asked = updateModeOf(on);
  const one = await attempt(measure, { learners: 1 });
  // What fails here fails again in the run, which tells it properly.
  if (!isTrial(one)) return { learners: 1 };
  const runSec = (stepsLeft(facts) * config.batchSize) / one.samplesPerSec;
  if (samples / one.samplesPerSec < SHORTEST_EPOCH_SEC || runSec < SHORTEST_RUN_SEC) return alone(on);

  const trials: Trial[] = [];
  let failure = 'they did not start in time';
  const mode = asked === 'auto' ? DIRECT : asked;
  for (const learners of candidates(cores, mode)) {
    const measured = await attempt(measure, { learners, mode });
    if (isTrial(measured)) trials.push(measured);
    else failure = measured ?? failure;
  }
  const best = fastest(trials);
  if (!best) {
    const note = `1 learner: more could not be tried, ${failure}`;
    return { learners: 1, note, singleSamplesPerSec: one.samplesPerSec };
  }
  // The first trial of all ran cold, before files were cached and code was compiled; teams must not win by that.
  const again = await attempt(measure, { learners: 1 });
  const singleSamplesPerSec = fastest(isTrial(again) ? [one, again] : [one])!.samplesPerSec;

  if (asked !== 'auto') return decide(best, undefined, singleSamplesPerSec);
  const efficiency = best.samplesPerSec / singleSamplesPerSec / best.learners;
  const isServerWorthATry = cores > 2 || efficiency < GOOD_EFFICIENCY;
  const [winner, other] = isServerWorthATry ? await challenge(best, cores, measure) : [best];
  return decide(winner, other, singleSamplesPerSec);
}

/** Tries a server against the best direct team, which gets a second chance if it loses. The winner first. */
async function challenge(
  direct: Trial,
  cores: number,
  measure: Measure,
): Promise<readonly [Trial, Trial | undefined]> {
  const learners = Math.min(direct.learners, most(cores, SERVER));
  const served = await attempt(measure, { learners, mode: SERVER });
  if (!isTrial(served)) return [direct, undefined];
  const isFaster = (than: Trial) => served.samplesPerSec > than.samplesPerSec * LEAST_GAIN;
  if (!isFaster(direct)) return [direct, served];
  const again = await attempt(measure, { learners: direct.learners, mode: DIRECT });
  const better = fastest(isTrial(again) ? [direct, again] : [direct])!;
  return isFaster(better) ? [served, better] : [better, served];
}

/** `best` if it is faster than one; `other` is what else was tried. */
function decide(best: Trial, other: Trial | undefined, singleSamplesPerSec: number): LearnerChoice {
  const { learners, mode, samplesPerSec, meanStaleness } = best;
  const speedup = samplesPerSec / singleSamplesPerSec;
  const rates = `${thousands(samplesPerSec)} samples/s against ${thousands(singleSamplesPerSec)}`;
  // The direct mode is kept unless a server is clearly faster.
  const isKept = other && other.samplesPerSec > samplesPerSec;
  const also = other
    ? ` (${other.mode} with ${other.learners}: ${thousands(other.samplesPerSec)}${isKept ? `, not ${LEAST_GAIN_PERCENT} % more` : ''})`
    : '';
  if (speedup < LEAST_GAIN) {
    const note = `1 learner: ${learners} are ${speedup.toFixed(2)}x as fast, ${rates}${also}; more than one is used from ${LEAST_GAIN}x on.`;
    return { learners: 1, note, singleSamplesPerSec };
  }
  const note =
    `${learners} learners (processes that train together) are ${speedup.toFixed(1)}x as fast as one: ${rates}. ` +
    `Mode ${mode}${also}, mean staleness ${meanStaleness.toFixed(1)}.`;
  return { learners, mode, note, singleSamplesPerSec, trialSpeedup: speedup };
}

/** All processors, and where there are many, half of them: two of them may share one core. */
function candidates(cores: number, mode: UpdateMode): number[] {
  const all = most(cores, mode);
  return all < 4 ? [all] : [Math.floor(all / 2), all];
}

/** A server has a processor of its own, but where that would leave a single learner. */
function most(cores: number, mode: UpdateMode): number {
  const forLearners = mode.startsWith('server') ? Math.max(2, cores - 1) : cores;
  return Math.min(forLearners, MOST_BY_ITSELF);
}

function fastest(trials: readonly Trial[]): Trial | undefined {
  return [...trials].sort((a, b) => b.samplesPerSec - a.samplesPerSec)[0];
}

function isTrial(result: Trial | string | undefined): result is Trial {
  return typeof result === 'object';
}

/** The reason, if it failed. */
async function attempt(measure: Measure, team: Team): Promise<Trial | string | undefined> {
  try {
    const measured = await measure(team);
    return measured && { ...team, ...measured };
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
