/**
 * Further processes that run the script of this one, each as a worker with a rank of its own; this process is rank 0. Starts
 * them and notices how they end. Knows nothing of training.
 * Invariants: no worker outlives this process; errors name the worker that ended, how it ended, and its last output.
 */
import { PeerError } from '../base/index.ts';
import type { WorkerAssignment } from './assignment.ts';
import { ScriptProcess, type ScriptCommand } from './script-process.ts';

export interface WorkerCommand {
  /** See `ScriptProcessOptions`. */
  readonly prefix?: readonly string[] | undefined;
  readonly assignment: WorkerAssignment;
}

export interface WorkerProcessesOptions {
  /** Program and arguments. Default: those of this process. */
  readonly command?: ScriptCommand | undefined;
  /** Longest wait for workers to end by themselves, in milliseconds; then they are ended. Default 10,000. */
  readonly endMs?: number | undefined;
  /** Takes the lines that workers write to the error output. Default: to that of this process, with the rank before it. */
  readonly log?: ((rank: number, line: string) => void) | undefined;
}

interface Running {
  readonly script: ScriptProcess;
  readonly ended: Promise<void>;
}

interface Lost {
  readonly error: PeerError;
  /** By a signal. */
  readonly wasKilled: boolean;
}

/** When one worker is ended, others end because of it: so long they are waited for, to tell which was the first. */
const GATHER_MS = 100;

export class WorkerProcesses {
  readonly #running: readonly Running[];
  readonly #options: WorkerProcessesOptions;
  readonly #endAll = (): void => this.#running.forEach(({ script }) => script.kill());
  /** Settles if a worker ends while it is still needed. */
  readonly failed: Promise<PeerError>;
  #isClosing = false;

  constructor(workers: readonly WorkerCommand[], options: WorkerProcessesOptions = {}) {
    this.#options = options;
    const { command, log = toErrorOutput } = options;
    let tell: (error: PeerError) => void;
    this.failed = new Promise((resolve) => (tell = resolve));
    const lost: Lost[] = [];
    const fail = (one: Lost): void => {
      lost.push(one);
      // One that was ended from outside has not ended because of another.
      const choose = () => tell((lost.find(({ wasKilled }) => wasKilled) ?? lost[0]!).error);
      if (lost.length === 1) setTimeout(choose, GATHER_MS);
    };
    this.#running = workers.map(({ prefix, assignment }) => {
      const { rank } = assignment;
      const script = new ScriptProcess({ assignment, command, prefix, log: (line) => log(rank, line) });
      return { script, ended: this.#follow(assignment, script, fail) };
    });
    process.once('exit', this.#endAll);
  }

  /** Process ids, by rank from 1 on. */
  get pids(): readonly number[] {
    return this.#running.map(({ script }) => script.pid ?? -1);
  }

  /** When all have ended, by themselves or, after a while, not. */
  async close(): Promise<void> {
    this.#isClosing = true;
    const timer = setTimeout(() => {
      this.#endAll();
      // Somebody beyond its group may have it still.
      for (const { script } of this.#running) script.child.stderr!.destroy();
    }, this.#options.endMs ?? 10_000);
    for (const { script } of this.#running) script.child.stdin!.end();
    await Promise.all(this.#running.map(({ ended }) => ended));
    clearTimeout(timer);
    process.off('exit', this.#endAll);
  }

  #follow(
    { rank, host }: WorkerAssignment,
    script: ScriptProcess,
    fail: (lost: Lost) => void,
  ): Promise<void> {
    const where = host === undefined ? '' : ` on ${host}`;
    return new Promise<void>((resolve) => {
      const end = (how: string, wasKilled = false) => {
        if (!this.#isClosing) fail({ error: lostWorker(rank, script, how + where), wasKilled });
        resolve();
      };
      script.child.once('error', (error) => end(`could not be started: ${error.message}`));
      script.child.once('close', (code, signal) =>
        signal === null ? end(`ended with code ${code}`) : end(`was ended by ${signal}`, true),
      );
    });
  }
}

function toErrorOutput(rank: number, line: string): void {
  process.stderr.write(`[worker ${rank}] ${line}\n`);
}

function lostWorker(rank: number, { pid, lastWords }: ScriptProcess, how: string): PeerError {
  if (pid === undefined) {
    return new PeerError('PEER_LOST', `worker ${rank} ${how}. Check the command that starts it.`, { rank });
  }
  return new PeerError(
    'PEER_LOST',
    `worker ${rank} (process ${pid}) ${how}${lastWords}. Look at what ended it, then start again.`,
    { rank, pid },
  );
}
