/** Measures a training loop as it goes: samples per second without pauses, recent and epoch loss, time left. */
export class Pace {
  readonly #intervalMs: number;
  #computingMs = 0;
  #samples = 0;
  #steps = 0;
  #last = performance.now();
  #lastReport = performance.now();
  #recent: number | undefined;
  #epochSum = 0;
  #epochSamples = 0;

  constructor(intervalMs: number) {
    this.#intervalMs = intervalMs;
  }

  /** The first step begins; what was before does not count. */
  begin(): void {
    this.#last = this.#lastReport = performance.now();
  }

  /** A step is done. One that is not like the others says nothing about speed. */
  add(loss: number, samples: number, isTimed = true): void {
    const now = performance.now();
    if (isTimed) {
      this.#computingMs += now - this.#last;
      this.#samples += samples;
      this.#steps++;
    }
    this.#last = now;
    this.#recent = this.#recent === undefined ? loss : 0.95 * this.#recent + 0.05 * loss;
    this.#epochSum += loss * samples;
    this.#epochSamples += samples;
  }

  /** Time since the last step does not count: evaluation, checkpoints. */
  pause(): void {
    this.#last = performance.now();
  }

  /** Whether the next report is due; true at most once an interval. */
  due(): boolean {
    const now = performance.now();
    if (now - this.#lastReport < this.#intervalMs) return false;
    this.#lastReport = now;
    return true;
  }

  recentLoss(): number {
    return this.#recent ?? NaN;
  }

  /** The mean loss since the last call. */
  epochLoss(): number {
    const mean = this.#epochSum / this.#epochSamples;
    this.#epochSum = 0;
    this.#epochSamples = 0;
    return mean;
  }

  samplesPerSec(): number {
    return this.#computingMs === 0 ? 0 : (this.#samples / this.#computingMs) * 1000;
  }

  remainingMs(steps: number): number {
    return this.#steps === 0 ? NaN : (this.#computingMs / this.#steps) * steps;
  }
}
