/**
 * One turn of learners: starts them anew, lets them run warm, counts their steps over a window of time, and ends them. Several
 * copies at the same time, each with weights of its own, are the ceiling. Compares nothing.
 * Invariants: all copies are at work during every copy's window; when the turn is over, well or not, no process is left.
 */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { PeerError } from '../../base/index.ts';
import type { UpdateMode } from '../../learners/index.ts';
import type { LearnersLine, LearnersOrder } from './learners-program.ts';
import type { TextTaskData } from './text-task.ts';

export interface LearnersTurnOptions {
  readonly task: TextTaskData;
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
/** For a copy to end by itself. */
const END_MS = 30_000;

export async function takeLearnersTurn(options: LearnersTurnOptions): Promise<LearnersRate> {
  const { task, learners, copies, mode, signal } = options;
  const ending = new AbortController();
  const window = new StepWindow(options, () => ending.abort());
  const stop = AbortSignal.any(signal ? [ending.signal, signal] : [ending.signal]);
  const timeoutMs = PATIENCE_MS + options.warmupMs + options.turnMs;
  const timer = setTimeout(() => ending.abort(), timeoutMs);
  const runs = Array.from({ length: copies }, (_, copy) =>
    runCopy({ task, learners, mode }, stop, (line) => window.note(copy, line)).catch((error: unknown) => {
      ending.abort();
      throw error;
    }),
  );
  const ended = await Promise.allSettled(runs);
  clearTimeout(timer);
  const failed = ended.find((run): run is PromiseRejectedResult => run.status === 'rejected');
  if (failed) throw failed.reason;
  const what = `${copies} run(s) of ${learners} learner(s), ${mode}`;
  if (signal?.aborted) throw new PeerError('CANCELLED', `${what} were stopped by the caller's signal`);
  const { steps, stepsPerSec, meanStaleness, isWhole } = window.result();
  if (!isWhole || window.lost > 0) throw undone(what, { steps, timeoutMs, lost: window.lost });
  return { samplesPerSec: stepsPerSec * options.samplesPerStep, meanStaleness };
}

/**
 * A process that trains by learners until the signal comes. Settles when it has ended, and its
 * learners with it.
 */
async function runCopy(
  order: LearnersOrder,
  signal: AbortSignal,
  hear: (line: LearnersLine) => void,
): Promise<void> {
  const fromSources = import.meta.url.endsWith('.ts');
  const program = fileURLToPath(new URL(`./learners-program.${fromSources ? 'ts' : 'js'}`, import.meta.url));
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  const child = spawn(process.execPath, [...loader, program, JSON.stringify(order)], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let words = '';
  child.stderr.on('data', (text: Buffer) => (words = (words + text.toString()).slice(-MOST_WORDS)));
  createInterface(child.stdout).on('line', (line) => hear(JSON.parse(line) as LearnersLine));
  let timer: NodeJS.Timeout | undefined;
  const end = () => {
    child.kill('SIGTERM');
    timer = setTimeout(() => child.kill('SIGKILL'), END_MS);
  };
  if (signal.aborted) end();
  else signal.addEventListener('abort', end, { once: true });
  const how = await new Promise<string | undefined>((resolve) => {
    child.once('error', (error) => resolve(`could not be started: ${error.message}`));
    child.once('close', (code, by) => resolve(code === 0 ? undefined : `ended with ${by ?? code}`));
  });
  clearTimeout(timer);
  signal.removeEventListener('abort', end);
  // One that was told to end before it listened has ended by that.
  if (how === undefined || signal.aborted) return;
  throw new PeerError(
    'PEER_EXITED',
    `a process that trains by ${order.learners} learner(s) ${how}; look at what it said: ${words.trim()}`,
    { learners: order.learners, mode: order.mode },
  );
}

const MOST_WORDS = 4000;

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

  note(copy: number, event: LearnersLine): void {
    if (event.type === 'learner-lost') {
      this.lost++;
      this.#onEnd();
    }
    if (event.type !== 'progress' || event.step === 0) return;
    const { copies, learners, warmupMs, turnMs } = this.#options;
    const { step, ready = 0, meanStaleness = 0 } = event;
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
