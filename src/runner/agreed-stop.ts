/**
 * Whether to stop before the next step: as soon as one worker's signal says so, on all of them at the same step. Workers ask each
 * other about every fiftieth of a second, not before every step, as steps may take less time than a question.
 * Invariant: all workers get the same answer before the same step.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { tellAll, type SomeWorkers } from '../exchange/index.ts';

const ASK_EVERY_MS = 20;
const MOST_STEPS = 1000;

export class AgreedStop {
  readonly #thread: CommunicationThread;
  readonly #isWanted: () => boolean;
  readonly #workers: SomeWorkers | undefined;
  /** Until the next question. */
  #stepsLeft = 0;
  #asked = { steps: 0, atMs: performance.now() };

  /** `workers`: those who ask each other. Default: all. */
  constructor(thread: CommunicationThread, isWanted: () => boolean, workers?: SomeWorkers) {
    this.#thread = thread;
    this.#isWanted = isWanted;
    this.#workers = workers;
  }

  /** All workers call it before every step. */
  isDue(): boolean {
    if (this.#stepsLeft > 0) {
      this.#stepsLeft--;
      return false;
    }
    const wish = this.#isWanted() ? 1 : 0;
    const all = tellAll(this.#thread, [wish, this.#nextSteps()], 'whether to stop', this.#workers);
    // They differ in how fast they are, and must ask at the same step.
    const steps = all[0]![1]!;
    this.#stepsLeft = steps - 1;
    this.#asked = { steps, atMs: performance.now() };
    return all.some(([wanted]) => wanted === 1);
  }

  /** As many as fit in the time, by how long those since the last question took. */
  #nextSteps(): number {
    const { steps, atMs } = this.#asked;
    const fitting = Math.floor((steps * ASK_EVERY_MS) / Math.max(performance.now() - atMs, 0.001));
    // Twice as many at most: after a pause or a first slow step the figures mean little.
    return Math.min(MOST_STEPS, Math.max(1, Math.min(fitting, 2 * steps)));
  }
}
