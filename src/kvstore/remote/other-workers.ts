/**
 * What people read while a worker waits for others that may not have been started; one for all lines of a store. It says
 * what the client knows: which request is not answered, not which workers the server misses. Invariant: once the workers
 * have met, slow ones are not reported, only those that a gathering after a loss waits for.
 */

export interface OtherWorkersOptions {
  readonly worker: number;
  readonly workers: number;
  readonly namespace: string;
  /** Receives the lines. */
  readonly log: (line: string) => void;
}

/** The fields of a request that matter here; the rest is the server's business. */
export interface AskedRequest {
  readonly op: string;
  readonly push?: boolean;
  readonly pull?: boolean;
  readonly pulls?: boolean;
}

/** Requests that are answered when all workers have made theirs. */
const MEETINGS: ReadonlySet<string> = new Set(['barrier', 'learning-rate', 'gather', 'apply']);
const EXCHANGES: ReadonlySet<string> = new Set(['exchange', 'push-rows', 'pull-rows']);
const FIRST_LINE_MS = 2000;

export class OtherWorkers {
  readonly #options: OtherWorkersOptions;
  #hasPushed = false;
  #hasMet = false;
  #intervalMs = FIRST_LINE_MS;
  #nextMs = -Infinity;

  constructor(options: OtherWorkersOptions) {
    this.#options = options;
  }

  answered({ op, push = false, pull = false, pulls = false }: AskedRequest): void {
    this.#hasPushed ||= push || op === 'push-rows';
    const isPulled = pull || pulls || op === 'pull-rows';
    // What is pulled before the first push is there without the others.
    if (!MEETINGS.has(op) && !(EXCHANGES.has(op) && isPulled && this.#hasPushed)) return;
    this.#hasMet = true;
    this.#intervalMs = FIRST_LINE_MS;
    this.#nextMs = -Infinity;
  }

  /** To be called again and again while a request is not answered; less and less often it logs a line. */
  awaited({ op }: AskedRequest, server: string, waitedMs: number, nowMs: number): void {
    const { worker, workers, namespace, log } = this.#options;
    if (workers === 1 || (this.#hasMet && op !== 'gather')) return;
    if (!MEETINGS.has(op) && !EXCHANGES.has(op) && op !== 'open') return;
    if (waitedMs < FIRST_LINE_MS || nowMs < this.#nextMs) return;
    this.#intervalMs *= 2;
    this.#nextMs = nowMs + this.#intervalMs;
    // The first values are those of worker 0.
    const isOne = op === 'open' || (workers === 2 && worker < 2);
    const whom = op === 'open' ? 'worker 0' : isOne ? `worker ${1 - worker}` : 'other workers';
    const nextStep = isOne ? 'start it if it does not run' : `start those of the ${workers} that do not run`;
    log(
      `worker ${worker} of ${workers} has waited ${Math.floor(waitedMs / 1000)} s for ${whom} of service '${namespace}': ${server} has not answered '${op}' yet; ${nextStep}`,
    );
  }
}
