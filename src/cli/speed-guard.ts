/**
 * Whether several learners are in fact faster than the one that was measured before them: looks once, some seconds after they
 * began, as a trial is short and the machine may have other work by now. Changes nothing; whoever trains decides.
 */
import { thousands } from './format.ts';

export interface SpeedGuardOptions {
  readonly learners: number;
  /** Samples a second of one learner, as measured before. */
  readonly singleSamplesPerSec: number;
  /** Milliseconds of a clock that only moves forward. Default `performance.now`. */
  readonly now?: () => number;
}

/** Long enough for all learners to have begun and be past their first slow steps. */
const LOOK_AFTER_MS = 5000;
/** Less than this of one learner's speed is no matter of measuring. */
const TOLERATED = 0.9;

export class SpeedGuard {
  readonly #options: SpeedGuardOptions;
  readonly #now: () => number;
  #beganMs: number | undefined;
  #hasLooked = false;

  constructor(options: SpeedGuardOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
  }

  /** Takes the speed since the beginning; gives a line for people, once, if that is slower than one learner. */
  look(samplesPerSec: number): string | undefined {
    if (this.#hasLooked || samplesPerSec === 0) return undefined;
    this.#beganMs ??= this.#now();
    if (this.#now() - this.#beganMs < LOOK_AFTER_MS) return undefined;
    this.#hasLooked = true;
    const { learners, singleSamplesPerSec } = this.#options;
    if (samplesPerSec >= TOLERATED * singleSamplesPerSec) return undefined;
    const rates = `${thousands(samplesPerSec)} samples/s by ${learners}, ${thousands(singleSamplesPerSec)} by one in the trial`;
    return `slower than one learner: ${rates}. If nothing else keeps the machine busy, stop and go on with --resume --learners 1.`;
  }
}
