/**
 * What people read while a worker waits for others that may not have been started, or are lost; one for all lines of a
 * store. It says what the client knows: which request is not answered, and which workers the server said are not
 * connected. Invariant: once the workers have met, slow ones are not reported, only those that are not connected or that
 * a gathering after a loss waits for.
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

interface Awaited {
  readonly title: string;
  readonly nextStep: string;
}

export class OtherWorkers {
  readonly #options: OtherWorkersOptions;
  #hasPushed = false;
  #hasMet = false;
  #intervalMs = FIRST_LINE_MS;
  #nextMs = -Infinity;
  /** By server, as it said last. */
  readonly #absent = new Map<string, readonly number[]>();

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

  /** The workers that have no connection to a server, as it says. */
  told(server: string, absent: unknown): void {
    const { worker, workers } = this.#options;
    const isOther = (one: unknown): one is number =>
      Number.isInteger(one) && (one as number) >= 0 && (one as number) < workers && one !== worker;
    this.#absent.set(server, Array.isArray(absent) ? absent.filter(isOther) : []);
  }

  /** To be called again and again while a request is not answered; less and less often it logs a line. */
  awaited({ op }: AskedRequest, server: string, waitedMs: number, nowMs: number): void {
    const { worker, workers, namespace, log } = this.#options;
    const absent = this.#absent.get(server) ?? [];
    // The first values are those of worker 0.
    const missing = op === 'open' ? absent.filter((one) => one === 0) : absent;
    if (workers === 1 || (this.#hasMet && op !== 'gather' && missing.length === 0)) return;
    if (!MEETINGS.has(op) && !EXCHANGES.has(op) && op !== 'open') return;
    if (waitedMs < FIRST_LINE_MS || nowMs < this.#nextMs) return;
    this.#intervalMs *= 2;
    this.#nextMs = nowMs + this.#intervalMs;
    const whom = missing.length > 0 ? named(missing, namespace, this.#hasMet) : this.#unnamed(op);
    log(
      `worker ${worker} of ${workers} has waited ${Math.floor(waitedMs / 1000)} s for ${whom.title}: ${server} has not answered '${op}' yet; ${whom.nextStep}`,
    );
  }

  #unnamed(op: string): Awaited {
    const { worker, workers, namespace } = this.#options;
    const isOne = op === 'open' || (workers === 2 && worker < 2);
    const whom = op === 'open' ? 'worker 0' : isOne ? `worker ${1 - worker}` : 'other workers';
    return {
      title: `${whom} of service '${namespace}'`,
      nextStep: isOne ? 'start it if it does not run' : `start those of the ${workers} that do not run`,
    };
  }
}

/** Those that are not connected; `wereHere`: they were, once. */
function named(missing: readonly number[], namespace: string, wereHere: boolean): Awaited {
  const isOne = missing.length === 1;
  const again = wereHere ? ` again under ${isOne ? 'its number' : 'their numbers'}` : '';
  return {
    title: `worker${isOne ? '' : 's'} ${missing.join(', ')} of service '${namespace}', which ${isOne ? 'is' : 'are'} not connected`,
    nextStep: `start ${isOne ? 'it' : 'them'}${again} if ${isOne ? 'it does' : 'they do'} not run`,
  };
}
