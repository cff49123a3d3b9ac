/**
 * One turn of learners: starts them anew, lets them run warm, counts their steps over a window of time, and ends them. Several
 * copies at the same time, each with weights of its own, are the ceiling. Compares nothing.
 * Invariants: all copies are at work during every copy's window; when the turn is over, well or not, no process is left.
 */
import { PeerError } from '../../base/index.ts';
import { trainWithLearners } from '../../learners/index.ts';
import type { TaskSource, TrainEvent, UpdateMode } from '../../learners/index.ts';

export interface LearnersTurnOptions {
  readonly source: TaskSource;
  /** Processes on one set of weights. */
  readonly learners: number;
  /** Independent runs of so many learners each, at the same time. */
  readonly copies: number;
  readonly mode: UpdateMode;
  /** Mean over an epoch. */
  readonly samplesPerStep: number;
  /** From when all learners have begun and all copies do steps until the window opens, in milliseconds. */
  readonly warmupMs: number;
  /** Of the window, in milliseconds. */
  readonly turnMs: number;
  readonly signal?: AbortSignal | undefined;
}

export interface LearnersRate {
  /** Of all copies together. */
  readonly samplesPerSec: number;
  /** Over the window, mean of all steps. */
  readonly meanStaleness: number;
}

/** Longest wait for the first steps, and for the end of a window beyond its length. */
const PATIENCE_MS = 60_000;
/** More than any turn sees. */
const EPOCHS = 1_000_000;

export async function takeLearnersTurn(options: LearnersTurnOptions): Promise<LearnersRate> {
  const { source, learners, copies, mode, samplesPerStep, signal } = options;
  const ending = new AbortController();
  const window = new StepWindow(options, () => ending.abort());
  const stop = AbortSignal.any(signal ? [ending.signal, signal] : [ending.signal]);
  const fail = (error: unknown): never => {
    ending.abort();
    throw error;
  };
  const timeoutMs = PATIENCE_MS + options.warmupMs + options.turnMs;
  const timer = setTimeout(() => ending.abort(), timeoutMs);
  const runs = Array.from({ length: copies }, (_, copy) =>
    trainWithLearners({
      ...{ source, learners, epochs: EPOCHS, mode, signal: stop },
      onEvent: (event) => window.note(copy, event),
    }).catch(fail),
  );
  const ended = await Promise.allSettled(runs);
  clearTimeout(timer);
  for (const run of ended) if (run.status === 'fulfilled') run.value.close();
  const failed = ended.find((run): run is PromiseRejectedResult => run.status === 'rejected');
  if (failed) throw failed.reason;
  const what = `${copies} run(s) of ${learners} learner(s), ${mode}`;
  if (signal?.aborted) throw new PeerError('CANCELLED', `${what} were stopped by the caller's signal`);
  const { steps, stepsPerSec, meanStaleness, isWhole } = window.result();
  if (!isWhole || window.lost > 0) throw undone(what, { steps, timeoutMs, lost: window.lost });
  return { samplesPerSec: stepsPerSec * samplesPerStep, meanStaleness };
}

function undone(what: string, facts: { steps: number; timeoutMs: number; lost: number }): PeerError {
  const { steps, timeoutMs, lost } = facts;
  const how = lost > 0 ? `lost ${lost} learner(s)` : `did ${steps} counted steps in ${timeoutMs} ms`;
  return new PeerError(
    lost > 0 ? 'PEER_LOST' : 'TIMEOUT',
    `${what} ${how} and gave no figure; look for what keeps or ends the processes, and measure again`,
    facts,
  );
}

interface Mark {
  readonly atMs: number;
  readonly step: number;
  /** Sum over the steps so far. */
  readonly staleness: number;
}

/** Where each copy was when the window opened for it, and when it closed. */
class StepWindow {
  /** Learners that died. */
  lost = 0;
  readonly #options: LearnersTurnOptions;
  readonly #onEnd: () => void;
  /** Copies whose learners have all begun; one that is still starting takes time from the others. */
  readonly #atWork = new Set<number>();
  readonly #begins = new Map<number, Mark>();
  readonly #ends = new Map<number, Mark>();
  #opensMs = Infinity;

  constructor(options: LearnersTurnOptions, onEnd: () => void) {
    this.#options = options;
    this.#onEnd = onEnd;
  }

  note(copy: number, event: TrainEvent): void {
    if (event.type === 'learner-lost') {
      this.lost++;
      this.#onEnd();
    }
    if (event.type !== 'progress' || event.step === 0) return;
    const { copies, learners, warmupMs, turnMs } = this.#options;
    const { step, ready, meanStaleness } = event;
    const mark: Mark = { atMs: performance.now(), step, staleness: meanStaleness * step };
    if (ready >= learners) this.#atWork.add(copy);
    if (this.#opensMs === Infinity && this.#atWork.size === copies) this.#opensMs = mark.atMs + warmupMs;
    if (mark.atMs < this.#opensMs || this.#ends.has(copy)) return;
    const begin = this.#begins.get(copy);
    if (!begin) this.#begins.set(copy, mark);
    else if (mark.atMs - begin.atMs >= turnMs) this.#ends.set(copy, mark);
    if (this.#ends.size === copies) this.#onEnd();
  }

  result(): {
    readonly steps: number;
    readonly stepsPerSec: number;
    readonly meanStaleness: number;
    readonly isWhole: boolean;
  } {
    let [steps, stepsPerSec, staleness] = [0, 0, 0];
    for (const [copy, end] of this.#ends) {
      const begin = this.#begins.get(copy)!;
      steps += end.step - begin.step;
      staleness += end.staleness - begin.staleness;
      stepsPerSec += ((end.step - begin.step) * 1e3) / (end.atMs - begin.atMs);
    }
    const isWhole = steps > 0 && this.#ends.size === this.#options.copies;
    return { steps, stepsPerSec, meanStaleness: Math.max(0, staleness) / Math.max(1, steps), isWhole };
  }
}
